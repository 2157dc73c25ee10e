package scheduling

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"gpufabric.io/tests/simcluster/controlplane"
)

// namespace has all pods and claims.
const namespace = "default"

// writers is how many requests go to the API server at a time.
const writers = 16

// cluster is a control plane with nodes that are objects alone.
type cluster struct {
	options Options
	plane   *controlplane.ControlPlane
	client  kubernetes.Interface
	config  *rest.Config
	nodes   []string
	slices  []*resourceapi.ResourceSlice
	made    int // pods and claims so far, for their names
}

func start(ctx context.Context, o Options, binaries map[string]string, nodes int) (_ *cluster, err error) {
	dir := filepath.Join(o.Dir, fmt.Sprint(nodes))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of a control plane: %w", err)
	}
	c := &cluster{options: o}
	c.plane, err = controlplane.Start(ctx, controlplane.Options{Dir: dir, Binaries: binaries, SchedulerProfiling: o.CPUProfiles != ""})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			c.plane.Stop()
		}
	}()
	if c.config, err = c.plane.Admin(); err != nil {
		return nil, err
	}
	c.config.QPS, c.config.Burst = -1, -1
	c.config.ContentType = "application/vnd.kubernetes.protobuf"
	if c.client, err = kubernetes.NewForConfig(c.config); err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	if err := controlplane.AwaitDefaultAccount(ctx, c.client, namespace); err != nil {
		return nil, err
	}
	// It would hold the nodes for dead, and take back claims whose pods it does not know.
	c.plane.Process("kube-controller-manager").Stop(2 * time.Second)
	plenty := corev1.ResourceList{
		corev1.ResourcePods: resource.MustParse("5000"), corev1.ResourceCPU: resource.MustParse("1000"),
		corev1.ResourceMemory: resource.MustParse("4Ti"),
	}
	for i := range nodes {
		c.nodes = append(c.nodes, fmt.Sprintf("node-%04d", i))
	}
	if err := each(c.nodes, func(name string) error {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
		made, err := c.client.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		made.Spec.Taints = nil // "not ready", which admission puts on and the controller manager would take off
		if made, err = c.client.CoreV1().Nodes().Update(ctx, made, metav1.UpdateOptions{}); err != nil {
			return err
		}
		made.Status = corev1.NodeStatus{Capacity: plenty, Allocatable: plenty,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}
		_, err = c.client.CoreV1().Nodes().UpdateStatus(ctx, made, metav1.UpdateOptions{})
		return err
	}); err != nil {
		return nil, fmt.Errorf("make the nodes: %w", err)
	}
	for _, name := range []string{classWhole, classMIG, classShare, classOther} {
		if _, err := c.client.ResourceV1().DeviceClasses().Create(ctx, deviceClass(name), metav1.CreateOptions{}); err != nil {
			return nil, fmt.Errorf("make the class %s: %w", name, err)
		}
	}
	return c, nil
}

// each does something for every item, several at a time, and returns the first error of each worker.
func each[T any](items []T, do func(T) error) error {
	queue := make(chan T)
	errs := make([]error, writers)
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for item := range queue {
				if errs[w] == nil {
					errs[w] = do(item)
				}
			}
		})
	}
	for _, item := range items {
		queue <- item
	}
	close(queue)
	wg.Wait()
	return errors.Join(errs...)
}

// publish replaces all slices by a row's, and starts the scheduler again: what it knew of the last row is not this row's to pay.
func (c *cluster) publish(ctx context.Context, m *Machine, row Row) error {
	if err := c.client.ResourceV1().ResourceSlices().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return err
	}
	c.slices = nil
	for i, name := range c.nodes {
		c.slices = append(c.slices, slicesOf(name, row.publish(m, i))...)
	}
	if err := each(c.slices, func(s *resourceapi.ResourceSlice) error {
		_, err := c.client.ResourceV1().ResourceSlices().Create(ctx, s, metav1.CreateOptions{})
		return err
	}); err != nil {
		return err
	}
	return c.plane.Restart(ctx, "kube-scheduler")
}

