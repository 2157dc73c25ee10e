package simnode

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
)

// worker takes one pod from its binding to its end, as the kubelet's pod worker does: prepare, start, watch, stop,
// unprepare, report.
type worker struct {
	node    *Node
	address string // the pod's
	dir     string // the pod's directory

	deleted chan struct{} // closed when the pod is to end
	told    chan struct{} // closed when the status was first written with the pod's containers
	changed chan struct{} // has a token when the status is to be written again

	mu         sync.Mutex
	latest     *corev1.Pod // as last seen
	gone       bool        // the object no longer exists: no report
	deleting   sync.Once
	telling    sync.Once
	containers []*container
	message    string // why the pod has not started
	reason     string // its containers' state meanwhile, if an image cannot be pulled; empty: they are being created
	claimed    bool   // resources were requested and must be released
}

func newWorker(n *Node, pod *corev1.Pod) *worker {
	w := &worker{
		node: n, latest: pod, dir: n.dir(containersDir, string(pod.UID)),
		deleted: make(chan struct{}), told: make(chan struct{}), changed: make(chan struct{}, 1),
	}
	if pod.DeletionTimestamp != nil {
		w.end()
	}
	return w
}

func (w *worker) pod() *corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.latest
}

func (w *worker) update(pod *corev1.Pod) {
	w.mu.Lock()
	w.latest = pod
	w.mu.Unlock()
	if pod.DeletionTimestamp != nil {
		w.end()
	}
	w.notify() // others may have written its status, such as the controller manager for a node that was silent
}

// vanished: the object is gone from the API, by force.
func (w *worker) vanished() {
	w.mu.Lock()
	w.gone = true
	w.mu.Unlock()
	w.end()
}

func (w *worker) end() { w.deleting.Do(func() { close(w.deleted) }) }

// run returns when the pod is gone, or when the node is powered off (ctx).
func (w *worker) run(ctx context.Context) {
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "pod", klog.KObj(w.pod()))
	ctx = klog.NewContext(ctx, logger)
	if err := w.takeAddress(); err != nil {
		logger.Error(err, "Starting the pod")
		return
	}
	defer w.node.config.Addresses.Give(w.address)

	// Goroutines of the pod, such as the renewal of its tokens, end with it and not with the node.
	running, stop := context.WithCancel(ctx)
	defer stop()
	var life sync.WaitGroup
	if w.startUntilDone(running) {
		for _, c := range w.containers {
			life.Go(func() { c.live(running) })
		}
		w.watch(running)
	}
	if ctx.Err() != nil {
		stop()
		life.Wait()
		return // the node is off: nothing is unprepared, nothing is reported
	}
	stop()
	life.Wait()
	w.release(ctx)
	w.finish(ctx)
	_ = os.RemoveAll(w.dir) // the rest is removed with the cluster
}

func (w *worker) takeAddress() error {
	pod := w.pod()
	if pod.Spec.HostNetwork {
		w.address = w.node.config.Addresses.Node()
		return nil
	}
	address, err := w.node.config.Addresses.Take(pod.Status.PodIP)
	w.address = address
	return err
}

