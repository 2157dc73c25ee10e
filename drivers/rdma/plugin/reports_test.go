package plugin_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/hardware/sysfstest"
	"gpufabric.io/drivers/node/deviceplugin/kubelettest"
	"gpufabric.io/drivers/rdma/exclusive"
	"gpufabric.io/drivers/rdma/pool"
)

// api has the RDMAPools that select the node, and the node's reports on them.
type api struct {
	lists chan []pool.Object

	mu       sync.Mutex
	failing  bool
	reported map[string]*v1alpha1.RDMAPoolNode
	changed  chan struct{}
}

func newAPI(n *node) *api {
	a := &api{lists: make(chan []pool.Object), reported: make(map[string]*v1alpha1.RDMAPoolNode), changed: make(chan struct{})}
	n.options.Pools = a
	return a
}

func (a *api) Watch(ctx context.Context, changed func([]pool.Object)) error {
	for {
		select {
		case list := <-a.lists:
			changed(list)
		case <-ctx.Done():
			return nil
		}
	}
}

func (a *api) Report(_ context.Context, pool string, entry *v1alpha1.RDMAPoolNode) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.failing {
		return errors.New("the API server is away")
	}
	if entry == nil {
		delete(a.reported, pool)
	} else {
		a.reported[pool] = entry.DeepCopy()
	}
	close(a.changed)
	a.changed = make(chan struct{})
	return nil
}

// await waits until the report on a pool satisfies want; it is nil where there is none.
func (a *api) await(t *testing.T, pool, description string, want func(*v1alpha1.RDMAPoolNode) bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	for {
		a.mu.Lock()
		changed, entry := a.changed, a.reported[pool]
		a.mu.Unlock()
		if want(entry) {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("RDMAPool %s: no %s; the report is %+v", pool, description, entry)
		}
	}
}

func object(name, resource string, units int32, ifNames ...string) pool.Object {
	return pool.Object{Name: name, Generation: 3, Config: v1alpha1.RDMAPoolConfig{
		ResourceName: resource, RDMAHCAMax: units, Selectors: &v1alpha1.RDMASelectors{IfNames: ifNames},
	}}
}

func TestPoolsOfTheFileAndOfTheAPIAreServedTogether(t *testing.T) {
	n := newNode(t)
	n.two()
	a := newAPI(n)
	n.start()
	n.kubelet.AwaitAllocatable(shared, 1000)
	a.lists <- []pool.Object{object("second", "rail_1", 40, "ibp94s0")}
	n.kubelet.AwaitAllocatable("rdma/rail_1", 40)
	a.await(t, "second", "report of a conflict", func(r *v1alpha1.RDMAPoolNode) bool {
		return r != nil && r.ObservedGeneration == 3 && r.Devices == 1 && r.HealthyDevices == 1 && r.Units == 40 &&
			len(r.Conflicts) == 1 && r.Conflicts[0] == "mlx5_1: also in config.json configList[0]"
	})
	a.lists <- nil
	n.kubelet.Await("rdma/rail_1", "end of the pool", func(r kubelettest.Resource) bool { return r.Capacity == 0 })
	a.await(t, "second", "removal of the report", func(r *v1alpha1.RDMAPoolNode) bool { return r == nil })
	if view := n.kubelet.View(shared); view.Allocatable != 1000 || view.Lists != 1 {
		t.Errorf("the other pool was disturbed: %+v", view)
	}
}

func TestReportNamesAConflictOnBothPools(t *testing.T) {
	n := newNode(t)
	n.addHCA(0x3a, "0", sysfstest.HCA{Nets: []string{"ibp3s0"}})
	a := newAPI(n)
	n.start()
	a.lists <- []pool.Object{object("a", "a", 1, "ibp3s0"), object("b", "b", 1, "ibp3s0"), object("c", "a", 1, "ibp3s0")}
	for pool, conflict := range map[string]string{"a": "mlx5_0: also in RDMAPool b", "b": "mlx5_0: also in RDMAPool a",
		"c": "the resource rdma/a is that of RDMAPool a already"} {
		a.await(t, pool, "conflict "+conflict, func(r *v1alpha1.RDMAPoolNode) bool {
			return r != nil && strings.Contains(strings.Join(r.Conflicts, "\n"), conflict)
		})
	}
	a.await(t, "a", "conflict with the pool of its name", func(r *v1alpha1.RDMAPoolNode) bool {
		return strings.Contains(strings.Join(r.Conflicts, "\n"), "RDMAPool c wants the resource rdma/a too")
	})
}

