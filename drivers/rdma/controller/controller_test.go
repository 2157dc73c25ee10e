package controller

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/rdma/apiservertest"
	"gpufabric.io/drivers/rdma/pool"
)

// patience bounds every wait for the API server.
const patience = 5 * time.Minute

// serve runs a real API server with the CRD until the test ends.
func serve(t *testing.T) (*rest.Config, client.Client) {
	t.Helper()
	config := apiservertest.Start(t, "../../api/crds/gpufabric.io_rdmapools.yaml")
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return config, c
}

// control runs the controller until the test ends.
func control(t *testing.T, config *rest.Config) {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	m, err := ctrl.NewManager(config, ctrl.Options{Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := Add(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() {
		if err := m.Start(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); group.Wait() })
}

// await waits until a pool's status satisfies want.
func await(t *testing.T, c client.Client, name, description string, want func(v1alpha1.RDMAPoolStatus) bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		var p v1alpha1.RDMAPool
		if err := c.Get(t.Context(), client.ObjectKey{Name: name}, &p); err != nil {
			t.Fatal(err)
		}
		if want(p.Status) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: no %s; the status is %+v", name, description, p.Status)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func condition(s v1alpha1.RDMAPoolStatus, kind string) metav1.Condition {
	if c := meta.FindStatusCondition(s.Conditions, kind); c != nil {
		return *c
	}
	return metav1.Condition{}
}

func newPool(name string, spec v1alpha1.RDMAPoolSpec) *v1alpha1.RDMAPool {
	return &v1alpha1.RDMAPool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
}

// view is a node's view of the API.
type view struct {
	*pool.Client
	listed chan []pool.Object
}

// node makes a Node and watches the pools as its plugin does.
func node(t *testing.T, config *rest.Config, c client.Client, name string, labels map[string]string) *view {
	t.Helper()
	if err := c.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}); err != nil {
		t.Fatal(err)
	}
	core, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	pools, err := pool.NewClient(config, core, name)
	if err != nil {
		t.Fatal(err)
	}
	v := &view{Client: pools, listed: make(chan []pool.Object)}
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() {
		err := pools.Watch(ctx, func(list []pool.Object) {
			select {
			case v.listed <- list:
			case <-ctx.Done():
			}
		})
		if err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); group.Wait() })
	return v
}

// listsTheSame checks that a single read of the pools gives the same as the watch.
func (v *view) listsTheSame(t *testing.T, watched []pool.Object) {
	t.Helper()
	listing, err := v.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.EqualFunc(listing.Pools, watched, func(a, b pool.Object) bool {
		return a.Name == b.Name && a.Generation == b.Generation && (a.Mistake == nil) == (b.Mistake == nil)
	}) {
		t.Errorf("a list has %+v, the watch %+v", listing.Pools, watched)
	}
}

// sees waits until the node has these pools.
func (v *view) sees(t *testing.T, names ...string) []pool.Object {
	t.Helper()
	deadline := time.After(patience)
	var last []string
	for {
		select {
		case list := <-v.listed:
			last = nil
			for _, p := range list {
				last = append(last, p.Name)
			}
			if slices.Equal(last, names) {
				v.listsTheSame(t, list)
				return list
			}
		case <-deadline:
			t.Fatalf("the node sees %v, not %v", last, names)
		}
	}
}

func (v *view) report(t *testing.T, pool string, entry v1alpha1.RDMAPoolNode) {
	t.Helper()
	if err := v.Report(t.Context(), pool, &entry); err != nil {
		t.Fatal(err)
	}
}