// startUntilDone prepares the pod and retries failures, as the kubelet does. False means that the pod is to end instead.
func (w *worker) startUntilDone(ctx context.Context) bool {
	for {
		// The kubelet does not interrupt a prepare when the pod is deleted, either.
		err := w.start(ctx)
		if err == nil {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-w.deleted:
			return false
		default:
		}
		klog.FromContext(ctx).V(2).Info("The pod could not be started and is tried again", "err", err)
		event, reason, message := "FailedPrepareDynamicResources", "", err.Error()
		var pull *pullError
		if errors.As(err, &pull) {
			event, reason, message = "Failed", "ImagePullBackOff", pull.backOff()
		}
		w.node.warn(ctx, w.pod(), event, err.Error())
		w.mu.Lock()
		w.message, w.reason = message, reason
		w.mu.Unlock()
		w.report(ctx)
		select {
		case <-time.After(w.node.config.PrepareRetry):
		case <-w.deleted:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

func (w *worker) start(ctx context.Context) error {
	// In the kubelet's order: device plugins at the pod's admission, volumes, DRA drivers, containers.
	pod := w.pod()
	if err := w.node.device.admit(pod); err != nil {
		return err
	}
	volumes, err := w.mount(ctx)
	if err != nil {
		return err
	}
	if w.node.dra != nil && (len(pod.Spec.ResourceClaims) > 0 || pod.Status.ExtendedResourceClaimStatus != nil) {
		w.claimed = true
		if err := w.node.dra.PrepareResources(ctx, pod); err != nil {
			return err
		}
	}
	if err := pull(pod); err != nil {
		return err
	}
	var containers []*container
	for i := range pod.Spec.InitContainers {
		c, err := w.newContainer(ctx, &pod.Spec.InitContainers[i], volumes)
		if err != nil {
			return err
		}
		if ptr.Deref(pod.Spec.InitContainers[i].RestartPolicy, "") == corev1.ContainerRestartPolicyAlways {
			containers = append(containers, c) // a sidecar runs beside the others
			continue
		}
		if err := c.runOnce(ctx); err != nil {
			return fmt.Errorf("init container %s: %w", c.spec.Name, err)
		}
	}
	for i := range pod.Spec.Containers {
		c, err := w.newContainer(ctx, &pod.Spec.Containers[i], volumes)
		if err != nil {
			return err
		}
		containers = append(containers, c)
	}
	w.mu.Lock()
	w.containers, w.message = containers, ""
	w.mu.Unlock()
	return nil
}

// watch writes the status whenever a container changes, until the pod is to end.
func (w *worker) watch(ctx context.Context) {
	var refresh <-chan time.Time
	if w.mountsConfig() {
		ticker := time.NewTicker(configPeriod)
		defer ticker.Stop()
		refresh = ticker.C
	}
	for {
		select {
		case <-refresh:
			w.refresh(ctx)
		case <-ctx.Done():
			return
		case <-w.deleted:
			return
		case <-w.changed:
			if !pause(ctx, settle) {
				return
			}
			w.drain()
			phase := w.report(ctx) // what was written: a container may end at any moment
			w.telling.Do(func() { close(w.told) })
			if phase == corev1.PodSucceeded || phase == corev1.PodFailed {
				// A pod that ran to its end releases its devices although its object still exists.
				w.release(ctx)
				select {
				case <-w.deleted:
				case <-ctx.Done():
				}
				return
			}
		}
	}
}

// settle is how long a change waits for others, to be reported together: the containers of a pod start almost at the same time.
const settle = 5 * time.Millisecond

// drain removes a pending change, since the next report includes it.
func (w *worker) drain() {
	select {
	case <-w.changed:
	default:
	}
}

// notify triggers another write of the status.
func (w *worker) notify() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// release releases the pod's devices, and retries until that succeeds.
func (w *worker) release(ctx context.Context) {
	if !w.claimed {
		return
	}
	for {
		err := w.node.dra.UnprepareResources(ctx, w.pod())
		if err == nil {
			w.claimed = false
			return
		}
		klog.FromContext(ctx).V(2).Info("Giving the pod's devices back failed and is tried again", "err", err)
		w.node.warn(ctx, w.pod(), "FailedUnprepareDynamicResources", err.Error())
		select {
		case <-ctx.Done():
			return
		case <-time.After(min(w.node.config.PrepareRetry, 10*time.Second)):
		}
	}
}

// finish reports the end and removes the object, which the API server keeps until its node says so.
func (w *worker) finish(ctx context.Context) {
	w.mu.Lock()
	gone := w.gone
	w.mu.Unlock()
	if gone {
		return
	}
	w.report(ctx)
	pod := w.pod()
	for {
		err := w.node.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
			GracePeriodSeconds: ptr.To(int64(0)), Preconditions: metav1.NewUIDPreconditions(string(pod.UID)),
		})
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) || ctx.Err() != nil {
			return
		}
		klog.FromContext(ctx).V(2).Info("Removing the pod's object failed and is tried again", "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

func (w *worker) kill(name string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var have []string
	for _, c := range w.containers {
		if c.spec.Name == name || name == "" {
			if !c.crash() {
				return fmt.Errorf("kill container %q of pod %s: %w", c.spec.Name, w.latest.Name, ErrNotRunning)
			}
			return nil
		}
		have = append(have, c.spec.Name)
	}
	return fmt.Errorf("kill container %q of pod %s: it has %v", name, w.latest.Name, have)
}
