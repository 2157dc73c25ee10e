package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"gpufabric.io/build/repository"
	"gpufabric.io/tests/simcluster/audit"
	"gpufabric.io/tests/simcluster/chart"
	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/controlplane"
	"gpufabric.io/tests/simcluster/fabric"
)

// Drivers are those that publish devices where all roles are installed.
func Drivers() []string {
	return []string{"compute-domain.nvidia.com", "gpu.nvidia.com", "rdma.gpufabric.io"}
}

// Components are the node plugins, by the label of their pods.
func Components() []string {
	return []string{"compute-domain-plugin", "gpu-plugin", "rdma-plugin", "vgpu-plugin"}
}

// Published is what one driver has in the API server.
type Published struct {
	Slices, Devices int
	// Bytes is the size of the slices as JSON, without what the API server's own book-keeping (managedFields) adds.
	Bytes int
}

// Action is the cost of a change of the whole cluster.
type Action struct {
	// Seconds is until every plugin was ready again and had its devices published.
	Seconds float64
	// Writes are those of our service accounts, Events and leases apart, by account, verb and resource; Reads all other requests but watches.
	Writes, Reads map[string]int
	Events        int
	// SlicesGone is how many ResourceSlices were deleted meanwhile, SlicesChanged how many were created or written.
	SlicesGone, SlicesChanged int
	// Touched names pods with claims that changed.
	Touched []string
	// Busiest is the highest number of our accounts' requests in one second.
	Busiest int
}

// RolesResult is what was measured at one size where every role runs on every node.
type RolesResult struct {
	Nodes         int
	Up, Published float64
	Driver        map[string]Published
	// Memory is resident, in MiB, of one process of each role, after everything was published, and under the name shards of all processes
	// that play nodes. Processor is their processor time at rest, in seconds an hour.
	Memory, Processor map[string]float64
	// Install, Rollout, AllAtOnce and Health are what was done to the whole cluster; Idle are the requests in IdleTime seconds without any
	// cause.
	Install, Rollout, AllAtOnce, Health Action
	Idle                                map[string]int
	IdleTime                            float64
	// Pods had a claim while plugins were restarted.
	Pods int
	// Faults is how many GPUs fell off the bus in HealthTime, Noticed the seconds until the taint was to be seen, sorted.
	Faults     int
	HealthTime float64
	Noticed    []float64
}

// rolesMeasurement is one size's run.
type rolesMeasurement struct {
	measurement
	roles RolesResult
}

// podsWithClaims is how many pods stand while plugins are restarted, one a node.
const podsWithClaims = 48

// RunRoles measures every size with all roles on every node.
func RunRoles(ctx context.Context, options Options) ([]RolesResult, error) {
	var results []RolesResult
	for _, nodes := range options.Nodes {
		options.Progress("%d nodes, all roles", nodes)
		m := newRoles(options, nodes)
		err := m.run(ctx)
		if m.roles.Published > 0 {
			results = append(results, m.roles)
		}
		if err != nil {
			return results, fmt.Errorf("%d nodes, all roles: %w", nodes, err)
		}
	}
	return results, nil
}

func newRoles(options Options, nodes int) *rolesMeasurement {
	return &rolesMeasurement{
		measurement: measurement{options: options, result: Result{Nodes: nodes, Writes: map[string]int{}, Requests: map[string]float64{}}},
		roles:       RolesResult{Nodes: nodes, Driver: map[string]Published{}},
	}
}

// rollStep is the longest step: a DaemonSet rolls a tenth of its nodes at a time.
const rollStep = "roll every plugin at once"

func (m *rolesMeasurement) run(ctx context.Context) (err error) {
	defer func() {
		if !m.cameUp {
			return
		}
		if downErr := m.options.Down(); err == nil {
			err = downErr
		}
	}()
	within := time.Minute
	if m.options.Brief {
		within = 0
	}
	type step struct {
		name string
		run  func(context.Context) error
	}
	for _, step := range []step{
		{"bring the cluster up", m.up},
		{"install all roles", m.installRoles},
		{"read what is published", m.size},
		{"watch them idle", m.idleRoles},
		{"run pods with claims", m.runPods},
		{rollStep, m.rollout},
		{"end every plugin in the same moment", m.allAtOnce},
		{"have GPUs fail", func(ctx context.Context) error { return m.fail(ctx, within) }},
	} {
		if m.options.Brief && step.name == rollStep {
			continue
		}
		started := time.Now()
		if err := step.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		m.options.Progress("  %s: %.1f s", step.name, time.Since(started).Seconds())
	}
	return nil
}

