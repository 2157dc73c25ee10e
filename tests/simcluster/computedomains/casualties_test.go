package computedomains

import (
	"path/filepath"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpufabric.io/fakes/imex"
	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/domain"
)

func TestCasualtiesReportToAffectedPodsOnly(t *testing.T) {
	n := shared.Namespace(t)
	const first = 12
	imports := form(n, t, first, 2)
	path := filepath.Join(stateOf(first), imex.FaultsName)
	t.Cleanup(func() {
		if err := imex.WriteFaults(path, imex.Faults{}); err != nil {
			t.Error(err)
		}
	})
	if err := imex.WriteFaults(path, imex.Faults{Failures: 1}); err != nil {
		t.Fatal(err)
	}
	node := cluster.NodeName(first)
	n.AwaitEvent("member-0", "IMEXSessionEnded", node)
	n.AwaitEvent("d", "IMEXSessionEnded", node, "member-0")
	n.AwaitDomain("d", func(d domain.Domain) bool { return domain.ReadyOn(2)(d) && d.Conditions["Degraded"] != "" })
	if imports[0].Alive() || !imports[1].Alive() {
		t.Errorf("memory on the nodes works: %t and %t; the test is wrong", imports[0].Alive(), imports[1].Alive())
	}
	events, err := n.Client.CoreV1().Events(n.Name).List(t.Context(),
		metav1.ListOptions{FieldSelector: "reason=IMEXSessionEnded,involvedObject.name=member-1"})
	if err != nil || len(events.Items) > 0 {
		t.Errorf("the pod of a node whose session goes on: %v, %v", events.Items, err)
	}
}