// measure fills a part of the cluster, makes pods, and leaves nothing of it.
func (c *cluster) measure(ctx context.Context, m *Machine, row Row, fill float64) (r Result, err error) {
	r = Result{Row: row.Name, Nodes: len(c.nodes), Fill: fill, Slices: len(c.slices), Taken: time.Now().UTC().Truncate(time.Second)}
	if r.Load, err = load(); err != nil {
		return r, err
	}
	for _, s := range c.slices {
		r.Devices += len(s.Spec.Devices)
		r.Bytes += s.Size()
	}
	defer func() {
		if cleanErr := c.clean(ctx, "", ""); err == nil {
			err = cleanErr
		}
	}()
	batch := c.options.Pods
	if row.class != "" {
		free, err := c.fill(ctx, m, row, fill)
		if err != nil {
			return r, fmt.Errorf("fill the cluster: %w", err)
		}
		batch = min(batch, max(free-1, 1)) // the pod that runs first keeps its device
	}
	// A pod that runs through says that the scheduler has started and knows what there is.
	if err := c.warm(ctx, row); err != nil {
		return r, err
	}
	profiled := c.profile(ctx, row, &r)
	t := timing{limit: time.Now().Add(c.options.Limit)}
	for {
		from := c.made
		if err := c.time(ctx, row, min(batch, c.options.Pods-t.pods), &t); err != nil {
			return r, err
		}
		t.batches++
		if t.pods >= c.options.Pods || len(t.latencies) < t.pods || time.Now().After(t.limit) {
			break
		}
		if err := c.clean(ctx, fmt.Sprintf("pod-%06d", from), fmt.Sprintf("pod-%06d", c.made)); err != nil {
			return r, err
		}
	}
	if err := <-profiled; err != nil {
		return r, err
	}
	slices.Sort(t.latencies)
	r.Pods, r.Bound, r.Batches, r.Seconds = t.pods, len(t.latencies), t.batches, t.seconds
	if r.Bound > 0 {
		r.P50, r.P99 = t.latencies[r.Bound/2], t.latencies[r.Bound*99/100]
		r.CPU = t.processor.Seconds() / float64(r.Bound)
	}
	r.Memory, err = resident(c.plane.Process("kube-scheduler").Pid())
	return r, err
}

// timing is what the batches of a measurement add up to.
type timing struct {
	limit         time.Time
	pods, batches int
	seconds       float64
	latencies     []float64
	processor     time.Duration
}

// fill gives a part of all units away, node after node in an order without a pattern, and says how many are left.
func (c *cluster) fill(ctx context.Context, m *Machine, row Row, part float64) (free int, err error) {
	total := 0
	units := make([][]unit, len(c.nodes))
	for i := range c.nodes {
		units[i] = row.units(m, i)
		total += len(units[i])
	}
	left := int(part * float64(total))
	type given struct {
		node  string
		units []unit
	}
	var todo []given
	for _, i := range rand.New(rand.NewPCG(1, 2)).Perm(len(c.nodes)) { //nolint:gosec // the same order in every run
		for some := range slices.Chunk(units[i], resourceapi.AllocationResultsMaxSize) {
			some = some[:min(len(some), left)]
			left -= len(some)
			if len(some) > 0 {
				todo = append(todo, given{c.nodes[i], some})
			}
		}
	}
	from := c.made
	c.made += len(todo)
	return total - int(part*float64(total)), each(indices(len(todo)), func(i int) error {
		claim := newClaim(fmt.Sprintf("given-%06d", from+i), row.class, "", int64(len(todo[i].units)))
		made, err := c.client.ResourceV1().ResourceClaims(namespace).Create(ctx, claim, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		made.Status.Allocation = allocation(todo[i].node, todo[i].units)
		made.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "gone", UID: "gone"}}
		_, err = c.client.ResourceV1().ResourceClaims(namespace).UpdateStatus(ctx, made, metav1.UpdateOptions{})
		return err
	})
}

func indices(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

func newClaim(name, class, memory string, count int64) *resourceapi.ResourceClaim {
	request := &resourceapi.ExactDeviceRequest{DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount,
		Count: count}
	if memory != "" {
		request.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
			"memory": resource.MustParse(memory)}}
	}
	return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "r",
			Exactly: request}}}}}
}

