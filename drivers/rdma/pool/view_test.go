package pool

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	source "k8s.io/client-go/tools/cache/testing"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
)

// synced is an informer that has listed one object.
func synced(t *testing.T, object runtime.Object) cache.SharedIndexInformer {
	t.Helper()
	listed := source.NewFakeControllerSource()
	t.Cleanup(listed.Shutdown)
	listed.Add(object)
	informer := cache.NewSharedIndexInformer(listed, object, 0, nil)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); informer.RunWithContext(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	if !cache.WaitForCacheSync(t.Context().Done(), informer.HasSynced) {
		t.Fatal("the informer has not listed its object")
	}
	return informer
}

// An interrupted watch shows a deletion and the next object of the name as one change.
func TestViewReportsWhenAnObjectIsMadeAgainUnderItsName(t *testing.T) {
	pool := func(uid types.UID, units int32) *v1alpha1.RDMAPool {
		return &v1alpha1.RDMAPool{ObjectMeta: metav1.ObjectMeta{Name: "rails", UID: uid, Generation: 1},
			Spec: v1alpha1.RDMAPoolSpec{RDMAPoolConfig: v1alpha1.RDMAPoolConfig{ResourceName: "a", RDMAHCAMax: units}}}
	}
	node := func(uid types.UID) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a", UID: uid}}
	}
	pools, nodes := synced(t, pool("first", 8)), synced(t, node("node"))
	var reported []Object
	v := &view{changed: func(pools []Object) { reported = append(reported, pools...) }}
	v.update("node-a", pools, nodes)
	v.update("node-a", pools, nodes) // a heartbeat
	if len(reported) != 1 || reported[0].UID != "first" || reported[0].Node != "node" {
		t.Fatalf("reported %+v, want the pool once", reported)
	}
	if err := pools.GetStore().Update(pool("second", 16)); err != nil {
		t.Fatal(err)
	}
	v.update("node-a", pools, nodes)
	if len(reported) != 2 || reported[1].Config.RDMAHCAMax != 16 {
		t.Fatalf("reported %+v, want the second pool of the name too", reported)
	}
	if err := nodes.GetStore().Update(node("registered again")); err != nil {
		t.Fatal(err)
	}
	v.update("node-a", pools, nodes)
	if len(reported) != 3 || reported[2].Node != "registered again" {
		t.Fatalf("reported %+v, want the pool for the Node that registered again", reported)
	}
}
