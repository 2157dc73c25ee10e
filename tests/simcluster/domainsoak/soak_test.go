// Package domainsoak lets compute domains come and continue a simulated cluster whose pods get the addresses of earlier pods, in the mode
// with daemons of their own and in clique mode, and looks for what they leave: objects, labels, files, CDI specs, goroutines, memory. `make
// soak-domains` runs it with 2,000 domains on 36 nodes in each mode; the tests run some tens.
package domainsoak

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/domain"
	"gpufabric.io/tests/simcluster/fabric"
	"gpufabric.io/tests/simcluster/fixture"
	"gpufabric.io/tests/simcluster/leftover"
	"gpufabric.io/tests/simcluster/manifests"
)

var (
	domains = flag.Int("domains", 12, "how many domains come and go in each mode")        //nolint:gochecknoglobals // a flag
	nodes   = flag.Int("nodes", 6, "how many nodes the cluster has")                      //nolint:gochecknoglobals // a flag
	modes   = flag.String("modes", "domain clique", "the modes (computeDomains.imex)")    //nolint:gochecknoglobals // a flag
	limit   = flag.Duration("limit", 0, "stop making domains after this time; 0: do not") //nolint:gochecknoglobals // a flag
)

// largest is how many nodes a domain has at most, and sharers how many domains share a node in clique mode.
const (
	largest = 6
	sharers = 3
	space   = "soak"
)

// soak is one mode's run.
type soak struct {
	*fixture.Cluster
	t      *testing.T
	shared bool

	mu sync.Mutex
	// used is how many domains each node has.
	used []int
	free chan struct{} // has a token when a node has become free
	// holders are the domains by the channel that their running pods have, in clique mode; all nodes of a clique have one table.
	holders map[string]string
	cliques map[string]string // by node
	uids    []string

	made, formed atomic.Int64
}

func TestDomainsAreRemovedCompletelyUnderChurn(t *testing.T) {
	for _, mode := range strings.Fields(*modes) {
		t.Run(mode, func(t *testing.T) { run(t, mode) })
	}
}