// memoryUnit sets the unit of GPU memory to the largest that the chart's default allows. By default four GPUs of 189,471 MiB
// are 94,732 units of 8 MiB. The kubelet's device manager and its gRPC client keep such a list in 26 MiB (2026-11-23), and as
// much again waits for the garbage collector. A real node has that once; here one process has it for every node.
const memoryUnit = `
apiVersion: v1
kind: ConfigMap
metadata: {name: volcano-vgpu-device-config, namespace: kube-system}
data: {device-config.yaml: "nvidia: {gpuMemoryFactor: 256}"}
`

// installRoles installs the chart with every role, and waits until every node has published what it has.
func (m *rolesMeasurement) installRoles(ctx context.Context) error {
	m.roles.Up = m.result.Up
	ctx, cancel := context.WithTimeoutCause(ctx, stepTime, errors.New("not every node published its devices in time"))
	defer cancel()
	root, err := repository.Root()
	if err != nil {
		return err
	}
	values := fabric.Values()
	maps.Copy(values, map[string]any{
		"gpus": map[string]any{"enabled": true}, "rdma": map[string]any{"enabled": true},
		"vgpu": map[string]any{"enabled": true, "nriSocket": ""}, // a simulated node has no container runtime
	})
	if err := m.apply(ctx, memoryUnit); err != nil {
		return err
	}
	begin := time.Now()
	if err := chart.Install(ctx, m.config, chart.Options{
		Chart: filepath.Join(root, "charts/gpufabric"), Name: "gpufabric", Namespace: system, Values: values,
	}); err != nil {
		return err
	}
	for _, driver := range Drivers() {
		if err := cluster.AwaitSlices(ctx, m.client, driver, m.roles.Nodes); err != nil {
			return err
		}
	}
	if err := m.awaitPlugins(ctx, nil); err != nil {
		return err
	}
	end := time.Now()
	m.roles.Published = end.Sub(begin).Seconds()
	m.roles.Install.Seconds = m.roles.Published
	return m.tally(ctx, &m.roles.Install, begin, end)
}

// awaitPlugins waits until every plugin's DaemonSet has a ready pod on every node, made since the generations given.
func (m *rolesMeasurement) awaitPlugins(ctx context.Context, generations map[string]int64) error {
	for _, component := range Components() {
		sets, err := m.client.AppsV1().DaemonSets(system).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=" + component})
		if err != nil || len(sets.Items) != 1 {
			return fmt.Errorf("find the DaemonSet of %s: %d, %w", component, len(sets.Items), err)
		}
		name, last := sets.Items[0].Name, appsv1.DaemonSetStatus{}
		list := cache.NewListWatchFromClient(m.client.AppsV1().RESTClient(), "daemonsets", system,
			fields.OneTermEqualSelector("metadata.name", name))
		if _, err := watchtools.UntilWithSync(ctx, list, &appsv1.DaemonSet{}, nil, func(event watch.Event) (bool, error) {
			set, ok := event.Object.(*appsv1.DaemonSet)
			if !ok {
				return false, nil
			}
			last = set.Status
			n := int32(m.roles.Nodes) //nolint:gosec // thousands
			return last.ObservedGeneration >= generations[name] && last.NumberReady >= n && last.UpdatedNumberScheduled >= n, nil
		}); err != nil {
			return fmt.Errorf("wait for DaemonSet %s: %d of %d pods are ready, %d new: %w", name, last.NumberReady, m.roles.Nodes,
				last.UpdatedNumberScheduled, context.Cause(ctx))
		}
	}
	return nil
}

// idleRoles counts the requests of our service accounts when there is nothing to do.
func (m *rolesMeasurement) idleRoles(ctx context.Context) error {
	if err := m.idle(ctx); err != nil {
		return err
	}
	m.roles.Idle, m.roles.IdleTime = m.result.Idle, m.result.IdleTime
	m.roles.Memory, m.roles.Processor = m.result.IdleMemory, m.result.IdleProcessor
	return nil
}

