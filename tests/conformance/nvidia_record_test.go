package conformance

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gpufabric.io/fakes/record"
)

// recordsTheProfile: fakefabric record makes of NVIDIA's XML the profile of the fake's rendering.
func recordsTheProfile(t *testing.T, s smi) {
	recorded, err := record.Profile(record.Machine{
		Name: s.Profile.Name, SMI: []byte(s.says(t, "-q", "-x")), Sysfs: filepath.Join(s.root, "sys"),
		ComputeCapability: s.says(t, "--query-gpu=compute_cap", "--format=csv,noheader"),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range record.Compare(recorded, s.Profile) {
		if !untold(s, d.Path) {
			t.Error(d)
		}
	}
}

// untold are the values that neither these versions of nvidia-smi nor sysfs report.
func untold(s smi, path string) bool {
	for _, suffix := range []string{".memoryNodes", "host.numa", "host.architecture", ".acrossHostBridges", ".addressingMode", ".idleWatts",
		".idleCelsius", ".gpuPart", ".atomics", ".hostGeneration", ".memoryIdleWatts"} {
		if strings.HasSuffix(path, suffix) {
			return true
		}
	}
	switch path {
	case "imex": // the command nvidia-imex reports it, which this test does not run
		return true
	case "gpus.platform", "fabric.health": // later versions have them
		return true
	case "gpus.model.architecture":
		return slices.Contains([]string{"blackwell", "rubin"}, s.Profile.GPUs.Model.Architecture)
	case "fabric.cliqueID":
		return strings.HasPrefix(s.Profile.Driver.Version, "535.")
	}
	return false
}
