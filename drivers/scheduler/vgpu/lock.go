package vgpu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/util/retry"

	"gpufabric.io/drivers/vgpu/annotation"
)

// lockExpiry is how long a lock is valid for every scheduler that uses it: its owner may have died.
const lockExpiry = 5 * time.Minute

// locks are the node locks that this scheduler took, by pod. A node is locked while one pod with shares is being bound to it, until
// the node's plugin has served the pod and removes the lock. Nil where locks are not used.
type locks struct {
	mutex sync.Mutex
	taken map[types.UID]lock
	// left are locks of an earlier leader that are being handled; see orphan.go.
	left map[lock]bool
}

type lock struct{ node, value string }

func newLocks() *locks { return &locks{taken: map[types.UID]lock{}, left: map[lock]bool{}} }

func (l *locks) add(pod types.UID, taken lock) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.taken[pod] = taken
}

// take removes a pod's lock from the map and returns it.
func (l *locks) take(pod types.UID) (lock, bool) {
	if l == nil {
		return lock{}, false
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	taken, ok := l.taken[pod]
	delete(l.taken, pod)
	return taken, ok
}

// changed drops a lock that was removed from its node, as by its plugin after it served the pod. A node that was not seen locked does not
// count.
func (l *locks) changed(before, after any) {
	old, had := before.(*corev1.Node)
	node, has := after.(*corev1.Node)
	if !had || !has {
		return
	}
	value := old.Annotations[annotation.NodeLock]
	if value == "" || value == node.Annotations[annotation.NodeLock] {
		return
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	maps.DeleteFunc(l.taken, func(_ types.UID, taken lock) bool { return taken == lock{node.Name, value} })
}

// errLocked is the error for a node to which another pod is being bound.
var errLocked = errors.New("the node is locked")

// locked returns an error with the time until which a node is locked, by any scheduler; nil: not locked. A value that is not a time does
// not lock the node: it would never expire.
func locked(annotations map[string]string, now time.Time) error {
	value, _, _ := strings.Cut(annotations[annotation.NodeLock], ",") // HAMi's scheduler appends the owner to the time
	since, err := time.Parse(time.RFC3339, value)
	if err != nil || now.Sub(since) >= lockExpiry || since.Sub(now) >= lockExpiry {
		return nil
	}
	return fmt.Errorf("%w (annotation %s) until a pod before this one has its shares, or until %s", errLocked, annotation.NodeLock,
		since.Add(lockExpiry).UTC().Format(time.RFC3339))
}

// lock locks a node for a pod. It fails with errLocked if the node is locked.
func (p *Plugin) lock(ctx context.Context, pod types.UID, name string) error {
	nodes := p.handle.ClientSet().CoreV1().Nodes()
	// A conflict means that the node changed since it was read, perhaps with another lock, so it is read again.
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		node, err := nodes.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("lock node %s: %w", name, err)
		}
		if err := locked(node.Annotations, p.now()); err != nil {
			return err
		}
		value := p.now().UTC().Format(time.RFC3339Nano) // with fractions of a second, so that no two are the same
		body, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": node.ResourceVersion,
			"annotations": map[string]string{annotation.NodeLock: value}}})
		if err != nil {
			return err
		}
		if _, err := nodes.Patch(ctx, name, types.MergePatchType, body, metav1.PatchOptions{FieldManager: Name}); err != nil {
			return fmt.Errorf("lock node %s: %w", name, err)
		}
		p.locks.add(pod, lock{name, value})
		return nil
	})
}

// unlock removes a lock from its node, if it is still there.
func (p *Plugin) unlock(ctx context.Context, taken lock) {
	path := "/metadata/annotations/" + annotation.NodeLock
	body, err := json.Marshal([]map[string]string{{"op": "test", "path": path, "value": taken.value}, {"op": "remove", "path": path}})
	if err == nil {
		_, err = p.handle.ClientSet().CoreV1().Nodes().Patch(ctx, taken.node, types.JSONPatchType, body, metav1.PatchOptions{FieldManager: Name})
	}
	// Invalid: the lock is gone, or another's.
	if err != nil && !apierrors.IsInvalid(err) && !apierrors.IsNotFound(err) {
		utilruntime.HandleErrorWithContext(ctx, err, "Cannot unlock a node; the lock expires by itself", "node", taken.node, "after", lockExpiry)
	}
}
