package findings

import (
	"testing"
)

func TestTableHasEachCodeOnceWithARemedy(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range Table() {
		if seen[f.Code] {
			t.Errorf("%s is there twice", f.Code)
		}
		seen[f.Code] = true
		if (f.Do == "") != (f.Stage == Healthy) {
			t.Errorf("%s at %s says %q to do", f.Code, f.Stage, f.Do)
		}
		if again, ok := Find(f.Code); !ok || again != f {
			t.Errorf("%s is not found", f.Code)
		}
	}
}

func TestAnchorsAreThoseOfMarkdown(t *testing.T) {
	for heading, want := range map[string]string{"DriverNotFound": "drivernotfound", "gpu.nvidia.com/xid": "gpunvidiacomxid",
		"A pod is not scheduled": "a-pod-is-not-scheduled"} {
		if got := Anchor(heading); got != want {
			t.Errorf("%s has the anchor %s, want %s", heading, got, want)
		}
	}
}
