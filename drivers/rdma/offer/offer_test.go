package offer_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	cdilib "tags.cncf.io/container-device-interface/pkg/cdi"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/hardware/driver"
	"gpufabric.io/drivers/hardware/infiniband"
	"gpufabric.io/drivers/hardware/pci"
	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/cdi"
	"gpufabric.io/drivers/rdma/health"
	"gpufabric.io/drivers/rdma/inventory"
	"gpufabric.io/drivers/rdma/offer"
	"gpufabric.io/drivers/rdma/pool"
)

// hca is HCA number i, on NUMA node i, with one port.
func hca(i int) *inventory.HCA {
	address := pci.Address(fmt.Sprintf("0000:%02x:00.0", 0x10+i))
	return &inventory.HCA{
		Device: infiniband.Device{
			Name: fmt.Sprintf("mlx5_%d", i), PCI: address, Verbs: infiniband.CharDevice{Name: fmt.Sprintf("uverbs%d", i)},
			Ports: []infiniband.Port{{Number: 1, UMAD: infiniband.CharDevice{Name: fmt.Sprintf("umad%d", i)}}},
		},
		Function: &pci.Function{Address: address, NUMANode: i},
	}
}

// shared is a pool of n units over HCAs.
func shared(n int32, hcas ...int) pool.Pool {
	p := pool.Pool{Definition: pool.Definition{RDMAPoolConfig: v1alpha1.RDMAPoolConfig{ResourceName: "a", RDMAHCAMax: n}}}
	for _, i := range hcas {
		p.Members = append(p.Members, pool.Member{HCA: hca(i), Ports: []int{1}})
	}
	return p
}

func up(health.Key) health.State { return health.State{Phase: health.Up} }

