package controller

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpufabric.io/drivers/api/resource/v1beta1"
)

func TestReadyConditionNamesMissingFabricWhenNodesWithoutFabricHaveNoChannel(t *testing.T) {
	for name, c := range map[string]struct {
		everywhere       bool
		numNodes, fabric int
		joined           bool
		want             string
	}{
		"no node has fabric": {numNodes: 2, want: "; nodes without NVLink fabric have no channel (computeDomains.nodesWithoutFabric is false), " +
			"and 0 nodes of the cluster have fabric"},
		"too few nodes have fabric":      {numNodes: 2, fabric: 1, want: "and 1 node of the cluster has fabric"},
		"no number of nodes is required": {want: "and 0 nodes of the cluster have fabric"},
		"enough nodes have fabric":       {numNodes: 2, fabric: 2},
		"the domain's nodes have joined": {numNodes: 1, joined: true},
		"every node has a channel":       {numNodes: 2, everywhere: true},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDomain("d", c.numNodes)
			cl := newCluster(t, d)
			cl.reconciler.settings.FabricOnly = !c.everywhere
			cl.must(cl.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "board"}}))
			for i := range c.fabric {
				cl.must(cl.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "tray-" + string(rune('a'+i)),
					Labels: map[string]string{v1beta1.LabelClique: clique}}}))
			}
			cl.settle(d.UID)
			if c.joined {
				cl.join(d, "board", "10.0.0.1", isReady)
				cl.settle(d.UID)
			}
			got := cl.domain("d").Status.Conditions[0]
			if explains := strings.Contains(got.Message, "without NVLink fabric"); got.Type != v1beta1.ConditionReady ||
				explains != (c.want != "") || !strings.HasSuffix(got.Message, c.want) {
				t.Errorf("condition %s: %q, want %q at its end", got.Type, got.Message, c.want)
			}
		})
	}
}
