// Package alignment_test allocates the example's GPU-with-NIC claims with the scheduler's own allocator, on every fake machine that has
// both.
package alignment_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"sigs.k8s.io/yaml"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	gpudevices "gpufabric.io/drivers/gpu/devices"
	gpuinventory "gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/rdma/dra"
	"gpufabric.io/drivers/rdma/health"
	"gpufabric.io/drivers/rdma/inventory"
	"gpufabric.io/drivers/rdma/pool"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/tree"
)

const example = "../../../examples/manifests/rdma-gpu-aligned.yaml"

// manifest is the example's pool and claim.
type manifest struct {
	pool  v1alpha1.RDMAPool
	claim resourceapi.ResourceClaimTemplate
}

func readExample(t *testing.T) manifest {
	t.Helper()
	content, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	var m manifest
	for _, document := range strings.Split(string(content), "\n---\n") {
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(document), &kind); err != nil {
			t.Fatal(err)
		}
		switch kind.Kind {
		case "RDMAPool":
			err = yaml.UnmarshalStrict([]byte(document), &m.pool)
		case "ResourceClaimTemplate":
			err = yaml.UnmarshalStrict([]byte(document), &m.claim)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// machine is a fake node's devices as both drivers publish them.
type machine struct {
	t         *testing.T
	slices    []*resourceapi.ResourceSlice
	gpus      map[string]*gpuinventory.GPU
	ports     map[string]dra.Port
	allocated structured.AllocatedState
}

func newMachine(t *testing.T, name string, m manifest) *machine {
	t.Helper()
	p, err := profile.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	if err := tree.Render(t.Context(), tree.Options{Profile: p, Root: root, PlainDevices: true}); err != nil {
		t.Fatal(err)
	}
	x := &machine{t: t, gpus: map[string]*gpuinventory.GPU{}, ports: map[string]dra.Port{}, allocated: structured.AllocatedState{
		AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity: structured.NewConsumedCapacityCollection(),
	}}
	x.addGPUs(p, filepath.Join(root, "sys"))
	x.addPorts(m, root)
	return x
}

func (x *machine) addGPUs(p *profile.Profile, sysfs string) {
	locate, err := gpuinventory.Locator(x.t.Context(), sysfs)
	if err != nil {
		x.t.Fatal(err)
	}
	node := &gpuinventory.Node{DriverVersion: "570.158.01", CUDAVersion: 12080}
	for i, g := range p.Node(0).GPUs {
		place, err := locate(g.Address.String())
		if err != nil {
			x.t.Fatal(err)
		}
		node.GPUs = append(node.GPUs, &gpuinventory.GPU{Index: i, Minor: i, UUID: fmt.Sprintf("GPU-%08d-0000-0000-0000-000000000000", i),
			MemoryBytes: 1 << 30, Place: place})
	}
	layout := gpudevices.NewPool(node, gpudevices.Options{}).Slices(nil)
	for i, g := range node.GPUs {
		x.gpus[fmt.Sprintf("gpu-%d", i)] = g
	}
	for i, slice := range layout {
		x.addSlice(gpudevices.Driver, "n1-gpu", i, len(layout), resourceapi.ResourceSliceSpec{Devices: slice.Devices,
			SharedCounters: slice.SharedCounters})
	}
}

func (x *machine) addPorts(m manifest, root string) {
	found, err := inventory.Discover(x.t.Context(), inventory.Roots{Sysfs: filepath.Join(root, "sys"), Proc: filepath.Join(root, "proc")})
	if err != nil {
		x.t.Fatal(err)
	}
	selection := pool.Select([]pool.Definition{{RDMAPoolConfig: m.pool.Spec.RDMAPoolConfig, Source: "example"}}, found)
	ports := dra.Ports(found, selection.Pools, dra.Options{})
	for _, p := range ports {
		x.ports[p.Name] = p
	}
	up := func(health.Key) health.State { return health.State{Phase: health.Up} }
	layout := dra.Slices(ports, found, up, dra.Options{})
	for i, devices := range layout {
		x.addSlice(dra.Driver, "n1-rdma", i, len(layout), resourceapi.ResourceSliceSpec{Devices: devices})
	}
}

func (x *machine) addSlice(driver, pool string, i, n int, spec resourceapi.ResourceSliceSpec) {
	node := "n1"
	spec.Driver, spec.NodeName = driver, &node
	spec.Pool = resourceapi.ResourcePool{Name: pool, ResourceSliceCount: int64(n), Generation: 1}
	x.slices = append(x.slices, &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", pool, i)}, Spec: spec})
}

// classes are the chart's DeviceClasses.
type classes struct{}

func (classes) List() ([]*resourceapi.DeviceClass, error) { return nil, nil }

func (classes) Get(name string) (*resourceapi.DeviceClass, error) {
	expression := map[string]string{
		"gpu.nvidia.com":    "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'",
		"rdma.gpufabric.io": "device.driver == 'rdma.gpufabric.io'",
	}[name]
	return &resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{
			{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}}},
	}, nil
}

// pair has the devices of a claim.
type pair struct {
	gpu  *gpuinventory.GPU
	nic  dra.Port
	rung string // the alternative of the NIC that was taken
}

// allocate allocates the requests of claims, or fails.
func (x *machine) allocate(spec resourceapi.ResourceClaimSpec) []resourceapi.DeviceRequestAllocationResult {
	x.t.Helper()
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "n",
		UID: types.UID(fmt.Sprint(len(x.allocated.AllocatedDevices)))}, Spec: spec}
	// Fields that the API server sets by default.
	for i := range claim.Spec.Devices.Requests {
		r := &claim.Spec.Devices.Requests[i]
		if r.Exactly != nil {
			r.Exactly.AllocationMode, r.Exactly.Count = resourceapi.DeviceAllocationModeExactCount, 1
		}
		for j := range r.FirstAvailable {
			r.FirstAvailable[j].AllocationMode, r.FirstAvailable[j].Count = resourceapi.DeviceAllocationModeExactCount, 1
		}
	}
	features := structured.Features{AdminAccess: true, ConsumableCapacity: true, DeviceBindingAndStatus: true, DeviceTaints: true,
		PartitionableDevices: true, PrioritizedList: true}
	allocator, err := structured.NewAllocator(context.Background(), features, x.allocated, classes{}, x.slices,
		cel.NewCache(10, cel.Features{EnableConsumableCapacity: true}))
	if err != nil {
		x.t.Fatal(err)
	}
	results, err := allocator.Allocate(x.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}},
		[]*resourceapi.ResourceClaim{claim})
	if err != nil {
		x.t.Fatal(err)
	}
	if len(results) != 1 {
		return nil
	}
	for _, d := range results[0].Devices.Results {
		x.allocated.AllocatedDevices.Insert(structured.MakeDeviceID(d.Driver, d.Pool, d.Device))
	}
	return results[0].Devices.Results
}

