package controller

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
)

// After an edit of the spec the earlier reports remain until each node has processed it.
func TestReportsOnAnEarlierSpecDoNotCount(t *testing.T) {
	entry := func(name string, generation int64, devices int32, conflicts ...string) v1alpha1.RDMAPoolNode {
		return v1alpha1.RDMAPoolNode{Name: name, ObservedGeneration: generation, Devices: devices, HealthyDevices: devices, Units: devices,
			Conflicts: conflicts}
	}
	closed := entry("b", 2, 4)
	closed.Closed = true
	empty := entry("b", 2, 4)
	empty.Units, empty.Message = 0, "the pool has no units"
	for _, test := range []struct {
		name    string
		nodes   []v1alpha1.RDMAPoolNode
		ready   metav1.ConditionStatus
		reason  string
		message string
		devices int32
	}{
		{"none has come to it", []v1alpha1.RDMAPoolNode{entry("a", 1, 8, "mlx5_0: also in b")}, metav1.ConditionFalse, reasonWaiting, "no node",
			0},
		{
			"one has", []v1alpha1.RDMAPoolNode{entry("a", 2, 4), entry("b", 1, 8, "mlx5_0: also in b"), entry("c", 1, 8)}, metav1.ConditionFalse,
			reasonWaiting,
			"1 of 3 nodes reported on this generation: 4 of 4 devices can carry traffic, on 1 node; waiting for b; c", 4,
		},
		{"all have", []v1alpha1.RDMAPoolNode{entry("a", 2, 4), entry("b", 2, 4)}, metav1.ConditionTrue, reasonHealthy, "8 of 8 devices", 8},
		{"one has nothing to allocate", []v1alpha1.RDMAPoolNode{entry("a", 2, 4), empty}, metav1.ConditionFalse, reasonNoUnits,
			"8 of 8 devices can carry traffic, on 2 nodes; nothing can be allocated on b (the pool has no units)", 8},
		{"one is in exclusive mode", []v1alpha1.RDMAPoolNode{entry("a", 2, 4), closed}, metav1.ConditionFalse, reasonClosed,
			"8 of 8 devices can carry traffic, on 2 nodes; on 1 node (b) the node's RDMA devices are in exclusive mode", 8},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := &v1alpha1.RDMAPool{ObjectMeta: metav1.ObjectMeta{Name: "p", Generation: 2}, Spec: v1alpha1.RDMAPoolSpec{
				RDMAPoolConfig: v1alpha1.RDMAPoolConfig{ResourceName: "p", RDMAHCAMax: 8,
					Selectors: &v1alpha1.RDMASelectors{Vendors: []string{"15b3"}}},
			}, Status: v1alpha1.RDMAPoolStatus{Nodes: test.nodes}}
			s := summarise(p, false, time.Now())
			ready, conflicting := condition(s, v1alpha1.RDMAPoolReady), condition(s, v1alpha1.RDMAPoolConflicting)
			if ready.Status != test.ready || ready.Reason != test.reason || !strings.Contains(ready.Message, test.message) ||
				s.Devices != test.devices {
				t.Errorf("%d devices, %+v", s.Devices, ready)
			}
			if conflicting.Status != metav1.ConditionFalse {
				t.Errorf("a conflict of the earlier spec: %+v", conflicting)
			}
		})
	}
}
