package waiting

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/inventory"
)

var began = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// published are the slices of a node with two GPUs of a form.
func published(t *testing.T, node, forms string) []client.Object {
	t.Helper()
	form, err := devices.ParseForms(forms)
	if err != nil {
		t.Fatal(err)
	}
	n := &inventory.Node{DriverVersion: "570.158.01"}
	for i := range 2 {
		n.GPUs = append(n.GPUs, &inventory.GPU{Index: i, Minor: i, UUID: fmt.Sprintf("GPU-%s-%d", node, i), ProductName: "NVIDIA H100 80GB HBM3",
			MemoryBytes: 80 << 30})
	}
	var out []client.Object
	for i, s := range devices.NewPool(n, devices.Options{Forms: form}).Slices(nil) {
		slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", node, i)}}
		slice.Spec = resourceapi.ResourceSliceSpec{Driver: devices.Driver, NodeName: &node, Devices: s.Devices,
			Pool: resourceapi.ResourcePool{Name: devices.PoolName(node)}}
		out = append(out, slice)
	}
	return out
}

func class(name, expression string) client.Object {
	c := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
	c.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}}
	return c
}

// classes are the chart's, and another driver's.
func classes() []client.Object {
	const ours = "device.driver == 'gpu.nvidia.com' && "
	return []client.Object{
		class("gpu.nvidia.com", ours+"device.attributes['gpu.nvidia.com'].type == 'gpu'"),
		class("mig.nvidia.com", ours+"device.attributes['gpu.nvidia.com'].type == 'mig'"),
		class("gpu-share.gpufabric.io", ours+"device.allowMultipleAllocations == true"),
		class("nic", "device.driver == 'rdma.gpufabric.io'"),
	}
}

// claim was made when the clock began. It requests one device of the class, or of the first of several classes that exists.
func claim(name string, classes ...string) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID(name),
		CreationTimestamp: metav1.NewTime(began)}}
	request := resourceapi.DeviceRequest{Name: "r"}
	if len(classes) == 1 {
		request.Exactly = &resourceapi.ExactDeviceRequest{DeviceClassName: classes[0]}
	} else {
		for i, class := range classes {
			request.FirstAvailable = append(request.FirstAvailable, resourceapi.DeviceSubRequest{Name: fmt.Sprint(i), DeviceClassName: class})
		}
	}
	c.Spec.Devices.Requests = []resourceapi.DeviceRequest{request}
	return c
}

// ofPod is a claim that was made from a template for a pod.
func ofPod(c *resourceapi.ResourceClaim, pod string) *resourceapi.ResourceClaim {
	c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod, UID: types.UID(pod), Controller: ptr.To(true)}}
	return c
}

// holding is a claim that has a device of a node.
func holding(name, node, device string) *resourceapi.ResourceClaim {
	c := claim(name, "gpu.nvidia.com")
	c.Status.Allocation = &resourceapi.AllocationResult{}
	c.Status.Allocation.Devices.Results = []resourceapi.DeviceRequestAllocationResult{
		{Request: "r", Driver: devices.Driver, Pool: devices.PoolName(node), Device: device},
	}
	return c
}

// reporterOf makes a reporter over objects with the clock at *now, and returns its Events.
func reporterOf(now *time.Time, funcs interceptor.Funcs, objects ...client.Object) (*reporter, *record.FakeRecorder) {
	scheme := runtime.NewScheme()
	_ = clientgoscheme.AddToScheme(scheme)
	reader := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(funcs).
		WithIndex(&resourceapi.ResourceSlice{}, resourceapi.ResourceSliceSelectorDriver, func(o client.Object) []string {
			return []string{o.(*resourceapi.ResourceSlice).Spec.Driver}
		}).Build()
	events := record.NewFakeRecorder(1000)
	events.IncludeObject = true
	return &reporter{reader: reader, events: events, now: func() time.Time { return *now }, reported: map[types.UID]time.Time{}}, events
}

func all(events *record.FakeRecorder) []string {
	var out []string
	for len(events.Events) > 0 {
		out = append(out, <-events.Events)
	}
	return out
}