func TestPoolsAreReconciledOnARealAPIServer(t *testing.T) {
	config, c := serve(t)
	control(t, config)
	spec := v1alpha1.RDMAPoolSpec{
		NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"rail": "yes"}},
		RDMAPoolConfig: v1alpha1.RDMAPoolConfig{
			ResourceName: "hca_shared_devices_a", RDMAHCAMax: 1000, Selectors: &v1alpha1.RDMASelectors{Vendors: []string{"15b3"}},
		},
	}
	other := node(t, config, c, "node-c", nil)
	if err := c.Create(t.Context(), newPool("nowhere", spec)); err != nil {
		t.Fatal(err)
	}
	await(t, c, "nowhere", "NoNodes", func(s v1alpha1.RDMAPoolStatus) bool {
		return condition(s, v1alpha1.RDMAPoolReady).Reason == reasonNoNodes
	})
	if err := c.Delete(t.Context(), newPool("nowhere", spec)); err != nil {
		t.Fatal(err)
	}
	a := node(t, config, c, "node-a", map[string]string{"rail": "yes"})
	b := node(t, config, c, "node-b", map[string]string{"rail": "yes"})
	if err := c.Create(t.Context(), newPool("rails", spec)); err != nil {
		t.Fatal(err)
	}

	t.Run("a pool that nobody reported on waits", func(t *testing.T) {
		await(t, c, "rails", "WaitingForNodes", func(s v1alpha1.RDMAPoolStatus) bool {
			r := condition(s, v1alpha1.RDMAPoolReady)
			return r.Reason == reasonWaiting && r.Status == metav1.ConditionFalse && s.Resource == "rdma/hca_shared_devices_a" &&
				s.ObservedGeneration == 1
		})
	})
	t.Run("nodes see the pools that select them", func(t *testing.T) {
		if list := a.sees(t, "rails"); list[0].Generation != 1 || list[0].Config.RDMAHCAMax != 1000 || list[0].Mistake != nil {
			t.Errorf("got %+v", list)
		}
		b.sees(t, "rails")
		var n corev1.Node
		if err := c.Get(t.Context(), client.ObjectKey{Name: "node-c"}, &n); err != nil {
			t.Fatal(err)
		}
		n.Labels = map[string]string{"rail": "yes"}
		if err := c.Update(t.Context(), &n); err != nil {
			t.Fatal(err)
		}
		other.sees(t, "rails")
	})
	t.Run("reports of several nodes are added up", func(t *testing.T) {
		a.report(t, "rails", v1alpha1.RDMAPoolNode{ObservedGeneration: 1, Devices: 8, HealthyDevices: 8, Units: 1000})
		b.report(t, "rails", v1alpha1.RDMAPoolNode{ObservedGeneration: 1, Devices: 8, HealthyDevices: 7, Units: 875,
			Message: "mlx5_3: the port's state is DOWN"})
		await(t, c, "rails", "15 of 16 devices", func(s v1alpha1.RDMAPoolStatus) bool {
			r := condition(s, v1alpha1.RDMAPoolReady)
			return len(s.Nodes) == 2 && s.NodeCount == 2 && s.Devices == 16 && s.HealthyDevices == 15 &&
				r.Status == metav1.ConditionTrue && r.Reason == reasonDegraded &&
				strings.Contains(r.Message, "15 of 16 devices can carry traffic, on 2 nodes")
		})
	})
	t.Run("a node without a healthy device is named", func(t *testing.T) {
		b.report(t, "rails", v1alpha1.RDMAPoolNode{ObservedGeneration: 1, Devices: 8, Message: "mlx5_0: the port is gone"})
		await(t, c, "rails", "DevicesDown", func(s v1alpha1.RDMAPoolStatus) bool {
			r := condition(s, v1alpha1.RDMAPoolReady)
			return r.Status == metav1.ConditionFalse && r.Reason == reasonDown &&
				strings.Contains(r.Message, "none on node-b (mlx5_0: the port is gone)")
		})
	})
	t.Run("conflicts are a condition", func(t *testing.T) {
		b.report(t, "rails", v1alpha1.RDMAPoolNode{ObservedGeneration: 1, Devices: 8, HealthyDevices: 8, Units: 1000,
			Conflicts: []string{"mlx5_0: also in RDMAPool other"}})
		await(t, c, "rails", "Conflicting", func(s v1alpha1.RDMAPoolStatus) bool {
			r := condition(s, v1alpha1.RDMAPoolConflicting)
			return r.Status == metav1.ConditionTrue && r.Message == "node-b: mlx5_0: also in RDMAPool other" &&
				condition(s, v1alpha1.RDMAPoolReady).Reason == reasonHealthy
		})
	})
	t.Run("a value that no node's devices have is named", func(t *testing.T) {
		reported := v1alpha1.RDMAPoolNode{ObservedGeneration: 1, Devices: 8, HealthyDevices: 8, Units: 1000,
			Unmatched: []string{"selectors.vendors[0]"}}
		a.report(t, "rails", reported)
		b.report(t, "rails", reported)
		await(t, c, "rails", "message about the value", func(s v1alpha1.RDMAPoolStatus) bool {
			return strings.HasSuffix(condition(s, v1alpha1.RDMAPoolReady).Message, `; no device of any node has selectors.vendors[0] "15b3"`)
		})
		reported.Unmatched = nil
		a.report(t, "rails", reported)
		await(t, c, "rails", "message without the value", func(s v1alpha1.RDMAPoolStatus) bool {
			return !strings.Contains(condition(s, v1alpha1.RDMAPoolReady).Message, "vendors")
		})
	})
	t.Run("a node that is no longer selected takes its report back", func(t *testing.T) {
		if err := b.Report(t.Context(), "rails", nil); err != nil {
			t.Fatal(err)
		}
		await(t, c, "rails", "one node", func(s v1alpha1.RDMAPoolStatus) bool {
			return len(s.Nodes) == 1 && s.Nodes[0].Name == "node-a" && s.Devices == 8 &&
				condition(s, v1alpha1.RDMAPoolConflicting).Status == metav1.ConditionFalse
		})
	})
	t.Run("a report on a pool that was deleted is no error", func(t *testing.T) {
		if err := a.Report(t.Context(), "gone", &v1alpha1.RDMAPoolNode{}); err != nil {
			t.Error(err)
		}
	})
	t.Run("the API server refuses what its schema can tell", func(t *testing.T) {
		for name, change := range map[string]func(*v1alpha1.RDMAPoolSpec){
			"a bad name":        func(s *v1alpha1.RDMAPoolSpec) { s.ResourceName = "a-b" },
			"an unknown mode":   func(s *v1alpha1.RDMAPoolSpec) { s.Mode = "shared" },
			"too many units":    func(s *v1alpha1.RDMAPoolSpec) { s.RDMAHCAMax = 1 << 20 },
			"a negative number": func(s *v1alpha1.RDMAPoolSpec) { s.RDMAHCAMax = -1 },
		} {
			bad := *spec.DeepCopy()
			change(&bad)
			if err := c.Create(t.Context(), newPool("bad", bad)); !apierrors.IsInvalid(err) {
				t.Errorf("%s: got %v", name, err)
			}
		}
	})
	t.Run("what it cannot tell is in the condition", func(t *testing.T) {
		bad := *spec.DeepCopy()
		bad.Selectors = &v1alpha1.RDMASelectors{Vendors: []string{"0x15b3"}}
		bad.Devices = []string{"ens2f0"}
		if err := c.Create(t.Context(), newPool("mistaken", bad)); err != nil {
			t.Fatal(err)
		}
		await(t, c, "mistaken", "InvalidSpec", func(s v1alpha1.RDMAPoolStatus) bool {
			r := condition(s, v1alpha1.RDMAPoolReady)
			return r.Reason == reasonInvalid && strings.Contains(r.Message, "spec.devices") &&
				strings.Contains(r.Message, "spec.selectors.vendors[0]")
		})
		if list := a.sees(t, "mistaken", "rails"); list[0].Mistake == nil {
			t.Error("the node would serve the pool")
		}
	})
}