func run(t *testing.T, mode string) {
	if kind := fabric.Mode(os.Getenv("SIMCLUSTER_CONTAINERS")); kind != "" && kind != fabric.AsGoroutines {
		t.Skipf("containers run as %s: goroutines and messages are counted where all of them are goroutines of this process", kind)
	}
	up, err := fixture.Up(t.Context(), fixture.Options{
		Nodes: *nodes, ReuseAddresses: true, Values: map[string]any{"computeDomains": map[string]any{"imex": mode}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer up.Down()
	s := &soak{Cluster: up, t: t, shared: mode == "clique", used: make([]int, *nodes), free: make(chan struct{}, 1),
		holders: map[string]string{}, cliques: map[string]string{}}
	for _, node := range up.Nodes(t) {
		s.cliques[node.Name] = node.Labels["nvidia.com/gpu.clique"]
	}
	if _, err := up.Client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: space}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// The first domains make everything that is made once and stays: caches, connections, the cliques' daemons.
	s.come(*nodes)
	s.nothingLeft()
	before := s.count()
	begun := time.Now()
	s.come(*domains)
	s.nothingLeft()
	after := s.count()
	t.Logf("mode %s: %d domains of up to %d nodes on %d nodes in %s; answers of IMEX daemons: %d of their own domain, %d of others refused; "+
		"before %v, after %v", mode, s.formed.Load(), largest, *nodes, time.Since(begun).Round(time.Second), up.Messages.Own(),
		up.Messages.Refused(), before, after)
	if taken := up.Messages.Taken(); taken != 0 {
		t.Errorf("%d answers of another domain's daemons were taken for a peer's", taken)
	}
	if up.Messages.Own() == 0 {
		t.Error("no daemon has heard another: the count of foreign answers says nothing")
	}
	// Connections and watches come and go by themselves; a leak of one a domain is far more than that.
	if grown := after.goroutines - before.goroutines; grown > max(*domains/10, 100) {
		t.Errorf("%d goroutines more after %d domains", grown, *domains)
	}
	// The permanent part of a domain must be small: 4 KiB are an object.
	if grown := int64(after.heap) - int64(before.heap); grown > int64(*domains)*4<<10+64<<20 { //nolint:gosec // bytes of a heap
		t.Errorf("%d MiB more of live memory after %d domains", grown>>20, *domains)
	}
	for _, file := range after.files {
		if !slices.Contains(before.files, file) {
			t.Errorf("%s was left, or was not there before", file)
		}
	}
	if err := up.Err(); err != nil {
		t.Errorf("the cluster did not last: %v", err)
	}
}

// count is what may grow.
type count struct {
	goroutines int
	files      []string // on the nodes
	heap       uint64
}

func (c count) String() string {
	return fmt.Sprintf("%d goroutines, %d MiB, %d files on nodes", c.goroutines, c.heap>>20, len(c.files))
}

func (s *soak) count() count {
	s.t.Helper()
	runtime.GC()
	runtime.GC() // what finalizers have released
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	files, err := leftover.Files(s.Dir, *nodes)
	if err != nil {
		s.t.Fatal(err)
	}
	return count{goroutines: runtime.NumGoroutine(), files: files, heap: memory.HeapAlloc}
}

// come has that many domains come and go, as many at a time as the nodes take.
func (s *soak) come(total int) {
	s.t.Helper()
	group, ctx := errgroup.WithContext(s.t.Context())
	random := rand.New(rand.NewPCG(uint64(total), 1)) //nolint:gosec // no secret
	begun := time.Now()
	for range total {
		if *limit > 0 && time.Since(begun) > *limit {
			break
		}
		members, err := s.take(ctx, 1+random.IntN(min(largest, *nodes)), random)
		if err != nil {
			break // another has failed
		}
		name := fmt.Sprintf("d%d", s.made.Add(1))
		podsFirst := random.IntN(2) == 0
		group.Go(func() error {
			defer s.give(members)
			if err := s.one(ctx, name, members, podsFirst); err != nil {
				return fmt.Errorf("domain %s on nodes %v: %w", name, members, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		s.t.Fatal(err)
	}
}

// take waits until that many nodes have room for another domain.
func (s *soak) take(ctx context.Context, size int, random *rand.Rand) ([]int, error) {
	room := 1
	if s.shared {
		room = sharers
	}
	for {
		var members []int
		s.mu.Lock()
		for _, i := range random.Perm(*nodes) {
			if len(members) < size && s.used[i] < room {
				members = append(members, i)
			}
		}
		enough := len(members) == size
		if enough {
			for _, i := range members {
				s.used[i]++
			}
		}
		s.mu.Unlock()
		if enough {
			return members, nil
		}
		select {
		case <-s.free:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (s *soak) give(members []int) {
	s.mu.Lock()
	for _, i := range members {
		s.used[i]--
	}
	s.mu.Unlock()
	select {
	case s.free <- struct{}{}:
	default:
	}
}

const soakDomain = `
apiVersion: resource.nvidia.com/v1beta1
kind: ComputeDomain
metadata: {name: %[1]s}
spec:
  numNodes: %[2]d
  channel: {resourceClaimTemplate: {name: %[1]s-channel}}
`

const soakPod = `
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, labels: {domain: %[2]s}}
spec:
  terminationGracePeriodSeconds: 1
  nodeSelector: {kubernetes.io/hostname: %[3]s}
  containers: [{name: main, image: "ubuntu:22.04", resources: {claims: [{name: channel}]}}]
  resourceClaims: [{name: channel, resourceClaimTemplateName: %[2]s-channel}]
`

// one is the life of a domain.
func (s *soak) one(ctx context.Context, name string, members []int, podsFirst bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, fixture.Patience, errors.New("its life took longer than "+fixture.Patience.String()))
	defer cancel()
	if err := s.apply(ctx, fmt.Sprintf(soakDomain, name, len(members))); err != nil {
		return err
	}
	for _, i := range members {
		if err := s.apply(ctx, fmt.Sprintf(soakPod, fmt.Sprintf("%s-%d", name, i), name, cluster.NodeName(i))); err != nil {
			return err
		}
	}
	d, err := domain.Await(ctx, s.Manifests.Objects(), space, name, domain.ReadyOn(len(members)))
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.uids = append(s.uids, d.UID)
	s.mu.Unlock()
	if err := s.running(ctx, name, len(members)); err != nil {
		return err
	}
	held, err := s.channels(ctx, name, members)
	if err != nil {
		return err
	}
	s.formed.Add(1)
	steps := []func() error{func() error { return s.endPods(ctx, name) }, func() error {
		err := s.Manifests.Objects().Resource(domain.Resource).Namespace(space).Delete(ctx, name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}}
	if !podsFirst {
		slices.Reverse(steps)
	}
	s.release(held)
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	if err := domain.AwaitNone(ctx, s.pods(name), &corev1.Pod{}); err != nil {
		return fmt.Errorf("wait for the end of its pods: %w", err)
	}
	return domain.AwaitGone(ctx, s.Manifests.Objects(), space, name)
}

func (s *soak) apply(ctx context.Context, manifest string) error {
	objects, err := manifests.Parse([]byte(manifest))
	if err != nil {
		return err
	}
	return s.Manifests.Apply(ctx, space, objects...)
}

func (s *soak) pods(of string) cache.ListerWatcher {
	return cache.NewFilteredListWatchFromClient(s.Client.CoreV1().RESTClient(), "pods", space, func(o *metav1.ListOptions) {
		o.LabelSelector, o.FieldSelector = "domain="+of, fields.Everything().String()
	})
}

// running waits until that many pods of a domain run.
func (s *soak) running(ctx context.Context, of string, count int) error {
	run := map[string]bool{}
	if _, err := watchtools.UntilWithSync(ctx, s.pods(of), &corev1.Pod{}, nil, func(event watch.Event) (bool, error) {
		if pod, ok := event.Object.(*corev1.Pod); ok {
			run[pod.Name] = fixture.Running(pod)
		}
		running := 0
		for _, is := range run {
			if is {
				running++
			}
		}
		return running == count, nil
	}); err != nil {
		return fmt.Errorf("wait for its pods: %w; of %d run: %v", context.Cause(ctx), count, run)
	}
	return nil
}

func (s *soak) endPods(ctx context.Context, of string) error {
	return s.Client.CoreV1().Pods(space).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "domain=" + of})
}

var channel = regexp.MustCompile(`^/dev/nvidia-caps-imex-channels/channel\d+$`)

// channels fails unless the pods of a domain have one channel each, the same in each clique, and in clique mode none that another domain
// has now. It returns what it noted.
func (s *soak) channels(ctx context.Context, of string, members []int) (held []string, err error) {
	byClique := map[string]string{}
	for _, i := range members {
		received, err := cluster.ReceivedBy(ctx, s.Dir, s.Client, space, fmt.Sprintf("%s-%d", of, i))
		if err != nil {
			return nil, err
		}
		var paths []string
		for _, container := range received {
			for _, device := range container.Devices {
				if channel.MatchString(device.Path) {
					paths = append(paths, device.Path)
				}
			}
		}
		clique := s.cliques[cluster.NodeName(i)]
		if len(paths) != 1 {
			return nil, fmt.Errorf("its pod on node %d has the channels %v, not one", i, paths)
		}
		if other, has := byClique[clique]; has && other != paths[0] {
			return nil, fmt.Errorf("its pods in clique %s have %s and %s", clique, other, paths[0])
		}
		byClique[clique] = paths[0]
	}
	if !s.shared {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for clique, path := range byClique {
		key := clique + path
		if other, taken := s.holders[key]; taken {
			return nil, fmt.Errorf("%s of clique %s is that of domain %s too", path, clique, other)
		}
		s.holders[key] = of
		held = append(held, key)
	}
	return held, nil
}

func (s *soak) release(held []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range held {
		delete(s.holders, key)
	}
}

// nothingLeft waits until nothing refers to any of the domains so far.
func (s *soak) nothingLeft() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), fixture.Patience)
	defer cancel()
	s.mu.Lock()
	uids := s.uids
	s.uids = nil
	s.mu.Unlock()
	var left []string
	// Files have no event that a test could wait for.
	if err := wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		var err error
		left, err = s.left(ctx, uids)
		return len(left) == 0, err
	}); err != nil {
		s.t.Fatalf("after %d domains this is left: %.2000s (%v)", len(uids), strings.Join(left, ", "), err)
	}
}

// left is what refers to domains with these UIDs, and what only living domains bring.
func (s *soak) left(ctx context.Context, uids []string) ([]string, error) {
	left, err := s.LeftOf(ctx, uids...)
	if err != nil {
		return nil, err
	}
	claims, err := s.Client.ResourceV1().ResourceClaims(space).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, claim := range claims.Items {
		left = append(left, "ResourceClaim "+claim.Name)
	}
	templates, err := s.Client.ResourceV1().ResourceClaimTemplates(space).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, template := range templates.Items {
		left = append(left, "ResourceClaimTemplate "+template.Name)
	}
	list, err := s.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, node := range list.Items {
		for label := range node.Labels {
			if strings.HasPrefix(label, "computedomain.gpufabric.io/") || label == "resource.nvidia.com/computeDomain" {
				left = append(left, "label "+label+" of "+node.Name)
			}
		}
	}
	found, err := s.Manifests.Objects().Resource(domain.Resource).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i := range found.Items {
		status, _ := found.Items[i].Object["status"].(map[string]any)
		held, _ := status["channels"].([]any)
		switch name := found.Items[i].GetNamespace() + "/" + found.Items[i].GetName(); {
		case found.Items[i].GetNamespace() != fixture.System:
			left = append(left, "ComputeDomain "+name)
		case len(held) > 0:
			left = append(left, fmt.Sprintf("%d channels of %s", len(held), name))
		}
	}
	return left, nil
}
