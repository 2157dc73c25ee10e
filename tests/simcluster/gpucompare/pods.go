package gpucompare

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"gpufabric.io/tests/simcluster/audit"
	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/controlplane"
	"gpufabric.io/tests/simcluster/simnode"
)

const (
	// podRounds is how often each quantity is measured with pods, for each driver.
	podRounds = 10
	// reuses is how often a GPU goes from one pod to the next. It is smaller, since a failed prepare takes more than a minute.
	reuses = 3
	// podLimit bounds the wait for a pod: the kubelet tries a failed prepare again after 75 s.
	podLimit = 3 * time.Minute
	// auditDelay is how much later than its end a request may appear in the audit log.
	auditDelay = 3 * time.Second
)

// measurePods runs pods on a simulated cluster with a node for each driver. Their containers run no program, so the time is
// that of the control plane, the kubelet and the driver.
func measurePods(ctx context.Context, options Options, binaries map[string]string, results []*Result) error {
	dir := filepath.Join(options.Dir, "p")
	drivers := []*driver{ours(options, "", nil), theirs(options, "", nil)}
	for i, d := range drivers {
		d.result, d.node, d.dir = *results[i], cluster.NodeName(i), cluster.NodeDir(dir, i)
		d.cdi = filepath.Join(d.dir, "r/var/run/cdi")
	}
	up, err := cluster.Up(ctx, cluster.Options{
		Dir: dir, Nodes: len(drivers), Binaries: binaries, AuditAdmin: true, Runtime: noPrograms{},
		Hardware: func(ctx context.Context, index int, _ string) ([]simnode.Mapping, map[string]string, error) {
			tree := drivers[index].path("n")
			return []simnode.Mapping{{Path: tree, Real: tree}}, nil, drivers[index].renderTree(ctx)
		},
	})
	if err != nil {
		return err
	}
	defer up.Down()
	defer func() {
		for _, d := range drivers {
			d.stop()
		}
	}()
	for i, d := range drivers {
		d.client = up.Client
		again := ours(options, up.Plane.Kubeconfig(), up.Client)
		if i == 1 {
			again = theirs(options, up.Plane.Kubeconfig(), up.Client)
		}
		d.arguments = again.arguments
		if _, err := d.restart(ctx, false); err != nil {
			return err
		}
	}
	p := pods{client: up.Client}
	if err := p.prepare(ctx); err != nil {
		return err
	}
	began := time.Now()
	for round := range podRounds {
		if err := each(drivers, func(d *driver) error { return p.round(ctx, d, round) }); err != nil {
			return err
		}
	}
	ended := time.Now()
	if err := sleep(ctx, auditDelay); err != nil {
		return err
	}
	for i, d := range drivers {
		if err := d.countRequests(controlplane.AuditLog(dir), began, ended); err != nil {
			return err
		}
		*results[i] = d.result
	}
	return nil
}

// noPrograms is a runtime that runs no container.
type noPrograms struct{}

func (noPrograms) Owns(string) bool { return false }

func (noPrograms) Run(context.Context, simnode.Container) error { return errors.ErrUnsupported }

func (noPrograms) Exec(context.Context, simnode.Container, []string) error {
	return errors.ErrUnsupported
}

// pods makes pods in the default namespace.
type pods struct{ client kubernetes.Interface }

