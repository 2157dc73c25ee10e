//go:build gangs

package gangs

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/controlplane"
	"gpufabric.io/tests/simcluster/fixture"
	"gpufabric.io/tests/simcluster/manifests"
	"gpufabric.io/tests/simcluster/simnode"
)

var (
	rackCount = flag.Int("racks", 56, "racks of the test of placement")                      //nolint:gochecknoglobals // a flag
	turns     = flag.Int("turns", 60, "gangs that end and are followed by others, at 80 %%") //nolint:gochecknoglobals // a flag
)

const (
	rackSize = 18
	// load is the part of all nodes that gangs have.
	load = 0.8
	// fleetSpace has the gangs.
	fleetSpace = "gangs"
)

// sizes are those of the gangs, in nodes: small ones are frequent, and one has a whole rack.
var sizes = []int{1, 2, 2, 4, 4, 4, 8, 8, 12, 16, 18} //nolint:gochecknoglobals // a table

// fleet is a control plane whose nodes are objects only, and a kubelet's part that is played: pods that are bound run, and pods that are
// deleted go.
type fleet struct {
	t      *testing.T
	up     *fixture.Cluster
	cancel context.CancelFunc
	watch  sync.WaitGroup

	mu      sync.Mutex
	bound   map[string]string // pods to nodes
	changed chan struct{}
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	dir, err := os.MkdirTemp("", "gang") // short, because of unix sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	binaries, err := controlplane.Binaries(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	plane, err := controlplane.Start(t.Context(), controlplane.Options{Dir: dir, Binaries: binaries, NodeGrace: 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(plane.Stop)
	gateway, err := simnode.OpenGateway(controlplane.Gateway(dir))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	f := &fleet{t: t, cancel: cancel, bound: map[string]string{}, changed: make(chan struct{}, 1)}
	f.watch.Go(func() { _ = gateway.Run(ctx) }) // it ends with ctx
	t.Cleanup(func() { cancel(); f.watch.Wait() })
	config, err := plane.Admin()
	if err != nil {
		t.Fatal(err)
	}
	config.QPS, config.Burst = -1, -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := manifests.NewClient(config)
	if err != nil {
		t.Fatal(err)
	}
	f.up = &fixture.Cluster{Cluster: &cluster.Cluster{Dir: dir, Plane: plane, Config: config, Client: client}, Manifests: objects}
	f.makeNodes()
	if _, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fleetSpace}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := controlplane.AwaitDefaultAccount(t.Context(), client, fleetSpace); err != nil {
		t.Fatal(err)
	}
	f.play(ctx)
	return f
}

func rackOf(node string) string { return node[:len("rack-00")] }

func (f *fleet) makeNodes() {
	f.t.Helper()
	group, ctx := errgroup.WithContext(f.t.Context())
	group.SetLimit(16)
	offered := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("144"), corev1.ResourceMemory: resource.MustParse("900Gi"),
		corev1.ResourcePods: resource.MustParse("110")}
	nodes := f.up.Client.CoreV1().Nodes()
	for i := range *rackCount * rackSize {
		group.Go(func() error {
			name := fmt.Sprintf("rack-%02d-node-%02d", i/rackSize, i%rackSize)
			made, err := nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
				corev1.LabelHostname: name, corev1.LabelOSStable: "linux", cliqueLabel: rackOf(name)}}}, metav1.CreateOptions{})
			if err != nil {
				return err
			}
			made.Status = corev1.NodeStatus{Capacity: offered, Allocatable: offered,
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now(),
					LastTransitionTime: metav1.Now()}}}
			if made, err = nodes.UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
				return err
			}
			made.Spec.Taints = nil // "not ready", of admission
			if _, err = nodes.Update(ctx, made, metav1.UpdateOptions{}); apierrors.IsConflict(err) {
				return nil // the controller manager was faster
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		f.t.Fatal(err)
	}
}

