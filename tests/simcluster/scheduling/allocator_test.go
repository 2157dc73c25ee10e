package scheduling

import (
	"fmt"
	"math"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"
)

// classes are the DeviceClasses of the measured cluster.
type classes struct{}

func (classes) Get(name string) (*resourceapi.DeviceClass, error) {
	return deviceClass(name), nil
}

func (classes) List() ([]*resourceapi.DeviceClass, error) { return nil, nil }

// features are those of Kubernetes 1.36.3 by default.
var features = structured.Features{
	AdminAccess: true, PrioritizedList: true, PartitionableDevices: true, DeviceTaints: true, DeviceBindingAndStatus: true,
	ConsumableCapacity: true,
}

// BenchmarkAPodOnEveryNode measures only the allocator's work for one pod that is tried on each of 64 nodes. This is the part
// of a scheduler's work that depends on the published devices. Without the rest of the scheduler and the API server, its
// results vary little, and show a difference of a hundredth between two layouts.
func BenchmarkAPodOnEveryNode(b *testing.B) {
	m, err := NewMachine(b.Context(), "h100-hgx")
	if err != nil {
		b.Fatal(err)
	}
	for _, fill := range []float64{0, 0.5, 0.8, 0.95} {
		for _, row := range Rows() {
			if row.class == "" {
				continue
			}
			b.Run(fmt.Sprintf("%.0f/%s", 100*fill, row.Name), func(b *testing.B) {
				try := aPod(b, m, row, fill)
				b.ReportAllocs()
				for b.Loop() {
					try()
				}
			})
		}
	}
}

// TestAllocatorCostOfAWholeGPUIsThePublicDrivers compares how much the allocator allocates on its heap for a pod.
// Unlike times, this is the same on a busy machine. The driver may cost a twentieth more than the public one, since it
// publishes three more attributes for each GPU.
func TestAllocatorCostOfAWholeGPUIsThePublicDrivers(t *testing.T) {
	m, err := NewMachine(t.Context(), "h100-hgx")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]Row{}
	for _, row := range Rows() {
		rows[row.Name] = row
	}
	for _, pair := range [][2]string{{"public-whole", "whole"}, {"other-public", "other-whole"}} {
		for _, fill := range []float64{0, 0.5, 0.95} {
			theirs, ours := fewest(aPod(t, m, rows[pair[0]], fill), aPod(t, m, rows[pair[1]], fill))
			t.Logf("%.0f %% full: %s %.0f allocations, %s %.0f, %.3f of it", 100*fill, pair[0], theirs, pair[1], ours, ours/theirs)
			if ours > 1.05*theirs {
				t.Errorf("%.0f %% full: %s takes %.0f allocations, %s %.0f: more than a twentieth more", 100*fill, pair[1], ours, pair[0], theirs)
			}
		}
	}
}

// fewest returns the fewest allocations of several runs, in turn, since a garbage collection in between empties CEL's pools.
func fewest(a, b func()) (ofA, ofB float64) {
	ofA, ofB = math.Inf(1), math.Inf(1)
	for range 5 {
		ofA, ofB = min(ofA, testing.AllocsPerRun(5, a)), min(ofB, testing.AllocsPerRun(5, b))
	}
	return ofA, ofB
}

// benchmarkNodes is how many nodes a pod is tried on.
const benchmarkNodes = 64

// aPod tries a pod on every node of a cluster that is filled in part.
func aPod(tb testing.TB, m *Machine, row Row, fill float64) func() {
	var d *day
	if row.mix {
		d = newDay(m, benchmarkNodes, fill)
	}
	given, _ := givenAway(m, row, d, indices(benchmarkNodes), fill)
	cluster, state := published(m, row, d, given), allocated(given)
	cache := cel.NewCache(10, cel.Features{EnableConsumableCapacity: true})
	pod := 0
	return func() {
		claims := []*resourceapi.ResourceClaim{row.claim(d, "c", pod)}
		pod++
		allocator, err := structured.NewAllocator(tb.Context(), features, state, classes{}, cluster, cache)
		if err != nil {
			tb.Fatal(err)
		}
		fits := 0
		for i := range benchmarkNodes {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i)}}
			results, err := allocator.Allocate(tb.Context(), node, claims)
			if err != nil {
				tb.Fatal(err)
			}
			fits += len(results)
		}
		if fits == 0 {
			tb.Fatal("the pod fits nowhere")
		}
	}
}

func published(m *Machine, row Row, d *day, given [][]unit) []*resourceapi.ResourceSlice {
	var out []*resourceapi.ResourceSlice
	for i := range given {
		pools := row.pools(m, d, i)
		if row.withdrawn {
			pools = without(pools, given[i])
		}
		out = append(out, slicesOf(nodeName(i), pools)...)
	}
	return out
}

// allocated is what is given away.
func allocated(given [][]unit) structured.AllocatedState {
	state := structured.AllocatedState{
		AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity: structured.NewConsumedCapacityCollection(),
	}
	for i := range given {
		for _, u := range given[i] {
			id := structured.MakeDeviceID(u.driver, nodeName(i)+"-"+u.pool, u.device)
			if u.consumed == nil {
				state.AllocatedDevices.Insert(id)
				continue
			}
			state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, ptr.To(types.UID(nodeName(i)+u.device))))
			state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, u.consumed))
		}
	}
	return state
}