func TestReportsNameMistakes(t *testing.T) {
	n := newNode(t)
	device := n.addHCA(0x3a, "0", sysfstest.HCA{Nets: []string{"ibp3s0"}})
	a := newAPI(n)
	n.start()
	mistaken := object("mistaken", "m", 1, "ibp3s0")
	mistaken.Mistake = errors.New("spec.mode: Unsupported value")
	a.lists <- []pool.Object{mistaken, object("none", "n", 1, "ens2f0"), object("port", "p", 2, "ibp3s0")}
	a.await(t, "mistaken", "mistake", func(r *v1alpha1.RDMAPoolNode) bool { return r != nil && strings.Contains(r.Message, "spec.mode") })
	a.await(t, "none", "reason", func(r *v1alpha1.RDMAPoolNode) bool {
		return r != nil && r.Devices == 0 && r.Message == "mlx5_0: selectors.ifNames: its interface ibp3s0 is not among [ens2f0]"
	})
	n.tree.Write(device+"/ports/1/state", "1: DOWN")
	a.await(t, "port", "port that is down", func(r *v1alpha1.RDMAPoolNode) bool {
		return r != nil && r.Devices == 1 && r.HealthyDevices == 0 && r.Units == 0 &&
			r.Message == "mlx5_0: the port's state is DOWN (physical state LinkUp)"
	})
}

// The reports of a thousand nodes are in one object.
func TestReportIsShortForManyDevices(t *testing.T) {
	n := newNode(t)
	for i := range 40 {
		n.addHCA(2*i, "0", sysfstest.HCA{})
	}
	a := newAPI(n)
	n.start()
	a.lists <- []pool.Object{object("none", "n", 1, "ens2f0")}
	a.await(t, "none", "reason", func(r *v1alpha1.RDMAPoolNode) bool { return r != nil && r.Message != "" })
	a.mu.Lock()
	defer a.mu.Unlock()
	message := a.reported["none"].Message
	reported := strings.Count(message, "selectors.ifNames: it has no interface, and [ens2f0] is wanted")
	if len(message) > 700 || reported < 5 || !strings.HasSuffix(message, fmt.Sprintf("; and %d more", 40-reported)) {
		t.Errorf("%d bytes of %d devices: %s", len(message), reported, message)
	}
}

func TestPluginServesTheKubeletWithoutTheAPIServer(t *testing.T) {
	n := newNode(t)
	first, _ := n.two()
	a := newAPI(n)
	a.failing = true
	n.start()
	a.lists <- []pool.Object{object("second", "rail_1", 40, "ibp94s0")}
	n.kubelet.AwaitAllocatable("rdma/rail_1", 40)
	n.tree.Write(first+"/ports/1/state", "1: DOWN")
	n.kubelet.AwaitAllocatable(shared, 500)
}

// exclusiveLinks are those of a node in exclusive mode.
type exclusiveLinks struct{ exclusive.Netlink }

func (exclusiveLinks) Exclusive() (bool, error) { return true, nil }

func TestSharedUnitsOfANodeInExclusiveModeAreReported(t *testing.T) {
	n := newNode(t)
	n.two()
	a := newAPI(n)
	n.options.Links = exclusiveLinks{}
	n.start()
	a.lists <- []pool.Object{object("rail-0", "rail0", 8, "ibp94s0")}
	a.await(t, "rail-0", "word of the mode", func(entry *v1alpha1.RDMAPoolNode) bool {
		return entry != nil && entry.Closed && strings.Contains(entry.Message, "are in exclusive mode") &&
			strings.Contains(entry.Message, "network: Exclusive")
	})
}