// play plays the kubelets until ctx ends.
func (f *fleet) play(ctx context.Context) {
	f.t.Helper()
	pods := f.up.Client.CoreV1().Pods(fleetSpace)
	var writes errgroup.Group
	writes.SetLimit(16)
	saw := func(object any) {
		pod, ok := object.(*corev1.Pod)
		if !ok || pod.Spec.NodeName == "" {
			return
		}
		switch {
		case pod.DeletionTimestamp != nil:
			writes.Go(func() error {
				now := int64(0)
				return pods.Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &pod.UID}})
			})
			return
		case pod.Status.Phase == corev1.PodPending:
			running := pod.DeepCopy()
			running.Status.Phase = corev1.PodRunning
			running.Status.Conditions = append(running.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue})
			writes.Go(func() error { // the next event repeats one that failed
				_, err := pods.UpdateStatus(ctx, running, metav1.UpdateOptions{})
				return err
			})
		}
		f.mu.Lock()
		f.bound[pod.Name] = pod.Spec.NodeName
		f.mu.Unlock()
		f.tell()
	}
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(f.up.Client.CoreV1().RESTClient(), "pods", fleetSpace, fields.Everything()),
		ObjectType:    &corev1.Pod{},
		Handler: cache.ResourceEventHandlerFuncs{AddFunc: saw, UpdateFunc: func(_, object any) { saw(object) },
			DeleteFunc: func(object any) {
				if pod, ok := object.(*corev1.Pod); ok {
					f.mu.Lock()
					delete(f.bound, pod.Name)
					f.mu.Unlock()
					f.tell()
				}
			}},
	})
	f.watch.Go(func() { informer.RunWithContext(ctx); _ = writes.Wait() })
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		f.t.Fatal("the pods cannot be watched")
	}
}

func (f *fleet) tell() {
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// gang makes a Job of that many pods, each with a node for itself. By Kueue it is placed inside one clique.
func (f *fleet) gang(name string, size int, byKueue bool) error {
	count := int32(size) //nolint:gosec // at most 18
	indexed := batchv1.IndexedCompletion
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: batchv1.JobSpec{
		Parallelism: &count, Completions: &count, CompletionMode: &indexed,
		Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: ptr.To(int64(1)),
			Containers: []corev1.Container{{Name: "main", Image: "ubuntu:22.04",
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100")}}}},
		}},
	}}
	if byKueue {
		job.Labels = map[string]string{"kueue.x-k8s.io/queue-name": "racks"}
		job.Spec.Suspend = ptr.To(true)
		job.Spec.Template.Annotations = map[string]string{"kueue.x-k8s.io/podset-required-topology": cliqueLabel}
	}
	_, err := f.up.Client.BatchV1().Jobs(fleetSpace).Create(f.t.Context(), job, metav1.CreateOptions{})
	return err
}

func (f *fleet) end(name string) error {
	background := metav1.DeletePropagationBackground
	return f.up.Client.BatchV1().Jobs(fleetSpace).Delete(f.t.Context(), name, metav1.DeleteOptions{PropagationPolicy: &background})
}

// await waits until as many pods are bound as the gangs have.
func (f *fleet) await(gangs map[string]int) {
	f.t.Helper()
	want := 0
	for _, size := range gangs {
		want += size
	}
	ctx, cancel := context.WithTimeout(f.t.Context(), fixture.Patience)
	defer cancel()
	for {
		f.mu.Lock()
		bound := len(f.bound)
		f.mu.Unlock()
		if bound == want {
			return
		}
		select {
		case <-f.changed:
		case <-ctx.Done():
			f.t.Fatalf("%d pods are bound, not the %d of %d gangs", bound, want, len(gangs))
		}
	}
}

// placement is how gangs lie in racks.
type placement struct {
	gangs, split     int
	racks, free      int
	partly, possible int
}

func (f *fleet) look(gangs map[string]int) placement {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := placement{gangs: len(gangs), racks: *rackCount}
	used, of := map[string]int{}, map[string]map[string]bool{}
	nodes := 0
	for pod, node := range f.bound {
		rack := rackOf(node)
		used[rack]++
		nodes++
		gang := pod[:len("gang-0000")]
		if of[gang] == nil {
			of[gang] = map[string]bool{}
		}
		of[gang][rack] = true
	}
	for _, racks := range of {
		if len(racks) > 1 {
			p.split++
		}
	}
	p.free = *rackCount - len(used)
	for _, count := range used {
		if count < rackSize {
			p.partly++
		}
	}
	p.possible = (*rackCount*rackSize - nodes) / rackSize
	return p
}