func newPod(name, claim string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}, Spec: corev1.PodSpec{
		AutomountServiceAccountToken: ptr.To(false), Containers: []corev1.Container{{Name: "main", Image: "none"}}}}
	if claim != "" {
		pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "c", ResourceClaimName: &claim}}
		pod.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "c"}}
	}
	return pod
}

// make makes pods with their claims, the claims first, and tells when each pod was there.
func (c *cluster) make(ctx context.Context, row Row, n int, there func(name string, at time.Time)) error {
	from := c.made
	c.made += n
	name := func(i int) string { return fmt.Sprintf("pod-%06d", from+i) }
	claim := func(string) string { return "" }
	if row.class != "" {
		claim = func(pod string) string { return pod }
		if err := each(indices(n), func(i int) error {
			_, err := c.client.ResourceV1().ResourceClaims(namespace).Create(ctx, newClaim(name(i), row.class, row.memory, 1),
				metav1.CreateOptions{})
			return err
		}); err != nil {
			return err
		}
	}
	return each(indices(n), func(i int) error {
		at := time.Now()
		_, err := c.client.CoreV1().Pods(namespace).Create(ctx, newPod(name(i), claim(name(i))), metav1.CreateOptions{})
		there(name(i), at)
		return err
	})
}

// warmPatience is how long a scheduler may take to read a cluster and bind a pod.
const warmPatience = 3 * time.Minute

// warm waits until the scheduler has bound a pod.
func (c *cluster) warm(ctx context.Context, row Row) error {
	ctx, cancel := context.WithTimeout(ctx, warmPatience)
	defer cancel()
	bound, stop, err := c.watch(ctx)
	if err != nil {
		return err
	}
	defer stop()
	if err := c.make(ctx, row, 1, func(string, time.Time) {}); err != nil {
		return err
	}
	select {
	case <-bound:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the scheduler bound no pod within %s", warmPatience)
	}
}

// binding is a pod that was bound.
type binding struct {
	pod string
	at  time.Time
}

