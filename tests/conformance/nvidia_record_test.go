package conformance

import (
	"path/filepath"
	"strings"
	"testing"

	"gpufabric.io/fakes/record"
)

// recordsTheProfile: what fakefabric record makes of NVIDIA's XML is the profile that the fake was rendered from.
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

// untold is what neither these versions of nvidia-smi nor sysfs report.
func untold(s smi, path string) bool {
	for _, suffix := range []string{".memoryNodes", "host.numa", "host.architecture", ".acrossHostBridges", ".addressingMode", ".idleWatts",
		".idleCelsius"} {
		if strings.HasSuffix(path, suffix) {
			return true
		}
	}
	switch path {
	case "imex": // the command nvidia-imex reports it, which this test does not run
		return true
	case "gpus.model.architecture":
		return s.Profile.GPUs.Model.Architecture == "blackwell"
	case "fabric.cliqueID":
		return strings.HasPrefix(s.Profile.Driver.Version, "535.")
	}
	return false
}
