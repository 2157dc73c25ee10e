package vgpu

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/utils/ptr"

	"gpufabric.io/drivers/scheduler/cards"
	"gpufabric.io/drivers/vgpu/annotation"
)

const uuid = "GPU-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"

// clientHandle is a framework of which only the client is used.
type clientHandle struct {
	fwk.Handle
	client kubernetes.Interface
}

func (h clientHandle) ClientSet() kubernetes.Interface { return h.client }

// always reports that every pod exists.
func always(*corev1.Pod) bool { return true }

var resources = annotation.Resources{Number: "x/number", Memory: "x/memory", Cores: "x/cores"}

func waiting(annotations map[string]string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "uid-p", Annotations: annotations}}
	limits := corev1.ResourceList{"x/number": resource.MustParse("1"), "x/memory": resource.MustParse("4")}
	p.Spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Limits: limits}}}
	return p
}

// binder is a plugin with shares reserved for the pod; the test answers its bindings.
func binder(t *testing.T, answer func(*corev1.Binding) error) *Plugin {
	t.Helper()
	client := fake.NewClientset(waiting(nil))
	client.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.GetSubresource() != "binding" {
			t.Errorf("pods/%s was written", action.GetSubresource())
		}
		binding := action.(clienttesting.CreateAction).GetObject().(*corev1.Binding)
		if err := answer(binding); err != nil {
			return true, nil, err
		}
		pod := waiting(binding.Annotations)
		pod.Spec.NodeName = binding.Target.Name
		return true, binding, client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), pod, "default")
	})
	client.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		t.Error("a pod was patched, which the scheduler has no right to")
		return false, nil, nil
	})
	p := &Plugin{handle: clientHandle{client: client}, ledger: newLedger(resources, always),
		now: func() time.Time { return time.Unix(1763000000, 0) }}
	p.ledger.assume("uid-p", "n", [][]annotation.Share{{{UUID: uuid, Memory: 4, Cores: 30}}})
	return p
}

func TestPluginBindsAPodWithItsShares(t *testing.T) {
	var bound *corev1.Binding
	p := binder(t, func(b *corev1.Binding) error {
		bound = b
		return nil
	})
	if status := p.Bind(t.Context(), attempt(), waiting(nil), "n"); !status.IsSuccess() {
		t.Fatal(status)
	}
	want := map[string]string{annotation.PodNode: "n", annotation.PodTime: "1763000000", annotation.PodDevices: uuid + ",NVIDIA,4,30:;",
		annotation.PodPending: uuid + ",NVIDIA,4,30:;", annotation.BindPhase: "allocating", annotation.BindTime: "1763000000"}
	if diff := cmp.Diff(want, bound.Annotations); diff != "" || bound.UID != "uid-p" || bound.Target.Name != "n" {
		t.Errorf("bound %s to %s (-want +got):\n%s", bound.UID, bound.Target.Name, diff)
	}
	// A pod that was bound after all keeps its shares, though the attempt seemed to fail.
	p.Unreserve(t.Context(), attempt(), waiting(nil), "n")
	if p.ledger.assumed("uid-p") == nil {
		t.Error("the shares of a bound pod are forgotten")
	}
}

func TestPluginLeavesAnotherPodToTheNextBinder(t *testing.T) {
	p := binder(t, func(*corev1.Binding) error { return errors.New("it was bound") })
	if status := p.Bind(t.Context(), framework.NewCycleState(), waiting(nil), "n"); status.Code() != fwk.Skip {
		t.Errorf("status %v, want it skipped", status)
	}
}

func TestPluginFreesSharesOfAPodThatIsNotBound(t *testing.T) {
	p := binder(t, func(*corev1.Binding) error { return errors.New("refused") })
	if status := p.Bind(t.Context(), attempt(), waiting(nil), "n"); status.Code() != fwk.Error ||
		!strings.Contains(status.Message(), "bind pod default/p to node n with its shares: refused") {
		t.Errorf("status %v, want an error that names the pod", status)
	}
	done, cancel := context.WithCancel(t.Context())
	cancel() // the attempt's own context has ended
	p.Unreserve(done, attempt(), waiting(nil), "n")
	if p.ledger.assumed("uid-p") != nil {
		t.Error("the shares are not given back")
	}
}

func TestLedgerPrefersAnnotationsToItsMemory(t *testing.T) {
	l := newLedger(resources, always)
	l.assume("uid-p", "n", [][]annotation.Share{{{UUID: uuid, Memory: 1}}})
	written := func(node, devices string) map[string]string {
		return map[string]string{annotation.PodNode: node, annotation.PodDevices: devices}
	}
	for _, test := range []struct {
		name        string
		annotations map[string]string
		node        string
		want        int64
		placed      bool
	}{
		{"chosen and not yet written", nil, "n", 1, true},
		{"chosen for another node", nil, "m", 0, false},
		{"written", written("n", uuid+",NVIDIA,2,0:;"), "n", 2, true},
		{"written by Volcano", written("n", uuid+",NVIDIA,3,0:"), "n", 3, true},
		{"written for another node, from an attempt before", written("m", uuid+",NVIDIA,4,0:;"), "n", 1, true},
		{"rubbish of somebody else", written("n", "rubbish"), "n", 0, false},
		{"forged: more than the pod asks for", written("n", uuid+",NVIDIA,5,0:;"), "n", 0, false},
		{"forged: shares of a second container", written("n", uuid+",NVIDIA,2,0:;"+uuid+",NVIDIA,2,0:;"), "n", 0, false},
	} {
		shares, placed := l.shares(waiting(test.annotations), test.node)
		var got int64
		if len(shares) > 0 {
			got = shares[0][0].Memory
		}
		if got != test.want || placed != test.placed {
			t.Errorf("%s: %v, %t; want memory %d, %t", test.name, shares, placed, test.want, test.placed)
		}
	}
	l.forget("uid-p")
	if _, placed := l.shares(waiting(nil), "n"); placed {
		t.Error("a forgotten pod still has shares")
	}
}

