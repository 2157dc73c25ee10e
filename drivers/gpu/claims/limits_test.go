package claims

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/node/draplugin"
)

// A GPU without memory of its own (GB10) is divided by its cores alone.
func TestLimitsHoldShareToItsCoresWhenGPUHasNoMemory(t *testing.T) {
	const gpu = "GPU-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"
	of := func(capacities map[resourceapi.QualifiedName]string) draplugin.AllocatedDevice {
		consumed := map[resourceapi.QualifiedName]resource.Quantity{}
		for name, amount := range capacities {
			consumed[name] = resource.MustParse(amount)
		}
		return draplugin.AllocatedDevice{DeviceRequestAllocationResult: resourceapi.DeviceRequestAllocationResult{ConsumedCapacity: consumed}}
	}
	for name, c := range map[string]struct {
		consumed   map[resourceapi.QualifiedName]string
		text, note string
	}{
		"cores alone": {map[resourceapi.QualifiedName]string{devices.CapCores: "50"}, gpu + " 0 50\n", "to 50 % of the cores of"},
		"all cores":   {map[resourceapi.QualifiedName]string{devices.CapCores: "100"}, "", ""},
		"memory and cores": {map[resourceapi.QualifiedName]string{devices.CapMemory: "1Gi", devices.CapCores: "50"},
			gpu + " 1073741824 50\n", "to 1Gi of memory and 50 % of the cores of"},
		"a counted share":       {map[resourceapi.QualifiedName]string{devices.CapMemory: "0", devices.CapShares: "1"}, "", ""},
		"memory, not the cores": {map[resourceapi.QualifiedName]string{devices.CapMemory: "1Gi"}, gpu + " 1073741824 0\n", "to 1Gi of memory of"},
	} {
		t.Run(name, func(t *testing.T) {
			l := Limits{Library: t.TempDir(), Files: t.TempDir()}
			edits, err := l.edits("u1", 0, gpu, of(c.consumed))
			if err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(filepath.Join(l.Files, "u1_0"))
			if err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			if _, limits, _ := strings.Cut(string(text), "\n"); limits != c.text || (len(edits.Mounts) > 0) != (c.text != "") {
				t.Errorf("limits %q and %d mounts, want %q", limits, len(edits.Mounts), c.text)
			}
			if note := l.note(gpu, of(c.consumed), 1); (note == "") != (c.note == "") || !strings.Contains(note, c.note) {
				t.Errorf("note %q, want %q", note, c.note)
			}
		})
	}
}
