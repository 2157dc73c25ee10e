package vgpu

import (
	"context"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"gpufabric.io/drivers/vgpu/annotation"
)

// refused lets the filter refuse a pod on the locked node, and returns when the background work of that has ended.
func refused(t *testing.T, p *Plugin, client *fake.Clientset) {
	t.Helper()
	var begun sync.WaitGroup
	p.background = func(do func(context.Context)) { begun.Go(func() { do(t.Context()) }) }
	node, err := client.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	info := framework.NewNodeInfo()
	info.SetNode(node)
	for range 3 { // as many pods as wait
		if status := p.Filter(t.Context(), attempt(), waiting(nil), info); status.Code() != fwk.Unschedulable {
			t.Errorf("status %v, want the pod to wait", status)
		}
	}
	begun.Wait()
	if len(p.locks.left) != 0 {
		t.Errorf("%v are looked after still", p.locks.left)
	}
}

// The scheduler's clock is at 2025-11-13T02:13:20Z.
func TestOrphanLockOfADeadSchedulerIsRemoved(t *testing.T) {
	const left = "2025-11-13T02:12:59.123456789Z"
	served := map[string]string{annotation.BindTime: "1762999979", annotation.BindPhase: "success"}
	allocating := map[string]string{annotation.BindTime: "1762999979", annotation.BindPhase: bindAllocating}
	later := map[string]string{annotation.BindTime: "1763000019", annotation.BindPhase: bindAllocating}
	for _, test := range []struct {
		name, lock  string
		node        string // of the pod, where it is bound
		annotations map[string]string
		phase       corev1.PodPhase
		want        string
	}{
		{"before it bound the pod", left, "", nil, "", ""},
		{"the pod has its shares", left, "n", served, "", ""},
		{"the pod ended unserved", left, "n", allocating, corev1.PodFailed, ""},
		{"the pod is on another node", left, "other", allocating, "", ""},
		{"another pod of a later time waits for its shares", left, "n", later, "", ""},
		{"the pod waits for its shares", left, "n", allocating, "", left},
		{"Volcano's lock", "2025-11-13T02:12:59Z", "", nil, "", "2025-11-13T02:12:59Z"},
		{"HAMi's lock", "2025-11-13T02:12:59Z,default,p", "", nil, "", "2025-11-13T02:12:59Z,default,p"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, client := locking(t, test.lock)
			pod := waiting(test.annotations)
			pod.Spec.NodeName, pod.Status.Phase = test.node, test.phase
			if err := client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), pod, "default"); err != nil {
				t.Fatal(err)
			}
			refused(t, p, client)
			if got := lockOf(t, client); got != test.want {
				t.Errorf("the lock is %q, want %q", got, test.want)
			}
		})
	}
}

// The pod of a dead scheduler's lock was bound and never served. At its end the lock goes, as this scheduler's own would.
func TestOrphanLockOfABoundPodIsTakenOver(t *testing.T) {
	const left = "2025-11-13T02:12:59.123456789Z"
	p, client := locking(t, left)
	pod := waiting(map[string]string{annotation.BindTime: "1762999979", annotation.BindPhase: bindAllocating})
	pod.Spec.NodeName = "n"
	if err := client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), pod, "default"); err != nil {
		t.Fatal(err)
	}
	refused(t, p, client)
	if got := lockOf(t, client); got != left {
		t.Fatalf("the lock is %q", got)
	}
	refused(t, p, client) // it is this scheduler's now, so it is not handled again
	if own := p.locks.taken[types.UID("uid-p")]; own != (lock{"n", left}) {
		t.Errorf("the pod's lock is %v", own)
	}
	var begun sync.WaitGroup
	p.background = func(do func(context.Context)) { begun.Go(func() { do(t.Context()) }) }
	p.pods().OnDelete(pod)
	begun.Wait()
	if got := lockOf(t, client); got != "" {
		t.Errorf("the lock is %q still", got)
	}
}

func TestOrphanExcludesLocksOfThisScheduler(t *testing.T) {
	p, client := locking(t, "")
	p.now = func() time.Time { return time.Unix(1763000000, 500) } // clocks do not show whole seconds
	if status := p.PreBind(t.Context(), attempt(), waiting(nil), "n"); !status.IsSuccess() {
		t.Fatal(status)
	}
	held := lockOf(t, client)
	if !ofThisScheduler(held) {
		t.Fatalf("%q is not known as this scheduler's kind", held)
	}
	refused(t, p, client)
	if got := lockOf(t, client); got != held {
		t.Errorf("the lock is %q, want %q", got, held)
	}
}