// The pod was deleted during a cycle, which sees the pods that existed when it began.
func TestLedgerForgetsAPodThatIsGone(t *testing.T) {
	gone := false
	l := newLedger(resources, func(*corev1.Pod) bool { return !gone })
	seen := waiting(map[string]string{annotation.PodNode: "n", annotation.PodDevices: uuid + ",NVIDIA,2,0:;"})
	gone = true
	l.forget(seen.UID)
	if shares, placed := l.shares(seen, "n"); !placed || shares[0][0].Memory != 2 {
		t.Errorf("%v, %t; want what the cycle sees", shares, placed)
	}
	if len(l.pods) != 0 {
		t.Error("it is remembered for ever")
	}
}

func TestTopologyFollowsTheSlicesOfTheGPUDriver(t *testing.T) {
	slice := func(driver string) *resourceapi.ResourceSlice {
		return &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"},
			Spec: resourceapi.ResourceSliceSpec{Driver: driver, NodeName: ptr.To("n"),
				Devices: []resourceapi.Device{{Name: "gpu-0", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
					"uuid": {StringValue: ptr.To(uuid)}, "nvlinkDomain": {StringValue: ptr.To("c0ffee")},
					"resource.kubernetes.io/numaNode": {IntValue: ptr.To(int64(1))}, "gpufabric.io/pcieSwitch": {StringValue: ptr.To("0000:0a:00.0")}}}}}}
	}
	topo := newTopology()
	topo.set(slice("another.example"))
	if got := topo.near("n", uuid); got != (cards.Near{}) {
		t.Errorf("another driver's device counts: %+v", got)
	}
	topo.set(slice("gpu.nvidia.com"))
	if got, want := topo.near("n", uuid), (cards.Near{NVLink: "c0ffee", NUMA: "1", Switch: "0000:0a:00.0"}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	topo.remove(slice("gpu.nvidia.com"))
	if got := topo.near("n", uuid); got != (cards.Near{}) {
		t.Errorf("a slice that is gone counts: %+v", got)
	}
}

func TestWrongArgumentsAreRefused(t *testing.T) {
	for raw, part := range map[string]string{
		`{"nodePolicy":"numa"}`: `node policy "numa", where binpack and spread`,
		`{"policy":"spread"}`:   "policy",
		`{"nodeLock":"always"}`: "nodeLock",
	} {
		if _, err := New(t.Context(), &runtime.Unknown{Raw: []byte(raw)}, nil); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%s: error %v, want one with %q", raw, err, part)
		}
	}
}

func TestPluginRetriesAPodWhoseAnnotationsChange(t *testing.T) {
	mode := func(uid types.UID, mode string) *corev1.Pod {
		p := waiting(map[string]string{annotation.PodMode: mode})
		p.UID = uid
		return p
	}
	written := mode("uid-p", "mgi")
	written.Annotations[annotation.PodNode] = "n"
	for _, test := range []struct {
		name          string
		before, after any
		want          fwk.QueueingHint
	}{
		{"its mode", mode("uid-p", "mgi"), mode("uid-p", "mig"), fwk.Queue},
		{"another pod's mode", mode("uid-q", "mgi"), mode("uid-q", "mig"), fwk.QueueSkip},
		{"what an attempt wrote", mode("uid-p", "mgi"), written, fwk.QueueSkip},
		{"something else", nil, nil, fwk.QueueSkip},
	} {
		if got, err := mended(klog.Background(), waiting(nil), test.before, test.after); got != test.want || err != nil {
			t.Errorf("%s: %v (%v), want %v", test.name, got, err, test.want)
		}
	}
}

func TestMalformedMIGSlotsDoNotBlockOtherPods(t *testing.T) {
	p := &Plugin{ledger: newLedger(resources, always), topology: newTopology(),
		resources: resources}
	some := *resource.NewQuantity(10, resource.DecimalSI)
	info := framework.NewNodeInfo()
	info.SetNode(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: map[string]string{annotation.NodeRegister: uuid +
			",10,4914,NVIDIA-L40S,true,hami-core:", annotation.NodeMIGSlots: "rubbish"}},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{"x/number": some, "x/memory": some, "x/cores": some}},
	})
	if node, err := p.node(info, waiting(nil)); err != nil || len(node) != 1 {
		t.Errorf("got %v (%v), want the node's GPU", node, err)
	}
	if _, err := p.node(info, waiting(map[string]string{annotation.PodMode: "mig"})); err == nil ||
		!strings.Contains(err.Error(), annotation.NodeMIGSlots) {
		t.Errorf("got %v, want the annotation named to a pod that wants a MIG instance", err)
	}
}
