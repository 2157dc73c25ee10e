package plugin

import (
	"errors"
	"fmt"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/gpu/gputest"
	"gpufabric.io/drivers/node/deviceplugin/kubelettest"
	"gpufabric.io/drivers/node/occupancy/occupancytest"
)

// used gives a claim its pod.
func (b *bench) used(c *resourceapi.ResourceClaim, pod string) {
	b.Helper()
	c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: pod, UID: types.UID(pod)}}
	if err := b.client.Tracker().Update(resourceapi.SchemeGroupVersion.WithResource("resourceclaims"), c, c.Namespace); err != nil {
		b.Fatal(err)
	}
}

// TestPrepareGivesADeviceOnceWhenPodsAreForceDeleted takes each kind of device from pods whose containers are processes in the kernel's
// cgroups and run on. The kubelet asks to unprepare the claim meanwhile, as its reconcile loop does.
func TestPrepareGivesADeviceOnceWhenPodsAreForceDeleted(t *testing.T) {
	t.Parallel() // it waits
	one := func(d device) func(int) device { return func(int) device { return d } }
	// The machine's driver gives each instance of a GPU another number, and has device nodes for the first 14.
	mig := func(placed string) func(int) device {
		return func(try int) device { return device{name: fmt.Sprintf("gpu-%d-mig-%s", 2+try/7, placed)} }
	}
	share := device{name: "gpu-1-shared", share: "s1", capacity: map[string]string{"memory": "8Gi", "cores": "20"}}
	b := newBench(t, gputest.New(t, 2+(occupancytest.Tries+6)/7))
	pods := occupancytest.Real(t, b.options.Cgroups().Path)
	for _, kind := range []struct {
		name, id    string
		first, next func(try int) device
	}{
		{"a whole GPU", "whole", one(device{name: "gpu-0"}), one(device{name: "gpu-0"})},
		{"a MIG instance, then one that overlaps it", "mig", mig("1g5gb-19-0"), mig("3g20gb-9-0")},
		{"a share, then its whole GPU", "share", one(share), one(device{name: "gpu-1"})},
	} {
		t.Run(kind.name, func(t *testing.T) {
			pods.On(t).Taken(func(try int, pod string) {
				c := b.claim(kind.id+"-"+pod, nil, kind.first(try))
				b.used(c, pod)
				b.mustPrepare(c)
			}, func(pod string) error {
				claims := b.client.ResourceV1().ResourceClaims("default")
				c, err := claims.Get(t.Context(), "claim-"+kind.id+"-"+pod, metav1.GetOptions{})
				if err == nil {
					err = claims.Delete(t.Context(), c.Name, metav1.DeleteOptions{})
				}
				if err != nil {
					return err
				}
				if problem := b.unprepare(c); problem != "" {
					return errors.New(problem)
				}
				return nil
			}, func(try int) {
				c := b.claim(fmt.Sprintf("%s-next-%d", kind.id, try), nil, kind.next(try))
				b.mustPrepare(c)
				if problem := b.unprepare(c); problem != "" {
					t.Errorf("unprepare the next claim: %s", problem)
				}
			})
		})
	}
}

// The device plugin API lets no plugin free a device: an allocation waits for the container of the pod that the kubelet forgot. The kubelet
// forgets it in memory before it asks (UpdateAllocatedDevices), and writes its checkpoint after the answer.
func TestNvidiaComGPUIsAllocatedOnceWhenPodsAreForceDeleted(t *testing.T) {
	t.Parallel() // it waits
	const resource = "nvidia.com/gpu"
	m := gputest.New(t, 1)
	kubelet := kubelettest.New(t)
	kubelet.Start()
	b := newBench(t, m, func(o *Options) { o.KubeletRoot, o.DevicePlugin = kubelet.Root(), []string{"all"} })
	pods := occupancytest.Real(t, b.options.Cgroups().Path)
	kubelet.AwaitAllocatable(resource, 1)
	allocate := func(int) {
		if _, err := kubelet.AllocateIDs(t.Context(), resource, m.GPUs[0].UUID); err != nil {
			t.Fatal(err)
		}
	}
	pods.Taken(func(try int, pod string) {
		allocate(try)
		kubelet.Record(resource, map[string][]string{pod: {m.GPUs[0].UUID}})
	}, func(string) error { return nil }, func(try int) {
		allocate(try)
		kubelet.Record(resource, nil)
	})
}
