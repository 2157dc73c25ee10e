package draplugin

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"

	"gpufabric.io/drivers/node/atomicfile"
)

func TestPublishIsImmediateOnlyWithoutOwnSlices(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a", UID: "uid-a"}}
	pools := resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{"pool": {Slices: []resourceslice.Slice{
		{Devices: []resourceapi.Device{{Name: "d0"}}}, {Devices: []resourceapi.Device{{Name: "d1"}}},
	}}}}
	slice := func(name, pool string) runtime.Object {
		return &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: resourceapi.ResourceSliceSpec{Driver: driver, NodeName: ptr.To("node-a"), Pool: resourceapi.ResourcePool{Name: pool}}}
	}
	for name, c := range map[string]struct {
		there   []runtime.Object
		creates int
		fails   bool
	}{
		"a new node":                                 {there: []runtime.Object{node}, creates: 2},
		"a node whose plugin was started again":      {there: []runtime.Object{node, slice("00000-x", "pool")}},
		"a node that another driver of the name had": {there: []runtime.Object{node, slice("00000-x", "node-a")}, creates: 2},
		"no node object":                             {fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, t.TempDir(), atomicfile.Writer{}, c.there...)
			named := 0
			// The fake API server does not implement generateName.
			b.client.PrependReactor("create", "resourceslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
				slice := action.(clienttesting.CreateAction).GetObject().(*resourceapi.ResourceSlice)
				slice.Name = fmt.Sprintf("%s%d", slice.GenerateName, named)
				named++
				return false, nil, nil
			})
			if err := b.createSlices(t.Context(), pools); (err != nil) != c.fails {
				t.Fatal(err)
			}
			if named != c.creates {
				t.Errorf("created %d slices, want %d", named, c.creates)
			}
			if c.creates == 0 {
				return
			}
			list, err := b.client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if len(list.Items) != c.creates {
				t.Errorf("the node has %d slices, want %d: those of another driver of the name go", len(list.Items), c.creates)
			}
			for i, slice := range list.Items {
				if got := slice.Spec.Pool; got != (resourceapi.ResourcePool{Name: "pool", Generation: 1, ResourceSliceCount: 2}) {
					t.Errorf("pool %+v", got)
				}
				if want := fmt.Sprintf("%05x-%s-node-a-", i, driver); slice.GenerateName != want || slice.OwnerReferences[0].UID != "uid-a" {
					t.Errorf("slice %d is named by %q and owned by %+v", i, slice.GenerateName, slice.OwnerReferences)
				}
			}
		})
	}
}