// prepare makes a class, and claim templates for 1 and for 7 GPUs.
func (p pods) prepare(ctx context.Context) error {
	_, err := p.client.ResourceV1().DeviceClasses().Create(ctx, &resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: driverName},
		Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "gpu"`,
		}}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("make the DeviceClass: %w", err)
	}
	for _, count := range []int64{1, gpus - 1} {
		_, err := p.client.ResourceV1().ResourceClaimTemplates("default").Create(ctx, &resourceapi.ResourceClaimTemplate{
			ObjectMeta: metav1.ObjectMeta{Name: template(count)},
			Spec: resourceapi.ResourceClaimTemplateSpec{Spec: resourceapi.ResourceClaimSpec{
				Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{
					{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: driverName,
						AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count}},
				}}}},
		}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("make a claim template: %w", err)
		}
	}
	return nil
}

func template(count int64) string { return fmt.Sprintf("gpus-%d", count) }

// round measures each quantity once: a pod with and without a claim, eight at once, and a GPU that goes from one pod to the
// next.
func (p pods) round(ctx context.Context, d *driver, round int) error {
	name := func(what string) string { return fmt.Sprintf("%s-%s-%d", d.node, what, round) }
	for _, what := range []struct {
		say   string
		count int64
	}{{"pod with 1 GPU, created to Running", 1}, {"the same pod without a claim", 0}} {
		took, err := p.run(ctx, d.node, what.count, name(fmt.Sprintf("one-%d", what.count)))
		if err != nil {
			return err
		}
		d.result.Times[what.say] = append(d.result.Times[what.say], took)
	}
	for _, what := range []struct {
		say   string
		count int64
	}{{"8 pods with 1 GPU each at once, created to all Running", 1}, {"the same 8 pods without claims", 0}} {
		var names []string
		for i := range gpus {
			names = append(names, name(fmt.Sprintf("eight-%d-%d", what.count, i)))
		}
		took, err := p.run(ctx, d.node, what.count, names...)
		if err != nil {
			return err
		}
		d.result.Times[what.say] = append(d.result.Times[what.say], took)
	}
	if round >= reuses {
		return nil
	}
	took, err := p.reuse(ctx, d.node, name)
	const reused = "a GPU's pod deleted with grace 0 to the next pod Running"
	d.result.Times[reused] = append(d.result.Times[reused], took)
	return err
}

// run creates pods at once, returns how long it took until all ran, and removes them.
func (p pods) run(ctx context.Context, node string, count int64, names ...string) (time.Duration, error) {
	running, err := p.await(ctx, names...)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := p.create(ctx, node, count, names...); err != nil {
		return 0, err
	}
	at, err := running()
	if err != nil {
		return 0, err
	}
	return at.Sub(began), p.remove(ctx, names...)
}

// reuse passes a GPU from one pod to the next, while the other GPUs are in use.
func (p pods) reuse(ctx context.Context, node string, name func(string) string) (time.Duration, error) {
	rest, first, next := name("rest"), name("first"), name("next")
	for pod, count := range map[string]int64{rest: gpus - 1, first: 1} {
		running, err := p.await(ctx, pod)
		if err != nil {
			return 0, err
		}
		if err := p.create(ctx, node, count, pod); err != nil {
			return 0, err
		}
		if _, err := running(); err != nil {
			return 0, err
		}
	}
	running, err := p.await(ctx, next)
	if err != nil {
		return 0, err
	}
	if err := p.create(ctx, node, 1, next); err != nil {
		return 0, err
	}
	began := time.Now()
	if err := p.client.CoreV1().Pods("default").Delete(ctx, first, metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))}); err != nil {
		return 0, fmt.Errorf("delete pod %s: %w", first, err)
	}
	at, err := running()
	if err != nil {
		return 0, err
	}
	return at.Sub(began), p.remove(ctx, rest, next)
}

// create makes pods on a node, each with a claim of count GPUs; 0: without a claim.
func (p pods) create(ctx context.Context, node string, count int64, names ...string) error {
	return atOnce(names, func(name string) error {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PodSpec{
				// The scheduler binds it, like a user's pod.
				NodeSelector: map[string]string{corev1.LabelHostname: node},
				Containers:   []corev1.Container{{Name: "main", Image: "not.run/here:1"}},
			},
		}
		if count > 0 {
			pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpus", ResourceClaimTemplateName: ptr.To(template(count))}}
			pod.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "gpus"}}
		}
		if _, err := p.client.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("make pod %s: %w", name, err)
		}
		return nil
	})
}

// remove deletes pods and returns when no claim is left. With a second's grace their node gives the devices back before the pods are gone.
func (p pods) remove(ctx context.Context, names ...string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, podLimit, fmt.Errorf("the claims of %v did not go within %s", names, podLimit))
	defer cancel()
	err := atOnce(names, func(name string) error {
		return p.client.CoreV1().Pods("default").Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(1))})
	})
	if err != nil {
		return fmt.Errorf("delete pods: %w", err)
	}
	claims := p.client.ResourceV1().ResourceClaims("default")
	for {
		list, err := claims.List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("list the claims: %w", err)
		}
		if len(list.Items) == 0 {
			return nil
		}
		changes, err := claims.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
		if err != nil {
			return fmt.Errorf("watch the claims: %w", err)
		}
		for left := len(list.Items); left > 0; {
			event, open := <-changes.ResultChan()
			if !open {
				break
			}
			if event.Type == watch.Deleted {
				left--
			}
		}
		changes.Stop()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// await watches pods, and returns a function that waits until all of them run.
func (p pods) await(ctx context.Context, names ...string) (func() (time.Time, error), error) {
	ctx, cancel := context.WithTimeoutCause(ctx, podLimit, fmt.Errorf("pods %v did not run within %s", names, podLimit))
	options := metav1.ListOptions{}
	if len(names) == 1 {
		options.FieldSelector = fields.OneTermEqualSelector("metadata.name", names[0]).String()
	}
	changes, err := p.client.CoreV1().Pods("default").Watch(ctx, options)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("watch pods: %w", err)
	}
	return func() (time.Time, error) {
		defer cancel()
		defer changes.Stop()
		waiting := map[string]bool{}
		for _, name := range names {
			waiting[name] = true
		}
		for event := range changes.ResultChan() {
			if pod, ok := event.Object.(*corev1.Pod); ok && pod.Status.Phase == corev1.PodRunning {
				delete(waiting, pod.Name)
			}
			if len(waiting) == 0 {
				return time.Now(), nil
			}
		}
		return time.Time{}, context.Cause(ctx)
	}, nil
}

// atOnce does something with every name at the same time.
func atOnce(names []string, do func(string) error) error {
	errs := make([]error, len(names))
	var calls sync.WaitGroup
	for i, name := range names {
		calls.Go(func() { errs[i] = do(name) })
	}
	calls.Wait()
	return errors.Join(errs...)
}

// countRequests counts the driver's requests to the API server in a time, for each claim that it prepared in that time.
func (d *driver) countRequests(log string, from, to time.Time) error {
	const claims = podRounds*(1+gpus) + reuses*3 // one pod and eight pods a round, three for a reuse
	program := filepath.Base(d.program) + "/"
	count := map[string]float64{"API requests a claim, all": 0, "API writes a claim, Events apart": 0, "API writes of Events a claim": 0}
	err := audit.Requests(log, func(r audit.Request) {
		if !strings.HasPrefix(r.UserAgent, program) || r.Received.Before(from) || r.Received.After(to) {
			return
		}
		count["API requests a claim, all"]++
		switch {
		case r.Writes() && r.Object.Resource == "events":
			count["API writes of Events a claim"]++
		case r.Writes():
			count["API writes a claim, Events apart"]++
		}
	})
	if err != nil {
		return err
	}
	for what, n := range count {
		d.result.Requests[what] = n / claims
	}
	return nil
}