// pairs reads the result of a claim of n GPUs and n NICs, named with a suffix each.
func (x *machine) pairs(results []resourceapi.DeviceRequestAllocationResult, suffixes ...string) []pair {
	x.t.Helper()
	pairs := make([]pair, len(suffixes))
	for i, suffix := range suffixes {
		for _, d := range results {
			request, rung, _ := strings.Cut(d.Request, "/")
			switch request {
			case "gpu" + suffix:
				pairs[i].gpu = x.gpus[d.Device]
			case "nic" + suffix:
				pairs[i].nic, pairs[i].rung = x.ports[d.Device], rung
			}
		}
		if pairs[i].gpu == nil || pairs[i].nic.HCA == nil {
			x.t.Fatalf("the claim got %+v", results)
		}
	}
	return pairs
}

// nearest checks that a pair is as near as its rung.
func (p pair) nearest() error {
	f := p.nic.HCA.Nearest()
	same := map[string]bool{"switch": p.gpu.Place.Switch == string(f.Switch), "root": p.gpu.Place.Root == f.Root,
		"numa": p.gpu.Place.NUMANode == f.NUMANode}
	if !same[p.rung] {
		return fmt.Errorf("%s at %s and GPU at %+v were paired by %s", p.nic.HCA.Name, f.Path, p.gpu.Place, p.rung)
	}
	return nil
}