// watch tells of every pod that is made from now on when it is bound.
func (c *cluster) watch(ctx context.Context) (<-chan binding, func(), error) {
	out := make(chan binding, 20000) // more than pods are ever made at once
	first := fmt.Sprintf("pod-%06d", c.made)
	var mu sync.Mutex
	seen := map[types.UID]bool{}
	look := func(object any) {
		pod, ok := object.(*corev1.Pod)
		mu.Lock()
		defer mu.Unlock()
		if ok && pod.Spec.NodeName != "" && pod.Name >= first && !seen[pod.UID] {
			seen[pod.UID] = true
			out <- binding{pod.Name, time.Now()}
		}
	}
	pods := informers.NewSharedInformerFactoryWithOptions(c.client, 0, informers.WithNamespace(namespace)).Core().V1().Pods().Informer()
	handler := cache.ResourceEventHandlerFuncs{AddFunc: look, UpdateFunc: func(_, object any) { look(object) }}
	if _, err := pods.AddEventHandler(handler); err != nil {
		return nil, nil, fmt.Errorf("watch the pods: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { pods.RunWithContext(ctx) })
	stop := func() { cancel(); running.Wait() }
	if !cache.WaitForCacheSync(ctx.Done(), pods.HasSynced) {
		stop()
		return nil, nil, fmt.Errorf("watch the pods: %w", context.Cause(ctx))
	}
	return out, stop, nil
}

// time makes some pods and waits until they are bound, or the limit is over.
func (c *cluster) time(ctx context.Context, row Row, pods int, t *timing) error {
	bound, stop, err := c.watch(ctx)
	if err != nil {
		return err
	}
	defer stop()
	pid := c.plane.Process("kube-scheduler").Pid()
	before, err := processorTime(pid)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	made := map[string]time.Time{}
	first := time.Now()
	writing := make(chan error, 1)
	go func() { // Its end is waited for below.
		writing <- c.make(ctx, row, pods, func(name string, at time.Time) {
			mu.Lock()
			defer mu.Unlock()
			if len(made) == 0 || at.Before(first) {
				first = at
			}
			made[name] = at
		})
	}()
	var at []binding
	limit := time.After(time.Until(t.limit))
wait:
	for len(at) < pods {
		select {
		case b := <-bound:
			at = append(at, b)
		case <-limit:
			break wait
		}
	}
	end := time.Now()
	after, err := processorTime(pid)
	if err := errors.Join(err, <-writing); err != nil {
		return err
	}
	for _, b := range at {
		if began, ok := made[b.pod]; ok {
			t.latencies = append(t.latencies, b.at.Sub(began).Seconds())
		}
	}
	t.pods += pods
	t.seconds += end.Sub(first).Seconds()
	t.processor += after - before
	return nil
}

// profile takes a CPU profile of the scheduler in the background, where that is asked for.
func (c *cluster) profile(ctx context.Context, row Row, r *Result) <-chan error {
	done := make(chan error, 1)
	if c.options.CPUProfiles == "" {
		done <- nil
		return done
	}
	go func() { // Its end is waited for by who reads done.
		done <- func() error {
			transport, err := rest.TransportFor(c.plane.Scheduler())
			if err != nil {
				return err
			}
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.plane.Scheduler().Host+"/debug/pprof/profile?seconds=10", nil)
			if err != nil {
				return err
			}
			answer, err := (&http.Client{Transport: transport}).Do(request)
			if err != nil {
				return fmt.Errorf("profile the scheduler: %w", err)
			}
			defer func() { _ = answer.Body.Close() }()
			if answer.StatusCode != http.StatusOK {
				return fmt.Errorf("profile the scheduler: %s", answer.Status)
			}
			file, err := os.Create(filepath.Join(c.options.CPUProfiles, fmt.Sprintf("%s-%d-%.0f.pprof", row.Name, r.Nodes, 100*r.Fill)))
			if err != nil {
				return err
			}
			_, err = file.ReadFrom(answer.Body)
			return errors.Join(err, file.Close())
		}()
	}()
	return done
}

// clean removes the pods from one name to before another, and their claims; all pods and all claims where both are empty.
func (c *cluster) clean(ctx context.Context, from, to string) error {
	now := metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))}
	mine := func(name string) bool { return from == "" && to == "" || from <= name && name < to }
	// A pod that is bound while it is deleted may take its claim's finalizer along.
	gone := func(err error) error {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	pods, err := c.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list the pods: %w", err)
	}
	if err := each(pods.Items, func(pod corev1.Pod) error {
		if !mine(pod.Name) {
			return nil
		}
		return gone(c.client.CoreV1().Pods(namespace).Delete(ctx, pod.Name, now))
	}); err != nil {
		return fmt.Errorf("delete the pods: %w", err)
	}
	claims, err := c.client.ResourceV1().ResourceClaims(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list the claims: %w", err)
	}
	err = each(claims.Items, func(claim resourceapi.ResourceClaim) error {
		if !mine(claim.Name) {
			return nil
		}
		// The controller manager would take the finalizer off.
		if len(claim.Finalizers) > 0 {
			none := []byte(`{"metadata":{"finalizers":null}}`)
			if _, err := c.client.ResourceV1().ResourceClaims(namespace).Patch(ctx, claim.Name, types.MergePatchType, none,
				metav1.PatchOptions{}); gone(err) != nil {
				return err
			}
		}
		return gone(c.client.ResourceV1().ResourceClaims(namespace).Delete(ctx, claim.Name, now))
	})
	if err != nil {
		return fmt.Errorf("delete the claims: %w", err)
	}
	return nil
}

// load is the machine's load average of a minute.
func load() (float64, error) {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0, fmt.Errorf("read the machine's load: %w", err)
	}
	first, _, _ := strings.Cut(string(text), " ")
	return strconv.ParseFloat(first, 64)
}

// ticks is how many there are of processor time in a second (USER_HZ, which is 100 on every Linux that Go runs on).
const ticks = 100

// processorTime is what a process has used so far, of user and system time.
func processorTime(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("read the scheduler's processor time: %w", err)
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, fmt.Errorf("read the scheduler's processor time: /proc/%d/stat is %q", pid, text)
	}
	var sum int64
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read the scheduler's processor time: %w", err)
		}
		sum += n
	}
	return time.Duration(sum) * time.Second / ticks, nil
}

// resident is the resident size of a process in MiB.
func resident(pid int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("read the scheduler's memory: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 64)
			return kib / 1024, err
		}
	}
	return 0, fmt.Errorf("process %d has no VmRSS", pid)
}