const nicPod = `
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, namespace: bench}
spec:
  terminationGracePeriodSeconds: 1
  nodeSelector: {kubernetes.io/hostname: %[1]s}
  containers: [{name: rank, image: "ubuntu:22.04", resources: {claims: [{name: nic}]}}]
  resourceClaims: [{name: nic, resourceClaimTemplateName: nic}]
`

const nicTemplate = `
apiVersion: v1
kind: Namespace
metadata: {name: bench}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: nic, namespace: bench}
spec: {spec: {devices: {requests: [{name: nic, exactly: {deviceClassName: rdma.gpufabric.io}}]}}}
`

// runPods runs a pod with a claim for a NIC on each of the first nodes.
func (m *rolesMeasurement) runPods(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, stepTime, errors.New("not all pods ran in time"))
	defer cancel()
	m.roles.Pods = min(m.roles.Nodes, podsWithClaims)
	if err := m.apply(ctx, nicTemplate); err != nil {
		return err
	}
	for i := range m.roles.Pods {
		if err := m.apply(ctx, fmt.Sprintf(nicPod, cluster.NodeName(i))); err != nil {
			return err
		}
	}
	running := map[string]bool{}
	list := cache.NewListWatchFromClient(m.client.CoreV1().RESTClient(), "pods", namespace, fields.Everything())
	_, err := watchtools.UntilWithSync(ctx, list, &corev1.Pod{}, nil, func(event watch.Event) (bool, error) {
		if pod, ok := event.Object.(*corev1.Pod); ok && pod.Status.Phase == corev1.PodRunning {
			running[pod.Name] = true
		}
		return len(running) == m.roles.Pods, nil
	})
	if err != nil {
		return fmt.Errorf("%d of %d pods run: %w", len(running), m.roles.Pods, context.Cause(ctx))
	}
	return nil
}

// standing describes the pods with claims and their claims. Two descriptions are the same only if nothing happened to any of
// them.
func (m *rolesMeasurement) standing(ctx context.Context) (map[string]string, error) {
	out := map[string]string{}
	pods, err := m.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the pods with claims: %w", err)
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		text := fmt.Sprintf("%s %s deleted=%t", pod.UID, pod.Status.Phase, pod.DeletionTimestamp != nil)
		for _, c := range pod.Status.ContainerStatuses {
			text += fmt.Sprintf(" %s %d", c.ContainerID, c.RestartCount)
		}
		out[pod.Name] = text
	}
	claims, err := m.client.ResourceV1().ResourceClaims(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the claims: %w", err)
	}
	for i := range claims.Items {
		out["claim "+claims.Items[i].Name] = claims.Items[i].ResourceVersion
	}
	return out, nil
}

// size reads what is published.
func (m *rolesMeasurement) size(ctx context.Context) error {
	const page = 200
	options := metav1.ListOptions{Limit: page}
	for {
		list, err := m.client.ResourceV1().ResourceSlices().List(ctx, options)
		if err != nil {
			return fmt.Errorf("read the published devices: %w", err)
		}
		for i := range list.Items {
			slice := &list.Items[i]
			slice.ManagedFields = nil
			size, err := jsonSize(slice)
			if err != nil {
				return err
			}
			p := m.roles.Driver[slice.Spec.Driver]
			p.Slices, p.Devices, p.Bytes = p.Slices+1, p.Devices+len(slice.Spec.Devices), p.Bytes+size
			m.roles.Driver[slice.Spec.Driver] = p
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return nil
		}
	}
}

// rollout changes the template of every plugin's DaemonSet in the same moment, as an upgrade of the chart does, and waits until all have
// rolled.
func (m *rolesMeasurement) rollout(ctx context.Context) error {
	return m.restart(ctx, &m.roles.Rollout, func(ctx context.Context) (map[string]int64, error) {
		generations := map[string]int64{}
		sets, err := m.client.AppsV1().DaemonSets(system).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, fmt.Errorf("list the plugins: %w", err)
		}
		patch := fmt.Appendf(nil, `{"spec":{"template":{"metadata":{"annotations":{"gpufabric.io/rolled":%q}}}}}`,
			time.Now().Format(time.RFC3339Nano))
		for i := range sets.Items {
			set, err := m.client.AppsV1().DaemonSets(system).Patch(ctx, sets.Items[i].Name, types.StrategicMergePatchType, patch,
				metav1.PatchOptions{})
			if err != nil {
				return nil, fmt.Errorf("roll %s: %w", sets.Items[i].Name, err)
			}
			generations[set.Name] = set.Generation
		}
		return generations, nil
	})
}

