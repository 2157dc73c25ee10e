package deviceplugin

import (
	"slices"
	"testing"
	"time"

	"gpufabric.io/drivers/node/occupancy"
)

func TestHostReportsAForgottenPodOnceWhenItRunsOn(t *testing.T) {
	var reports []string
	h := &Host{Trouble: func(reason, message string) { reports = append(reports, reason+": "+message) }}
	forgotten := map[string][]User{"GPU-1": {{Pod: "pod-a", Sight: occupancy.Sight{Running: true}}}}
	since := map[string]time.Time{}
	h.reportForgotten(t.Context(), forgotten, since)
	if len(reports) > 0 {
		t.Errorf("reported at once: %q", reports)
	}
	since["GPU-1"] = time.Now().Add(-stillUsedPatience)
	for range 2 {
		h.reportForgotten(t.Context(), forgotten, since)
	}
	want := []string{"DeviceStillUsed: device GPU-1 of a device plugin is still used by a process of the pod with UID pod-a, which the " +
		"kubelet no longer counts: no pod gets it until that has ended"}
	if !slices.Equal(reports, want) {
		t.Errorf("got %q, want %q", reports, want)
	}
	h.reportForgotten(t.Context(), nil, since)
	if len(since) > 0 {
		t.Errorf("devices that are free are remembered: %v", since)
	}
}