func TestReportsOfNodesThatAreGoneAreSwept(t *testing.T) {
	config, c := serve(t)
	rdma := map[string]string{"role": "rdma"}
	if err := c.Create(t.Context(), newPool("p", v1alpha1.RDMAPoolSpec{
		NodeSelector: &metav1.LabelSelector{MatchLabels: rdma}, RDMAPoolConfig: v1alpha1.RDMAPoolConfig{ResourceName: "p",
			Devices: []string{"ib0"}},
	})); err != nil {
		t.Fatal(err)
	}
	a := node(t, config, c, "node-a", rdma)
	b := node(t, config, c, "node-b", rdma)
	// A plugin that was away when its node was deselected does not remove its report.
	node(t, config, c, "node-c", nil).report(t, "p", v1alpha1.RDMAPoolNode{ObservedGeneration: 1, Devices: 1, HealthyDevices: 1, Units: 1})
	for _, v := range []*view{a, b} {
		v.sees(t, "p")
		v.report(t, "p", v1alpha1.RDMAPoolNode{ObservedGeneration: 1, Devices: 1, HealthyDevices: 1, Units: 1})
	}
	if err := c.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-b"}}); err != nil {
		t.Fatal(err)
	}
	control(t, config)
	await(t, c, "p", "only node-a", func(s v1alpha1.RDMAPoolStatus) bool {
		return len(s.Nodes) == 1 && s.Nodes[0].Name == "node-a" && s.Devices == 1 && condition(s, v1alpha1.RDMAPoolReady).Reason == reasonHealthy
	})
}
