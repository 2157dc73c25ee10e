// Package capabilitytest plays an API server's feature gates on a fake clientset.
package capabilitytest

import (
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"gpufabric.io/drivers/node/capability"
)

// DryRuns answers dry runs of ResourceSlices, which the fake clientset would store, without the fields of what missing returns.
func DryRuns(client *fake.Clientset, missing func() capability.Missing) {
	client.PrependReactor("create", "resourceslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		create, ok := action.(clienttesting.CreateActionImpl)
		if !ok || len(create.CreateOptions.DryRun) == 0 || create.CreateOptions.DryRun[0] != metav1.DryRunAll {
			return false, nil, nil
		}
		slice := create.Object.(*resourceapi.ResourceSlice).DeepCopy()
		Drop(slice, missing())
		return true, slice, nil
	})
}

// All is a server that keeps every field.
func All() capability.Missing { return capability.Missing{} }

// Drop removes the fields that a server drops.
func Drop(slice *resourceapi.ResourceSlice, missing capability.Missing) {
	if missing.Counters {
		slice.Spec.SharedCounters = nil
	}
	for i := range slice.Spec.Devices {
		d := &slice.Spec.Devices[i]
		if missing.Taints {
			d.Taints = nil
		}
		if missing.Counters {
			d.ConsumesCounters = nil
		}
		if missing.Shares {
			d.AllowMultipleAllocations = nil
		}
	}
}