func TestAlignmentPairsGPUsAndNICsOfAnHGX(t *testing.T) {
	m := readExample(t)
	for _, name := range []string{"h100-hgx", "h200-hgx", "b200-hgx", "a100-80-hgx"} {
		t.Run(name, func(t *testing.T) {
			x := newMachine(t, name, m)
			gpus, nics := map[string]bool{}, map[string]bool{}
			for range 8 {
				results := x.allocate(*m.claim.Spec.Spec.DeepCopy())
				if results == nil {
					t.Fatalf("only %d pairs", len(gpus))
				}
				p := x.pairs(results, "")[0]
				if p.rung != "switch" || p.gpu.Place.Switch != string(p.nic.HCA.Function.Switch) {
					t.Errorf("%s (%s) and the GPU %+v are not below one switch (rung %s)", p.nic.HCA.Name, p.nic.HCA.PCI, p.gpu.Place, p.rung)
				}
				gpus[p.gpu.UUID], nics[p.nic.Name] = true, true
				t.Logf("%s - %s below %s", p.gpu.Place.BusID, p.nic.HCA.Name, p.gpu.Place.Switch)
			}
			if len(gpus) != 8 || len(nics) != 8 {
				t.Errorf("%d GPUs with %d NICs", len(gpus), len(nics))
			}
			if results := x.allocate(*m.claim.Spec.Spec.DeepCopy()); results != nil {
				t.Errorf("a ninth pair: %v", results)
			}
		})
	}
}

func TestAlignmentOfOneClaimForTheMachine(t *testing.T) {
	m := readExample(t)
	x := newMachine(t, "h100-hgx", m)
	var whole resourceapi.ResourceClaimSpec
	var suffixes []string
	for i := range 8 {
		suffix := fmt.Sprintf("-%d", i)
		suffixes = append(suffixes, suffix)
		one := m.claim.Spec.Spec.DeepCopy().Devices
		for j := range one.Requests {
			one.Requests[j].Name += suffix
		}
		for j := range one.Constraints {
			for k, request := range one.Constraints[j].Requests {
				base, rung, alternative := strings.Cut(request, "/")
				if base += suffix; alternative {
					base += "/" + rung
				}
				one.Constraints[j].Requests[k] = base
			}
		}
		whole.Devices.Requests = append(whole.Devices.Requests, one.Requests...)
		whole.Devices.Constraints = append(whole.Devices.Constraints, one.Constraints...)
	}
	results := x.allocate(whole)
	if results == nil {
		t.Fatal("no allocation")
	}
	for _, p := range x.pairs(results, suffixes...) {
		if p.rung != "switch" {
			t.Errorf("%s was paired by %s", p.nic.HCA.Name, p.rung)
		}
		if err := p.nearest(); err != nil {
			t.Error(err)
		}
	}
}

func TestAlignmentTakesTheNextAlternative(t *testing.T) {
	m := readExample(t)
	for name, want := range map[string]string{"gb200-nvl72": "numa", "gb300-nvl72": "switch", "l40s-8": "switch", "t4-edge": "numa"} {
		t.Run(name, func(t *testing.T) {
			x := newMachine(t, name, m)
			results := x.allocate(*m.claim.Spec.Spec.DeepCopy())
			if results == nil {
				t.Fatal("no pair")
			}
			p := x.pairs(results, "")[0]
			if p.rung != want {
				t.Errorf("the first pair, %s and %+v, is by %s, not %s", p.nic.HCA.PCI, p.gpu.Place, p.rung, want)
			}
			if err := p.nearest(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAlignmentSkipsATakenNIC(t *testing.T) {
	m := readExample(t)
	x := newMachine(t, "h100-hgx", m)
	// Both NICs below the first switch are in use by others.
	for name, p := range x.ports {
		if p.HCA.Function.Switch == "0000:16:00.0" {
			x.allocated.AllocatedDevices.Insert(structured.MakeDeviceID(dra.Driver, "n1-rdma", name))
		}
	}
	rungs := map[string]int{}
	for range 6 {
		results := x.allocate(*m.claim.Spec.Spec.DeepCopy())
		if results == nil {
			break
		}
		p := x.pairs(results, "")[0]
		if err := p.nearest(); err != nil {
			t.Error(err)
		}
		rungs[p.rung]++
	}
	if rungs["switch"]+rungs["root"]+rungs["numa"] != 6 || rungs["numa"] == 0 {
		t.Errorf("six NICs are left for eight GPUs, of which two have none at their switch: paired by %v", rungs)
	}
}
