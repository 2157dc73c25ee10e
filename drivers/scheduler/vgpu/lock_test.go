package vgpu

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"gpufabric.io/drivers/scheduler/cards"
	"gpufabric.io/drivers/vgpu/annotation"
)

func TestLockLastsFiveMinutes(t *testing.T) {
	now := time.Date(2026, 11, 22, 2, 0, 0, 0, time.UTC)
	for value, want := range map[string]bool{
		"":                                    false,
		"2026-11-22T02:00:00Z":                true,
		"2026-11-22T01:55:01Z":                true,
		"2026-11-22T01:55:00Z":                false,
		"2026-11-22T03:59:30.123456789+02:00": true,
		"2026-11-22T01:59:00Z,default,train":  true,
		"2026-11-22T02:04:00Z":                true,  // a clock that is ahead
		"2027-11-22T02:00:00Z":                false, // it would hold for a year
		"Requesting_2026.11.22 02:00:00":      false,
	} {
		if err := locked(map[string]string{annotation.NodeLock: value}, now); errors.Is(err, errLocked) != want {
			t.Errorf("%q: %v, want a lock: %t", value, err, want)
		}
	}
}

// locking is a plugin that locks nodes, with one node that may have another scheduler's lock.
func locking(t *testing.T, held string) (*Plugin, *fake.Clientset) {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: map[string]string{"other": "kept"}}}
	if held != "" {
		node.Annotations[annotation.NodeLock] = held
	}
	client := fake.NewClientset(waiting(nil), node)
	p := &Plugin{handle: clientHandle{client: client}, ledger: newLedger(resources, always), locks: newLocks(),
		now: func() time.Time { return time.Unix(1763000000, 0) }, background: func(do func(context.Context)) { go do(t.Context()) }}
	p.ledger.assume("uid-p", "n", [][]annotation.Share{{{UUID: uuid}}})
	return p, client
}

func lockOf(t *testing.T, client kubernetes.Interface) string {
	t.Helper()
	node, err := client.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if node.Annotations["other"] != "kept" {
		t.Errorf("the node's annotations are %v", node.Annotations)
	}
	return node.Annotations[annotation.NodeLock]
}

func attempt() fwk.CycleState {
	state := framework.NewCycleState()
	state.Write(wishKey, wish{&cards.Wish{}})
	return state
}

func TestLockIsReleasedWhenAnAttemptFails(t *testing.T) {
	p, client := locking(t, "")
	client.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("refused")
	})
	if status := p.PreBind(t.Context(), attempt(), waiting(nil), "n"); !status.IsSuccess() {
		t.Fatal(status)
	}
	if status := p.Bind(t.Context(), attempt(), waiting(nil), "n"); status.Code() != fwk.Error {
		t.Fatalf("status %v, want an error", status)
	}
	if got := lockOf(t, client); got != "2025-11-13T02:13:20Z" {
		t.Fatalf("the lock is %q", got)
	}
	p.Unreserve(t.Context(), attempt(), waiting(nil), "n")
	if got := lockOf(t, client); got != "" {
		t.Errorf("the lock is %q still", got)
	}
}

func TestLockOfAnotherSchedulerIsKept(t *testing.T) {
	const theirs = "2025-11-13T02:13:00Z"
	p, client := locking(t, theirs)
	if status := p.PreBind(t.Context(), attempt(), waiting(nil), "n"); status.Code() != fwk.Unschedulable {
		t.Errorf("status %v, want the pod to wait", status)
	}
	p.Unreserve(t.Context(), attempt(), waiting(nil), "n")
	if got := lockOf(t, client); got != theirs {
		t.Errorf("the lock is %q, want %q", got, theirs)
	}
	for _, action := range client.Actions() {
		if action.GetVerb() == "patch" {
			t.Errorf("%s was written", action.GetResource().Resource)
		}
	}
}

func TestLockDetectsAnotherOwner(t *testing.T) {
	p, client := locking(t, "")
	client.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		theirs := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n",
			Annotations: map[string]string{"other": "kept", annotation.NodeLock: "2025-11-13T02:13:19Z"}}}
		if err := client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("nodes"), theirs, ""); err != nil {
			t.Error(err)
		}
		return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "nodes"}, "n", errors.New("changed"))
	})
	if status := p.PreBind(t.Context(), attempt(), waiting(nil), "n"); status.Code() != fwk.Unschedulable {
		t.Errorf("status %v, want the pod to wait", status)
	}
}

// The node's plugin removed the lock when it had served the pod: no work is left when the pod goes.
func TestLockForgetsARemovedLock(t *testing.T) {
	p, client := locking(t, "")
	if status := p.PreBind(t.Context(), attempt(), waiting(nil), "n"); !status.IsSuccess() {
		t.Fatal(status)
	}
	locked, err := client.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	before, after := locked.DeepCopy(), locked.DeepCopy()
	delete(before.Annotations, annotation.NodeLock)
	p.locks.changed(before, locked) // the lock is seen
	after.Labels = map[string]string{"other": "changed"}
	p.locks.changed(locked, after)
	if len(p.locks.taken) != 1 {
		t.Fatal("a lock that stands was forgotten")
	}
	p.locks.changed(after, before)
	if _, ok := p.locks.take("uid-p"); ok {
		t.Error("a lock that is gone would be taken off once more")
	}
}

func TestLockIsNotTakenOverByASuccessorOfTheSameName(t *testing.T) {
	p, client := locking(t, "")
	if status := p.PreBind(t.Context(), attempt(), waiting(nil), "n"); !status.IsSuccess() {
		t.Fatal(status)
	}
	unlocked := make(chan struct{}, 1)
	client.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		unlocked <- struct{}{}
		return false, nil, nil
	})
	successor := waiting(nil)
	successor.UID = "uid-successor"
	p.pods().OnUpdate(waiting(nil), successor)
	if p.ledger.assumed("uid-p") != nil {
		t.Error("the shares of a pod that is gone are remembered")
	}
	if len(p.locks.taken) != 0 {
		t.Fatal("the lock of a pod that is gone stands")
	}
	<-unlocked
}