func TestWaitingReportsAClaimWithoutItsForm(t *testing.T) {
	full := published(t, "n1", "shareable")
	for i := range full[0].(*resourceapi.ResourceSlice).Spec.Devices {
		c := holding(fmt.Sprint("full-", i), "n1", fmt.Sprint("gpu-", i))
		c.Status.Allocation.Devices.Results[0].ShareID = ptr.To(types.UID(c.Name))
		full = append(full, c)
	}
	full[0].(*resourceapi.ResourceSlice).Spec.Devices = nil // gpus.withdrawFullAfter
	for name, test := range map[string]struct {
		objects []client.Object
		want    []string // in the one Event; none: there is no Event
	}{
		"the form is offered on GPUs that are not published while they are full": {append(full, claim("c", "gpu.nvidia.com")), nil},
		"a MIG instance where GPUs are whole": {
			append(published(t, "n1", "whole"), claim("c", "mig.nvidia.com")),
			[]string{"Warning NoSuchForm Claim c, request r asks for a MIG instance, and no GPU of the cluster is offered so. 1 nodes have GPUs",
				"--claim=team/c", "kind=ResourceClaim"},
		},
		"the pod, where the claim was made for one": {
			append(published(t, "n1", "whole"), ofPod(claim("c", "gpu-share.gpufabric.io"), "train")),
			[]string{"request r asks for a share of a GPU", "kind=Pod"},
		},
		"every alternative is missing": {
			append(published(t, "n1", "whole"), claim("c", "mig.nvidia.com", "gpu-share.gpufabric.io")),
			[]string{"asks for a MIG instance or a share of a GPU"},
		},
		"one alternative can be had": {append(published(t, "n1", "whole"),
			claim("c", "mig.nvidia.com", "gpu.nvidia.com")), nil},
		"one alternative is another driver's": {append(published(t, "n1", "whole"), claim("c", "mig.nvidia.com", "nic")), nil},
		"a claim for another driver":          {append(published(t, "n1", "whole"), claim("c", "nic")), nil},
		"a class that there is not":           {append(published(t, "n1", "whole"), claim("c", "gone")), nil},
		"no GPU is published":                 {[]client.Object{claim("c", "gpu.nvidia.com")}, nil},
		"the form is offered":                 {append(published(t, "n1", "whole"), claim("c", "gpu.nvidia.com")), nil},
		"the form is offered on GPUs that claims hold": {append(published(t, "n1", "whole"), claim("c", "gpu.nvidia.com"),
			holding("a", "n1", "gpu-0"), holding("b", "n1", "gpu-1")), nil},
	} {
		t.Run(name, func(t *testing.T) {
			now := began.Add(patience)
			reporter, events := reporterOf(&now, interceptor.Funcs{}, append(classes(), test.objects...)...)
			if err := reporter.look(t.Context()); err != nil {
				t.Fatal(err)
			}
			got := all(events)
			if test.want == nil && len(got) > 0 || test.want != nil && len(got) != 1 {
				t.Fatalf("got %q, want an Event with %q", got, test.want)
			}
			for _, want := range test.want {
				if !strings.Contains(got[0], want) {
					t.Errorf("%q lacks %q", got[0], want)
				}
			}
			if len(got) > 0 && strings.Contains(got[0], "n1") {
				t.Errorf("%q names a node to a tenant", got[0])
			}
		})
	}
}

func TestWaitingReportsOnceAnHour(t *testing.T) {
	now := began
	reporter, events := reporterOf(&now, interceptor.Funcs{}, slices.Concat(classes(), published(t, "n1", "whole"),
		[]client.Object{claim("c", "mig.nvidia.com")})...)
	for _, step := range []struct {
		after time.Duration
		want  int
	}{{patience - time.Second, 0}, {patience, 1}, {patience + period, 0}, {again, 0}, {again + patience, 1}, {again + patience + period, 0}} {
		now = began.Add(step.after)
		if err := reporter.look(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := all(events); len(got) != step.want {
			t.Errorf("after %v: %q, want %d Events", step.after, got, step.want)
		}
	}
}

func TestThousandsOfClaimsGetAFewEventsAMinuteEachInItsTurn(t *testing.T) {
	objects := append(classes(), published(t, "n1", "whole")...)
	for i := range 3*most - 1 {
		objects = append(objects, claim(fmt.Sprintf("c%d", i), "mig.nvidia.com"))
	}
	now := began.Add(patience)
	reporter, events := reporterOf(&now, interceptor.Funcs{}, objects...)
	for i, want := range []int{most, most, most - 1, 0} {
		if err := reporter.look(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := all(events); len(got) != want {
			t.Errorf("look %d: %d Events, want %d", i, len(got), want)
		}
		now = now.Add(period)
	}
}

func TestWaitingReadsOnlyClaimsWhileNoneWaits(t *testing.T) {
	now := began.Add(patience)
	var read []string
	funcs := interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			read = append(read, fmt.Sprintf("%T", list))
			return c.List(ctx, list, options...)
		},
	}
	reporter, _ := reporterOf(&now, funcs, append(published(t, "n1", "whole"), holding("a", "n1", "gpu-0"))...)
	if err := reporter.look(t.Context()); err != nil {
		t.Fatal(err)
	}
	if want := []string{"*v1.ResourceClaimList"}; !slices.Equal(read, want) {
		t.Errorf("listed %v, want %v", read, want)
	}
}

func TestWaitingIsSilentWithoutGPUs(t *testing.T) {
	now := began.Add(patience)
	funcs := interceptor.Funcs{
		Get: func(_ context.Context, _ client.WithWatch, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
			return apierrors.NewForbidden(resourceapi.Resource("deviceclasses"), key.Name, nil)
		},
	}
	reporter, events := reporterOf(&now, funcs, append(published(t, "n1", "whole"), claim("c", "mig.nvidia.com"))...)
	if err := reporter.look(t.Context()); !apierrors.IsForbidden(err) {
		t.Errorf("got %v, want the API server's refusal", err)
	}
	if got := all(events); len(got) > 0 {
		t.Errorf("got %q", got)
	}
}