// allAtOnce deletes every plugin's pod in the same moment. No rollout does that; it is the worst thundering herd.
func (m *rolesMeasurement) allAtOnce(ctx context.Context) error {
	return m.restart(ctx, &m.roles.AllAtOnce, func(ctx context.Context) (map[string]int64, error) {
		group, grouped := errgroup.WithContext(ctx)
		group.SetLimit(creators)
		pods, err := m.client.CoreV1().Pods(system).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component in (" +
			strings.Join(Components(), ",") + ")"})
		if err != nil {
			return nil, fmt.Errorf("list the plugins: %w", err)
		}
		for i := range pods.Items {
			group.Go(func() error {
				return m.client.CoreV1().Pods(system).Delete(grouped, pods.Items[i].Name, metav1.DeleteOptions{})
			})
		}
		if err := group.Wait(); err != nil {
			return nil, fmt.Errorf("end every plugin: %w", err)
		}
		return nil, m.awaitGone(ctx, pods.Items)
	})
}

// awaitGone waits until all the pods are gone.
func (m *rolesMeasurement) awaitGone(ctx context.Context, pods []corev1.Pod) error {
	for {
		list, err := m.client.CoreV1().Pods(system).List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("list the plugins: %w", err)
		}
		left := 0
		now := map[types.UID]bool{}
		for i := range list.Items {
			now[list.Items[i].UID] = true
		}
		for i := range pods {
			if now[pods[i].UID] {
				left++
			}
		}
		if left == 0 {
			return nil
		}
		if err := sleep(ctx, 500*time.Millisecond); err != nil {
			return fmt.Errorf("%d of %d plugins are not gone: %w", left, len(pods), err)
		}
	}
}

// restart does something to every plugin. It measures the time until all are ready and all devices are published.
func (m *rolesMeasurement) restart(ctx context.Context, into *Action, do func(context.Context) (map[string]int64, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*stepTime, errors.New("not every plugin came back in time"))
	defer cancel()
	before, err := m.standing(ctx)
	if err != nil {
		return err
	}
	slices, err := m.watchSlices(ctx)
	if err != nil {
		return err
	}
	defer slices.stop()
	begin := time.Now()
	generations, err := do(ctx)
	if err != nil {
		return err
	}
	if err := m.awaitPlugins(ctx, generations); err != nil {
		return err
	}
	for _, driver := range Drivers() {
		if err := cluster.AwaitSlices(ctx, m.client, driver, m.roles.Nodes); err != nil {
			return err
		}
	}
	end := time.Now()
	into.Seconds = end.Sub(begin).Seconds()
	into.SlicesChanged, into.SlicesGone = slices.counts()
	after, err := m.standing(ctx)
	if err != nil {
		return err
	}
	for name, was := range before {
		if after[name] != was {
			into.Touched = append(into.Touched, fmt.Sprintf("%s: %s, now %s", name, was, after[name]))
		}
	}
	return m.tally(ctx, into, begin, end)
}

// tally counts our accounts' requests between two times.
func (m *rolesMeasurement) tally(ctx context.Context, into *Action, begin, end time.Time) error {
	if err := sleep(ctx, auditDelay); err != nil {
		return err
	}
	into.Writes, into.Reads = map[string]int{}, map[string]int{}
	seconds := map[int64]int{}
	err := audit.Requests(controlplane.AuditLog(m.options.Dir), func(r audit.Request) {
		account, ours := strings.CutPrefix(r.User.Username, "system:serviceaccount:"+system+":")
		if !ours || r.Received.Before(begin) || r.Received.After(end) {
			return
		}
		seconds[r.Received.Unix()]++
		switch {
		case r.Verb == "watch" || r.Object.Resource == "leases":
		case r.Object.Resource == "events":
			into.Events++
		case r.Writes():
			into.Writes[account+": "+kind(r)]++
		default:
			into.Reads[account+": "+kind(r)]++
		}
	})
	for _, n := range seconds {
		into.Busiest = max(into.Busiest, n)
	}
	return err
}

// sorted is a copy in order.
func sorted(values []float64) []float64 { return slices.Sorted(slices.Values(values)) }