// dev makes a dev root with the device nodes of HCAs.
func dev(t *testing.T, nodes ...string) string {
	t.Helper()
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "infiniband"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range nodes {
		if err := os.WriteFile(filepath.Join(root, "infiniband", name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestPreferChoosesUnits(t *testing.T) {
	// even units on HCA 0
	layout := pool.Layout{"0000:10:00.0", "0000:11:00.0", "0000:10:00.0", "0000:11:00.0", "0000:10:00.0", "0000:11:00.0"}
	for _, test := range []struct {
		name                string
		available, required []string
		size                int
		want                []string
	}{
		{"the HCA with more free units comes first", []string{"2", "1", "3", "5"}, nil, 1, []string{"1"}},
		{"of equals the first", []string{"3", "2"}, nil, 1, []string{"2"}},
		{"two units are of two HCAs", []string{"0", "2", "4", "5"}, nil, 2, []string{"0", "5"}},
		{"more units than HCAs go around", []string{"0", "1", "2", "3", "4", "5"}, nil, 4, []string{"0", "1", "2", "3"}},
		{"what is required counts", []string{"0", "1", "2", "3"}, []string{"0"}, 2, []string{"0", "1"}},
		{"one HCA must do where the other has none", []string{"0", "2"}, nil, 2, []string{"0", "2"}},
		{"not enough is what there is", []string{"0"}, nil, 2, []string{"0"}},
		{"low numbers come first, numerically", []string{"4", "2", "0"}, nil, 1, []string{"0"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := offer.New(inventory.DeviceNodes{Dev: driver.Here(t.TempDir())}, layout, nil)
			o.Set(shared(6, 0, 1))
			if diff := cmp.Diff(test.want, o.Prefer(test.available, test.required, test.size)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestOfferSpreadsUnitsEvenly(t *testing.T) {
	o := offer.New(inventory.DeviceNodes{Dev: driver.Here(t.TempDir())}, nil, nil)
	o.Set(shared(1000, 0, 1, 2, 3, 4, 5, 6, 7))
	var free []string
	for _, d := range o.Devices(up) {
		free = append(free, d.ID)
	}
	counts := make(map[string]int)
	for range 80 {
		chosen := o.Prefer(free, nil, 1)
		counts[o.Holding(chosen[0])[0].Name]++
		free = slices.DeleteFunc(free, func(id string) bool { return id == chosen[0] })
	}
	for name, n := range counts {
		if n != 10 || len(counts) != 8 {
			t.Errorf("80 pods: %d on %s", n, name)
		}
	}
}

func TestHealthAndNUMANodesOfUnits(t *testing.T) {
	o := offer.New(inventory.DeviceNodes{Dev: driver.Here(t.TempDir())}, nil, nil)
	p := shared(4, 0, 1)
	o.Set(p)
	down := func(k health.Key) health.State {
		if k.Device == "mlx5_1" {
			return health.State{Phase: health.Down, Reason: "DOWN"}
		}
		return health.State{Phase: health.Up}
	}
	describe := func() []string {
		var list []string
		for _, d := range o.Devices(down) {
			list = append(list, fmt.Sprintf("%s%v%v", d.ID, d.Healthy, d.NUMANodes))
		}
		return list
	}
	if diff := cmp.Diff([]string{"0true[0]", "1false[1]", "2true[0]", "3false[1]"}, describe()); diff != "" {
		t.Error(diff)
	}
	p.ExcludeTopology = true
	o.Set(p)
	if diff := cmp.Diff([]string{"0true[]", "1false[]", "2true[]", "3false[]"}, describe()); diff != "" {
		t.Errorf("without topology: %s", diff)
	}
}

// whole is a pool of n units over HCAs, each of which gives every HCA.
func whole(n int32, hcas ...int) pool.Pool {
	p := shared(n, hcas...)
	p.DeviceNodes = v1alpha1.RDMANodesAll
	return p
}

func TestOfferIsHealthyWhileAnyHCAOfThePoolIs(t *testing.T) {
	o := offer.New(inventory.DeviceNodes{Dev: driver.Here(dev(t, "uverbs0", "umad0", "uverbs2", "umad2"))}, nil, nil)
	o.Set(whole(1, 0, 1, 2))
	down := make(map[string]bool)
	state := func(k health.Key) health.State {
		if down[k.Device] {
			return health.State{Phase: health.Down, Reason: "DOWN"}
		}
		return health.State{Phase: health.Up}
	}
	units := func() (list []string) {
		for _, d := range o.Devices(state) {
			list = append(list, fmt.Sprintf("%s%v%v", d.ID, d.Healthy, d.NUMANodes))
		}
		return list
	}
	given := func() (list []string) {
		response, err := o.Allocate(t.Context(), []string{"0"})
		if err != nil {
			return []string{err.Error()}
		}
		for _, d := range response.GetDevices() {
			list = append(list, filepath.Base(d.GetContainerPath()))
		}
		return list
	}
	for _, step := range []struct {
		name  string
		do    func()
		units string
		given []string
	}{
		{"the device node of one is missing", func() {}, "0true[]", []string{"uverbs0", "umad0", "uverbs2", "umad2"}},
		{"the first is down", func() { down["mlx5_0"] = true }, "0true[]", []string{"uverbs0", "umad0", "uverbs2", "umad2"}},
		{"the first is gone", func() { o.Set(whole(1, 1, 2)) }, "0true[]", []string{"uverbs2", "umad2"}},
		{"the others are down", func() { down["mlx5_1"], down["mlx5_2"] = true, true }, "0false[]", []string{"uverbs2", "umad2"}},
	} {
		step.do()
		if got := units(); len(got) != 1 || got[0] != step.units {
			t.Errorf("%s: units %v, want %s", step.name, got, step.units)
		}
		if diff := cmp.Diff(step.given, given()); diff != "" {
			t.Errorf("%s: %s", step.name, diff)
		}
	}
	if got := o.Holding("0"); len(got) != 2 || got[0].Name != "mlx5_1" || got[1].Name != "mlx5_2" {
		t.Errorf("the unit's HCAs: %v", got)
	}
	o.Set(whole(1, 1))
	if got := given(); len(got) != 1 || !strings.Contains(got[0], "mlx5_1 cannot be opened without its device node") ||
		!strings.Contains(got[0], "mlx5_0 (0000:10:00.0) is gone") {
		t.Errorf("no HCA can be opened: %v", got)
	}
}

func TestOfferKeepsUnitsOfAMissingHCA(t *testing.T) {
	o := offer.New(inventory.DeviceNodes{Dev: driver.Here(dev(t, "uverbs0"))}, nil, nil)
	o.Set(shared(4, 0, 1))
	o.Set(shared(4, 0))
	healthy := func() (n int) {
		for _, d := range o.Devices(up) {
			if d.Healthy {
				n++
			}
		}
		return n
	}
	if n := healthy(); n != 2 || len(o.Devices(up)) != 4 {
		t.Errorf("%d of %d units are healthy", n, len(o.Devices(up)))
	}
	if _, err := o.Allocate(t.Context(), []string{"1"}); err == nil || !strings.Contains(err.Error(), "mlx5_1 (0000:11:00.0) is gone") {
		t.Errorf("a unit of the HCA that is gone: got %v", err)
	}
	o.Set(shared(6, 0))
	if n := healthy(); n != 6 {
		t.Errorf("after the configuration changed %d units are healthy", n)
	}
}

func TestOfferKeepsUnitsOfAnHCAMissingAtStart(t *testing.T) {
	last := offer.New(inventory.DeviceNodes{Dev: driver.Here(t.TempDir())}, nil, nil)
	last.Set(shared(4, 0, 1))
	o := offer.New(inventory.DeviceNodes{Dev: driver.Here(dev(t, "uverbs0"))}, last.Layout(), nil)
	o.Resume(shared(4, 0, 1).RDMAPoolConfig)
	describe := func() (list []string) {
		for _, d := range o.Devices(up) {
			list = append(list, fmt.Sprintf("%s%v%v", d.ID, d.Healthy, d.NUMANodes))
		}
		return list
	}
	for _, step := range []struct {
		name string
		pool pool.Pool
		want []string
	}{
		{"one is away", shared(4, 0), []string{"0true[0]", "1false[]", "2true[0]", "3false[]"}},
		{"it is back", shared(4, 0, 1), []string{"0true[0]", "1true[1]", "2true[0]", "3true[1]"}},
		{"both are away", shared(4), []string{"0false[0]", "1false[1]", "2false[0]", "3false[1]"}},
		{"the configuration changed", shared(3, 0), []string{"0true[0]", "1true[0]", "2true[0]"}},
	} {
		o.Set(step.pool)
		if diff := cmp.Diff(step.want, describe()); diff != "" {
			t.Errorf("%s: %s", step.name, diff)
		}
		if step.name == "one is away" {
			if _, err := o.Allocate(t.Context(), []string{"1"}); err == nil || !strings.Contains(err.Error(), "(0000:11:00.0) is gone") {
				t.Errorf("a unit of the HCA that is away: got %v", err)
			}
			if diff := cmp.Diff(last.Layout(), o.Layout()); diff != "" {
				t.Errorf("units moved: %s", diff)
			}
		}
	}
}

func TestOfferWritesACDISpecForEachPool(t *testing.T) {
	names := make(map[types.UID]string)
	for _, resource := range []string{"x-y/z", "x/y_z", "x.y/z", "x-y-z/z", "x/y", "x/Y"} {
		prefix, name, _ := strings.Cut(resource, "/")
		p := shared(1, 0)
		p.ResourcePrefix, p.ResourceName = prefix, name
		o := offer.New(inventory.DeviceNodes{Dev: driver.Here(t.TempDir())}, nil, nil)
		o.Set(p)
		if other, taken := names[o.SpecName()]; taken {
			t.Errorf("%s and %s are both %s", resource, other, o.SpecName())
		}
		names[o.SpecName()] = resource
	}
}

// A scalable function's key has a slash, and the name of a software device may have any characters.
func TestOfferWritesCDISpecWhenKeysAreNoCDINames(t *testing.T) {
	root := t.TempDir()
	dir, err := cdi.Open(root, "pools.rdma.test", atomicfile.Writer{})
	if err != nil {
		t.Fatal(err)
	}
	p := shared(6, 0, 1, 2, 3, 4, 5)
	for i, name := range []string{"", "mlx5_core.sf.2", "mlx5_core.sf.3"} {
		p.Members[i].HCA.PCI, p.Members[i].HCA.Auxiliary = "0000:10:00.0", name
	}
	for i, name := range []string{"rxe@eth0", "rxe+eth0", "_rxe_"} {
		p.Members[3+i].HCA.Device.Name, p.Members[3+i].HCA.PCI = name, ""
	}
	nodes := []string{"rdma_cm"}
	for i := range p.Members {
		nodes = append(nodes, fmt.Sprintf("uverbs%d", i), fmt.Sprintf("umad%d", i))
		p.Members[i].HCA.Verbs.Major, p.Members[i].HCA.Verbs.Minor = 231, uint32(192+i)
	}
	o := offer.New(inventory.DeviceNodes{Dev: driver.Here(dev(t, nodes...))}, nil, dir)
	o.Set(p)
	if err := o.WriteSpec(); err != nil {
		t.Fatal(err)
	}
	cache, err := cdilib.NewCache(cdilib.WithSpecDirs(root), cdilib.WithAutoRefresh(false))
	if err != nil {
		t.Fatal(err)
	}
	given := make(map[string]bool)
	for i := range p.Members {
		response, err := o.Allocate(t.Context(), []string{strconv.Itoa(i)})
		if err != nil || len(response.GetCdiDevices()) != 1 {
			t.Fatalf("unit %d: got %v, %v", i, response, err)
		}
		name := response.GetCdiDevices()[0].GetName()
		if cache.GetDevice(name) == nil || given[name] {
			t.Errorf("unit %d: the runtime finds no device %s of its own: %v", i, name, cache.GetErrors())
		}
		given[name] = true
	}
}

func TestDeviceNodesThatAreMissing(t *testing.T) {
	for _, test := range []struct {
		name  string
		nodes []string
		want  []string
		err   string
	}{
		{"all are there", []string{"uverbs0", "umad0", "rdma_cm"}, []string{"uverbs0", "umad0", "rdma_cm"}, ""},
		{"no umad", []string{"uverbs0", "rdma_cm"}, nil, "mlx5_0 lacks the device node"},
		{"no uverbs", []string{"umad0", "rdma_cm"}, nil, "mlx5_0 cannot be opened without its device node"},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := offer.New(inventory.DeviceNodes{Dev: driver.Here(dev(t, test.nodes...))}, nil, nil)
			o.Set(shared(1, 0))
			response, err := o.Allocate(t.Context(), []string{"0"})
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, d := range response.GetDevices() {
				got = append(got, filepath.Base(d.GetContainerPath()))
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Health, Allocate and the preference come from one function.
func TestPreferTakesHCAThatFailsLast(t *testing.T) {
	root := dev(t, "uverbs0", "umad0", "umad1")
	o := offer.New(inventory.DeviceNodes{Dev: driver.Here(root)}, nil, nil)
	o.Set(shared(6, 0, 1, 2))
	down := func(k health.Key) health.State {
		if k.Device == "mlx5_2" {
			return health.State{Phase: health.Down}
		}
		return health.State{Phase: health.Up}
	}
	o.Devices(down)
	// HCA 1 has no uverbs node and HCA 2 is down. HCA 0 has the fewest free units.
	available := []string{"0", "1", "4", "2", "5"}
	if diff := cmp.Diff([]string{"0"}, o.Prefer(available, nil, 1)); diff != "" {
		t.Error(diff)
	}
	if got := o.Prefer(available, nil, 3); len(got) != 3 || got[0] != "0" {
		t.Errorf("got %v; want the usable unit first, and others where it does not suffice", got)
	}
}
