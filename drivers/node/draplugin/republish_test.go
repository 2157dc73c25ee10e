package draplugin

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

// versioned is a fake API server that names objects and counts their versions, which the library's cache compares.
func versioned() *fake.Clientset {
	client, version := fake.NewClientset(), 0
	stamp := func(object runtime.Object) {
		version++
		slice := object.(*resourceapi.ResourceSlice)
		slice.ResourceVersion = strconv.Itoa(version)
		if slice.Name == "" {
			slice.Name = slice.GenerateName + slice.ResourceVersion
		}
	}
	client.PrependReactor("create", "resourceslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		stamp(action.(clienttesting.CreateAction).GetObject())
		return false, nil, nil
	})
	client.PrependReactor("update", "resourceslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		stamp(action.(clienttesting.UpdateAction).GetObject())
		return false, nil, nil
	})
	return client
}

func oneDevice(name string) resourceslice.DriverResources {
	return resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{
		"pool": {Slices: []resourceslice.Slice{{Devices: []resourceapi.Device{{Name: name}}}}}}}
}

// TestRepublishRestoresRemovedSlice runs the library's own controller. It updates a slice, which is then removed while the library
// still remembers its own write.
func TestRepublishRestoresRemovedSlice(t *testing.T) {
	for _, kept := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			client := versioned()
			start := func(resources resourceslice.DriverResources) (*resourceslice.Controller, func()) {
				ctx, cancel := context.WithCancel(ctx)
				controller, err := resourceslice.StartController(ctx, resourceslice.Options{DriverName: "gpu.nvidia.com", KubeClient: client,
					Resources: &resources})
				if err != nil {
					t.Fatal(err)
				}
				return controller, func() { cancel(); controller.Stop() }
			}
			// The earlier plugin made the slice; this one only changes it.
			_, stop := start(oneDevice("gpu-0"))
			time.Sleep(5 * time.Second)
			stop()
			controller, stop := start(oneDevice("gpu-0"))
			defer stop()
			p := publication{send: func(_ context.Context, resources resourceslice.DriverResources) error {
				controller.Update(&resources)
				return nil
			}}
			count := func() int {
				list, err := client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
				if err != nil {
					t.Fatal(err)
				}
				return len(list.Items)
			}
			if kept {
				go p.keep(ctx, republishInterval)
			}
			time.Sleep(270 * time.Second) // the library has forgotten what it saw
			if err := p.publish(ctx, oneDevice("gpu-1")); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Second)
			list, err := client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if len(list.Items) != 1 || list.Items[0].Spec.Devices[0].Name != "gpu-1" {
				t.Fatalf("published is %+v, want gpu-1", list.Items)
			}
			for _, slice := range list.Items {
				if err := client.ResourceV1().ResourceSlices().Delete(ctx, slice.Name, metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			// Wait for two of our comparisons. The library has not yet compared after its create by then: in this test's stopped time it
			// compares again and again.
			time.Sleep(2 * time.Minute)
			if got := count(); kept && got != 1 {
				t.Errorf("two minutes after the removal there are %d slices, want one", got)
			} else if !kept && got != 0 {
				t.Errorf("the library brings the slice back by itself now (%d slices): publication.keep is not needed any more", got)
			}
		})
	}
}

func TestRepublishOmitsRejectedSlices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var sent []string
		refuse := true
		p := publication{send: func(_ context.Context, resources resourceslice.DriverResources) error {
			if refuse {
				return errors.New("no")
			}
			sent = append(sent, resources.Pools["pool"].Slices[0].Devices[0].Name)
			return nil
		}}
		done := make(chan struct{})
		go func() { defer close(done); p.keep(ctx, time.Minute) }()
		if err := p.publish(ctx, oneDevice("refused")); err == nil {
			t.Error("a refusal was swallowed")
		}
		refuse = false
		time.Sleep(90 * time.Second)
		if err := p.publish(ctx, oneDevice("taken")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		cancel()
		<-done
		if len(sent) != 2 || sent[0] != "taken" || sent[1] != "taken" {
			t.Errorf("sent %v, want what was taken, and that once more", sent)
		}
	})
}
