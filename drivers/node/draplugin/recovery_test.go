package draplugin

import (
	"os"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"gpufabric.io/drivers/node/atomicfile"
)

// A plugin that is killed while it unprepares leaves a record without a spec, of a claim that the API still has. When it is back, the kubelet's
// second try may come while recovery looks the claim up: what it took away must not come back, since nobody would take it away again.
func TestAClaimThatIsUnpreparedWhileItIsLookedUpStaysSo(t *testing.T) {
	dir, claim := t.TempDir(), claimOf("u1", "d0")
	b := newBench(t, dir, atomicfile.Writer{}, claim)
	b.mustPrepare(t, claim)
	if err := os.Remove(b.cdi.Path("u1")); err != nil {
		t.Fatal(err)
	}
	again := newBench(t, dir, atomicfile.Writer{}, claim)
	lookedUp := false
	again.client.PrependReactor("get", "resourceclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
		lookedUp = true
		results, err := again.UnprepareResourceClaims(t.Context(), []kubeletplugin.NamespacedObject{{UID: "u1"}})
		if err != nil || results["u1"] != nil {
			t.Errorf("unprepare: %v, %v", err, results["u1"])
		}
		return false, nil, nil
	})
	again.recoverFromAPI(t.Context())
	if _, recorded := again.state.Get("u1"); !lookedUp || recorded || again.cdi.Has("u1") {
		t.Errorf("looked up: %t; has a record: %t, a spec: %t; want none", lookedUp, recorded, again.cdi.Has("u1"))
	}
	again.mustPrepare(t, claimOf("u2", "d0"))
	if len(again.kind.unprepared) != 1 {
		t.Errorf("unprepared %d claims, want the one", len(again.kind.unprepared))
	}
}