// churn fills the fleet to the load, and then has gangs end and others follow. It returns the placement after each turn.
func (f *fleet) churn(byKueue bool) []placement {
	f.t.Helper()
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same gangs for both
	gangs := map[string]int{}
	var order []string
	nodes, made := 0, 0
	fill := func() {
		for {
			size := sizes[random.IntN(len(sizes))]
			if float64(nodes+size) > load*float64(*rackCount*rackSize) {
				return
			}
			name := fmt.Sprintf("gang-%04d", made)
			made++
			if err := f.gang(name, size, byKueue); err != nil {
				f.t.Fatal(err)
			}
			gangs[name], nodes, order = size, nodes+size, append(order, name)
		}
	}
	fill()
	f.await(gangs)
	looks := []placement{f.look(gangs)}
	for range *turns {
		// Enough end that a large one may follow.
		for freed := 0; freed < rackSize; {
			i := random.IntN(len(order))
			name := order[i]
			if err := f.end(name); err != nil {
				f.t.Fatal(err)
			}
			freed, nodes = freed+gangs[name], nodes-gangs[name]
			delete(gangs, name)
			order = slices.Delete(order, i, i+1)
		}
		f.await(gangs)
		fill()
		f.await(gangs)
		looks = append(looks, f.look(gangs))
	}
	for _, name := range order {
		if err := f.end(name); err != nil {
			f.t.Fatal(err)
		}
	}
	f.await(nil)
	return looks
}

func (f *fleet) told(by string, looks []placement) (split int, whole float64) {
	f.t.Helper()
	gangs, free, possible, partly := 0, 0, 0, 0
	for _, p := range looks {
		gangs, split, free, possible, partly = gangs+p.gangs, split+p.split, free+p.free, possible+p.possible, partly+p.partly
	}
	count := float64(len(looks))
	whole = float64(free) / count / float64(*rackCount)
	f.t.Logf("%s, mean of %d looks: of %.1f gangs at a time %.1f are split over cliques (%.1f %%); of %d racks %.1f are whole (%.1f %%; "+
		"%.1f could be), %.1f have some nodes free", by, len(looks), float64(gangs)/count, float64(split)/count,
		100*float64(split)/float64(gangs), *rackCount, float64(free)/count, 100*whole, float64(possible)/count, float64(partly)/count)
	return split, whole
}

func TestKueueSplitsNoGangOver56RacksAndKeepsMoreOfThemWhole(t *testing.T) {
	f := newFleet(t)
	_, byScheduler := f.told("kube-scheduler alone", f.churn(false))
	kueue := controller{name: "kueue", chart: "kueue", values: jobsOnly(), gates: map[string]any{"VisibilityOnDemand": false}}
	p, err := kueue.start(t.Context(), f.up)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop(stopTime)
	f.queue()
	split, byKueue := f.told("Kueue", f.churn(true))
	if split > 0 {
		t.Errorf("gangs were split over cliques %d times", split)
	}
	if byKueue <= byScheduler {
		t.Errorf("Kueue keeps %.1f %% of the racks whole, and kube-scheduler alone %.1f %%", 100*byKueue, 100*byScheduler)
	}
	if err := p.Err(); err != nil {
		t.Error(err)
	}
}

// jobsOnly are the example's values with no other kind of gang, since their CRDs are not installed.
func jobsOnly() map[string]any {
	return map[string]any{"managerConfig": map[string]any{"controllerManagerConfigYaml": `
apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
health: {healthProbeBindAddress: ":8081"}
metrics: {bindAddress: ":8443"}
webhook: {port: 9443}
leaderElection: {leaderElect: true, resourceName: c1f6bfd2.kueue.x-k8s.io}
clientConnection: {qps: 200, burst: 400}
integrations: {frameworks: [batch/job]}
`}}
}

// queue makes the example's queue for all racks. Kueue's webhooks may not serve at once.
func (f *fleet) queue() {
	f.t.Helper()
	objects, err := manifests.Parse([]byte(fmt.Sprintf(`
apiVersion: kueue.x-k8s.io/v1beta2
kind: Topology
metadata: {name: nvlink}
spec: {levels: [{nodeLabel: nvidia.com/gpu.clique}, {nodeLabel: kubernetes.io/hostname}]}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: racks}
spec: {nodeLabels: {kubernetes.io/os: linux}, topologyName: nvlink}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: racks}
spec:
  namespaceSelector: {}
  resourceGroups:
  - coveredResources: [cpu]
    flavors: [{name: racks, resources: [{name: cpu, nominalQuota: %d}]}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: racks}
spec: {clusterQueue: racks}
`, *rackCount*rackSize*144)))
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(f.t.Context(), fixture.Patience)
	defer cancel()
	var last error
	if err := wait.PollUntilContextCancel(ctx, period, true, func(ctx context.Context) (bool, error) {
		last = f.up.Manifests.Apply(ctx, fleetSpace, objects...)
		return last == nil, nil
	}); err != nil {
		f.t.Fatalf("make the queue: %v", last)
	}
}
