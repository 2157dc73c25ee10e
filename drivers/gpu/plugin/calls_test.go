package plugin

import (
	"testing"

	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"gpufabric.io/drivers/gpu/gputest"
)

// The helper library fails such a call before the driver sees it.
func TestMetricsCountUnreadableClaim(t *testing.T) {
	b := newBench(t, gputest.New(t, 1))
	_, err := b.kubelet.NodePrepareResources(t.Context(), &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{{Namespace: "default",
		Name: "gone", Uid: "u1"}}})
	if err == nil {
		t.Fatal("a claim that is not there was prepared")
	}
	families, err := b.running().metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != "gpufabric_claim_errors_total" {
			continue
		}
		for _, metric := range family.Metric {
			for _, label := range metric.Label {
				if label.GetName() == "reason" && label.GetValue() == "ClaimNotRead" && metric.Counter.GetValue() == 1 {
					return
				}
			}
		}
	}
	t.Errorf("no error of reason ClaimNotRead was counted once: %v", families)
}
