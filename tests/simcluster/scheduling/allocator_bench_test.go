package scheduling

import (
	"fmt"
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
	AdminAccess: true, PrioritizedList: true, PartitionableDevices: true, DeviceTaints: true, DeviceBindingAndStatus: true, ConsumableCapacity: true,
}

// BenchmarkAPodOnEveryNode is what the allocator alone does for one pod that is tried on each of 64 nodes: the part of a scheduler's work that depends on what is
// published. The rest of a scheduler, and its API server, are not in it: it is as steady as the machine, and tells two layouts apart that differ by a hundredth.
func BenchmarkAPodOnEveryNode(b *testing.B) {
	m, err := NewMachine(b.Context(), "h100-hgx")
	if err != nil {
		b.Fatal(err)
	}
	for _, fill := range []float64{0, 0.5, 0.95} {
		for _, row := range Rows() {
			if row.class == "" {
				continue
			}
			b.Run(fmt.Sprintf("%.0f/%s", 100*fill, row.Name), func(b *testing.B) {
				cluster, state := published(m, row, 64), filled(m, row, 64, fill)
				cache := cel.NewCache(10, cel.Features{EnableConsumableCapacity: true})
				claims := []*resourceapi.ResourceClaim{newClaim("c", row.class, row.memory, 1)}
				b.ReportAllocs()
				for b.Loop() {
					allocator, err := structured.NewAllocator(b.Context(), features, state, classes{}, cluster, cache)
					if err != nil {
						b.Fatal(err)
					}
					fits := 0
					for i := range 64 {
						node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i)}}
						results, err := allocator.Allocate(b.Context(), node, claims)
						if err != nil {
							b.Fatal(err)
						}
						fits += len(results)
					}
					if fits == 0 {
						b.Fatal("the pod fits nowhere")
					}
				}
			})
		}
	}
}

func nodeName(i int) string { return fmt.Sprintf("node-%04d", i) }

func published(m *Machine, row Row, nodes int) []*resourceapi.ResourceSlice {
	var out []*resourceapi.ResourceSlice
	for i := range nodes {
		out = append(out, slicesOf(nodeName(i), row.publish(m, i))...)
	}
	return out
}

// filled is what is allocated when the first nodes are full.
func filled(m *Machine, row Row, nodes int, part float64) structured.AllocatedState {
	state := structured.AllocatedState{
		AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity: structured.NewConsumedCapacityCollection(),
	}
	total := 0
	for i := range nodes {
		total += len(row.units(m, i))
	}
	left := int(part * float64(total))
	for i := range nodes {
		for _, u := range row.units(m, i) {
			if left == 0 {
				return state
			}
			left--
			id := structured.MakeDeviceID(u.driver, nodeName(i)+"-"+u.pool, u.device)
			if u.consumed == nil {
				state.AllocatedDevices.Insert(id)
				continue
			}
			state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, ptr.To(types.UID(fmt.Sprint(left)))))
			state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, u.consumed))
		}
	}
	return state
}
