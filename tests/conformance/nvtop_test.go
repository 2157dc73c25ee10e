package conformance

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// TestNvtopShowsEveryGPU takes nvtop's snapshot. The program and its libraries may be from a newer Debian than the machine, so
// it runs under the loader of that release.
func TestNvtopShowsEveryGPU(t *testing.T) {
	program := nvidiaProgram(t, "nvtop", "3.", "usr/bin/nvtop")
	loader := nvidiaProgram(t, "libc6", "2.", "usr/lib/*/ld-linux-*.so.*")
	var libraries []string
	for _, pkg := range []string{"libc6", "libncursesw6", "libtinfo6", "libsystemd0", "libcap2"} {
		libraries = append(libraries, filepath.Dir(nvidiaProgram(t, pkg, "", "usr/lib/*/lib*.so*")))
	}
	for _, name := range withGPUs(t) {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, name)
			path := strings.Join(append([]string{filepath.Join(n.root, "driver/usr/lib64")}, libraries...), ":")
			out, _ := n.run(t, loader, "--library-path", path, program, "-s")
			var gpus []struct {
				Name        string `json:"device_name"`
				Temperature string `json:"temp"`
			}
			if err := json.Unmarshal([]byte(out), &gpus); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			m := n.Profile.GPUs.Model
			if len(gpus) != len(n.GPUs) || gpus[0].Name != m.Name || gpus[0].Temperature != fmt.Sprintf("%dC", m.IdleCelsius) {
				t.Errorf("nvtop sees %v; want %d of %s at %dC", gpus, len(n.GPUs), m.Name, m.IdleCelsius)
			}
		})
	}
}
