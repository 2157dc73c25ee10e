package scheduling

import (
	"fmt"
	"testing"

	"gpufabric.io/fakes/profile"
)

// mostBytes is how many bytes a node of eight GPUs may have in the API server with default settings, in the API server's
// encoding and with all fields of the object.
const mostBytes = 8_000

// TestSlicesOfEightGPUsAreUnderEightKilobytes bounds what each fake machine publishes of its GPUs, with default settings
// and with shareable GPUs.
func TestSlicesOfEightGPUsAreUnderEightKilobytes(t *testing.T) {
	for _, name := range profile.Names() {
		m, err := NewMachine(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		for _, form := range []string{"whole", "shareable"} {
			t.Run(fmt.Sprint(name, " ", form), func(t *testing.T) {
				published := slicesOf("a-node-with-a-name-of-usual-length", m.ours(form))
				devices, bytes := 0, 0
				for _, s := range published {
					devices += len(s.Spec.Devices)
					bytes += s.Size()
				}
				t.Logf("%d GPUs: %d slices, %d devices, %d bytes", len(m.node.GPUs), len(published), devices, bytes)
				if len(published) != min(1, len(m.node.GPUs)) || devices != len(m.node.GPUs) || bytes > mostBytes*max(len(m.node.GPUs), 8)/8 {
					t.Errorf("%d slices, %d devices, %d bytes: want one slice, a device a GPU, and at most %d bytes for eight", len(published), devices,
						bytes, mostBytes)
				}
			})
		}
	}
}
