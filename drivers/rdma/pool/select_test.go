package pool_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/hardware/infiniband"
	"gpufabric.io/drivers/hardware/pci"
	"gpufabric.io/drivers/rdma/health"
	"gpufabric.io/drivers/rdma/inventory"
	"gpufabric.io/drivers/rdma/pool"
)

// node has two InfiniBand HCAs, a RoCE one with two virtual functions, one of two ports and a software device.
func node() *inventory.Inventory {
	port := func(number int, layer infiniband.LinkLayer, rate float64, kind int, net string) infiniband.Port {
		return infiniband.Port{Number: number, LinkLayer: layer, Rate: rate, Nets: []infiniband.Net{{Name: net, Type: kind}}}
	}
	function := func(address pci.Address, device uint16, numa int) *pci.Function {
		return &pci.Function{Address: address, Vendor: 0x15b3, Device: device, Driver: "mlx5_core", NUMANode: numa, VirtualIndex: -1}
	}
	hca := func(name string, f *pci.Function, ports ...infiniband.Port) inventory.HCA {
		h := inventory.HCA{Device: infiniband.Device{Name: name, Ports: ports}, Function: f}
		if f != nil {
			h.PCI = f.Address
		}
		return h
	}
	ib0 := hca("mlx5_0", function("0000:3b:00.0", 0x1021, 0), port(1, infiniband.InfiniBand, 400, infiniband.TypeInfiniBand, "ibp3s0"))
	ib0.PKeys = map[int][]uint16{1: {0x8012, 0xffff}}
	ib1 := hca("mlx5_1", function("0000:5e:00.0", 0x1021, 1), port(1, infiniband.InfiniBand, 200, infiniband.TypeInfiniBand, "ibp94s0"))
	ib1.Function.ACPIIndex = 102
	ib1.PKeys = map[int][]uint16{1: {0xffff}}
	roce := hca("mlx5_2", function("0000:81:00.0", 0x101d, 1), port(1, infiniband.Ethernet, 100, infiniband.TypeEthernet, "ens2f0"))
	roce.Function.NumVFs, roce.Function.TotalVFs, roce.PhysicalNets = 2, 8, []string{"ens2f0"}
	devices := []inventory.HCA{ib0, ib1, roce}
	for i, name := range []string{"mlx5_3", "mlx5_4"} {
		vf := hca(name, function(pci.Address("0000:81:00."+string(rune('1'+i))), 0x101e, 1),
			port(1, infiniband.Ethernet, 100, infiniband.TypeEthernet, "ens2f0v"+string(rune('0'+i))))
		vf.Function.PhysicalFunction, vf.Function.VirtualIndex, vf.PhysicalNets = "0000:81:00.0", i, []string{"ens2f0"}
		devices = append(devices, vf)
	}
	dual := hca("mlx4_0", function("0000:90:00.0", 0x1003, pci.NUMAUnknown),
		port(1, infiniband.InfiniBand, 56, infiniband.TypeInfiniBand, "ib0"), port(2, infiniband.Ethernet, 40, infiniband.TypeEthernet, "eth2"))
	dual.Function.Driver = "mlx4_core"
	dual.PhysicalNets = []string{"ib0", "eth2"}
	soft := hca("rxe0", nil, infiniband.Port{Number: 1, LinkLayer: infiniband.Ethernet, Rate: 2.5})
	return &inventory.Inventory{HCAs: append(devices, dual, soft)}
}

func members(p pool.Pool) []string {
	var names []string
	for _, m := range p.Members {
		names = append(names, m.HCA.Name)
	}
	return names
}

func TestSelectMatchesEverySelector(t *testing.T) {
	type selectors = v1alpha1.RDMASelectors
	for _, test := range []struct {
		name      string
		selectors selectors
		want      []string
		device    string // one that is refused
		reason    string
	}{
		{"by vendor", selectors{Vendors: []string{"15B3"}}, []string{"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_4", "mlx4_0"}, "rxe0",
			"software device"},
		{"by another vendor", selectors{Vendors: []string{"8086", "1d0f"}}, nil, "mlx5_0",
			"selectors.vendors: its vendor 15b3 is not among [8086 1d0f]"},
		{"by device ID", selectors{DeviceIDs: []string{"1021"}}, []string{"mlx5_0", "mlx5_1"}, "mlx5_2",
			"selectors.deviceIDs: its device ID 101d is not among [1021]"},
		{"any of two device IDs", selectors{DeviceIDs: []string{"1021", "101d"}}, []string{"mlx5_0", "mlx5_1", "mlx5_2"}, "mlx4_0", "1003"},
		{"by driver", selectors{Drivers: []string{"mlx4_core"}}, []string{"mlx4_0"}, "mlx5_0", "selectors.drivers: its driver mlx5_core"},
		{"by interface", selectors{IfNames: []string{"ibp3s0", "ens2f0v1"}}, []string{"mlx5_0", "mlx5_4"}, "rxe0",
			"selectors.ifNames: it has no interface, and [ibp3s0 ens2f0v1] is wanted"},
		{"all selectors must match", selectors{Vendors: []string{"15b3"}, DeviceIDs: []string{"1021"}, IfNames: []string{"ibp3s0"}},
			[]string{"mlx5_0"}, "mlx5_1", "selectors.ifNames: its interface ibp94s0 is not among [ibp3s0]"},
		{"by link type ether", selectors{LinkTypes: []string{"ether"}}, []string{"mlx5_2", "mlx5_3", "mlx5_4", "mlx4_0", "rxe0"}, "mlx5_0",
			"selectors.linkTypes: its link type infiniband"},
		{"by link type infiniband", selectors{LinkTypes: []string{"infiniband"}}, []string{"mlx5_0", "mlx5_1", "mlx4_0"}, "rxe0", "ether"},
		{"by link layer", selectors{LinkLayers: []string{"InfiniBand"}}, []string{"mlx5_0", "mlx5_1", "mlx4_0"}, "mlx5_2",
			"selectors.linkLayers: its link layer Ethernet"},
		{"two port selectors must match one port", selectors{LinkLayers: []string{"Ethernet"}, MinRateGbps: 50},
			[]string{"mlx5_2", "mlx5_3", "mlx5_4"}, "mlx4_0",
			"selectors.linkLayers: its link layer InfiniBand is not among [Ethernet]; selectors.minRateGbps: its rate of 40 Gb/s is less than 50"},
		{"by rate", selectors{MinRateGbps: 400}, []string{"mlx5_0"}, "mlx5_1", "its rate of 200 Gb/s is less than 400"},
		{"by NUMA node", selectors{NUMANodes: []int32{0}}, []string{"mlx5_0"}, "mlx4_0", "its NUMA node -1 is not among [0]"},
		{"by address", selectors{PCIAddresses: []string{"3B:00.0", "0000:90:00.0"}}, []string{"mlx5_0", "mlx4_0"}, "mlx5_1",
			"selectors.pciAddresses"},
		{"by the firmware's index", selectors{ACPIIndexes: []string{"101", "102"}}, []string{"mlx5_1"}, "mlx5_0",
			"selectors.acpiIndexes: it has no ACPI index, and [101 102] is wanted"},
		{"by another index", selectors{ACPIIndexes: []string{"10"}}, nil, "mlx5_1",
			"selectors.acpiIndexes: its ACPI index 102 is not among [10]"},
		{"by an index, which no software device has", selectors{ACPIIndexes: []string{"102"}}, []string{"mlx5_1"}, "rxe0", "software device"},
		{"whatever has RDMA", selectors{IsRDMA: true}, []string{"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_4", "mlx4_0", "rxe0"}, "", ""},
		{"whatever has RDMA and matches the rest", selectors{IsRDMA: true, DeviceIDs: []string{"1003"}}, []string{"mlx4_0"}, "mlx5_0",
			"selectors.deviceIDs"},
		{"by partition key, whatever the membership", selectors{PKeys: []string{"0x0012"}}, []string{"mlx5_0"}, "mlx5_1",
			"selectors.pKeys: its partition key 0xffff is not among [0x0012]"},
		{"by the default partition key", selectors{PKeys: []string{"0x7fff"}}, []string{"mlx5_0", "mlx5_1"}, "mlx5_2",
			"Ethernet, which has no partitions"},
		{"a physical function's name means its virtual functions", selectors{PFNames: []string{"ens2f0"}}, []string{"mlx5_3", "mlx5_4"}, "mlx5_2",
			`it is the physical function, and "ens2f0" selects virtual ones`},
		{"a name with a range", selectors{PFNames: []string{"ens2f0#1-7"}}, []string{"mlx5_4"}, "mlx5_3",
			`it is virtual function 0, which "ens2f0#1-7" leaves out`},
		{"two ranges of one name", selectors{PFNames: []string{"ens2f0#0", "ens2f0#1"}}, []string{"mlx5_3", "mlx5_4"}, "mlx5_0",
			"physical function is not among"},
		{"a physical function without virtual ones", selectors{PFNames: []string{"eth2"}}, []string{"mlx4_0"}, "mlx5_2", "selectors.pfNames"},
		{"by root device with a range", selectors{RootDevices: []string{"0000:81:00.0#0,3-5"}}, []string{"mlx5_3"}, "mlx5_4", "leaves out"},
		{"by root device without virtual functions", selectors{RootDevices: []string{"0000:3b:00.0"}}, []string{"mlx5_0"}, "mlx5_1",
			"selectors.rootDevices"},
	} {
		t.Run(test.name, func(t *testing.T) {
			definition := pool.Definition{RDMAPoolConfig: v1alpha1.RDMAPoolConfig{ResourceName: "a", RDMAHCAMax: 1, Selectors: &test.selectors},
				Source: "test"}
			selection := pool.Select([]pool.Definition{definition}, node())
			if diff := cmp.Diff(test.want, members(selection.Pools[0])); diff != "" {
				t.Error(diff)
			}
			for _, v := range selection.Verdicts {
				if taken := slices.Contains(test.want, v.Device); taken != slices.Contains(v.Pools, "rdma/a") || taken == (v.Refusals["rdma/a"] != "") {
					t.Errorf("the verdict on %s is %+v", v.Device, v)
				}
				if v.Device == test.device && !strings.Contains(v.Refusals["rdma/a"], test.reason) {
					t.Errorf("%s was refused because %q, not %q", v.Device, v.Refusals["rdma/a"], test.reason)
				}
			}
		})
	}
}

func TestDevicesAreInterfaces(t *testing.T) {
	definition := pool.Definition{RDMAPoolConfig: v1alpha1.RDMAPoolConfig{ResourceName: "a", Devices: []string{"eth2", "ibp3s0"}}}
	selected := pool.Select([]pool.Definition{definition}, node()).Pools[0]
	if diff := cmp.Diff([]string{"mlx5_0", "mlx4_0"}, members(selected)); diff != "" {
		t.Error(diff)
	}
	if ports := selected.Members[1].Ports; !slices.Equal(ports, []int{2}) {
		t.Errorf("the pool has ports %v of the HCA whose second port is eth2", ports)
	}
}

func TestPoolsThatWantOneDevice(t *testing.T) {
	make := func(name string, mode v1alpha1.RDMAPoolMode, ifNames ...string) pool.Definition {
		return pool.Definition{RDMAPoolConfig: v1alpha1.RDMAPoolConfig{ResourceName: name, Mode: mode,
			Selectors: &v1alpha1.RDMASelectors{IfNames: ifNames}}, Source: "pool " + name}
	}
	for _, test := range []struct {
		name        string
		definitions []pool.Definition
		members     [][]string
		conflicts   [][]string
		refused     map[string]string
	}{
		{
			"shared pools both have it, and both say so",
			[]pool.Definition{make("a", "", "ibp3s0", "ibp94s0"), make("b", v1alpha1.RDMAShared, "ibp3s0")},
			[][]string{{"mlx5_0", "mlx5_1"}, {"mlx5_0"}},
			[][]string{{"mlx5_0: also in pool b"}, {"mlx5_0: also in pool a"}}, nil,
		},
		{
			"an exclusive pool keeps it from a later one",
			[]pool.Definition{make("a", v1alpha1.RDMAExclusive, "ibp3s0"), make("b", "", "ibp3s0", "ibp94s0")},
			[][]string{{"mlx5_0"}, {"mlx5_1"}},
			[][]string{{"mlx5_0: pool b wants it"}, {"mlx5_0: pool a has it"}}, nil,
		},
		{
			"an exclusive pool does not get what a shared one has",
			[]pool.Definition{make("a", "", "ibp3s0"), make("b", v1alpha1.RDMAExclusive, "ibp3s0", "ibp94s0")},
			[][]string{{"mlx5_0"}, {"mlx5_1"}},
			[][]string{{"mlx5_0: pool b wants it"}, {"mlx5_0: pool a has it"}}, nil,
		},
		{
			"of two pools with one resource the first is served",
			[]pool.Definition{make("a", "", "ibp3s0"), {RDMAPoolConfig: make("a", "", "ibp94s0").RDMAPoolConfig, Source: "RDMAPool x"}},
			[][]string{{"mlx5_0"}}, [][]string{{"RDMAPool x wants the resource rdma/a too"}},
			map[string]string{"RDMAPool x": "the resource rdma/a is that of pool a already: rename one of the two"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			selection := pool.Select(test.definitions, node())
			var got, conflicts [][]string
			for _, p := range selection.Pools {
				got, conflicts = append(got, members(p)), append(conflicts, p.Conflicts)
			}
			if diff := cmp.Diff(test.members, got); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(test.conflicts, conflicts); diff != "" {
				t.Error(diff)
			}
			if test.refused == nil {
				test.refused = map[string]string{}
			}
			if diff := cmp.Diff(test.refused, selection.Refused); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestMemberTroubleIsThatOfAllItsPorts(t *testing.T) {
	devices := node()
	m := pool.Member{HCA: &devices.HCAs[5], Ports: []int{1, 2}}
	states := map[health.Key]health.State{
		{Device: "mlx4_0", Port: 1}: {Phase: health.Down, Reason: "the port's state is DOWN"},
		{Device: "mlx4_0", Port: 2}: {Phase: health.Up},
	}
	state := func(k health.Key) health.State { return states[k] }
	if reason := m.Trouble(state); reason != "" {
		t.Errorf("one port is up, and the trouble is %q", reason)
	}
	states[health.Key{Device: "mlx4_0", Port: 2}] = health.State{Phase: health.Recovering, Reason: "no carrier"}
	if reason := m.Trouble(state); !strings.Contains(reason, "DOWN") || !strings.Contains(reason, "not for long (before: no carrier)") {
		t.Errorf("got %q", reason)
	}
}

// Every list of the selectors is looked at by itself: a value may name nothing though the pool has devices.
func TestSelectNamesUnmatchedValues(t *testing.T) {
	c := v1alpha1.RDMAPoolConfig{ResourceName: "p", RDMAHCAMax: 1, Selectors: &v1alpha1.RDMASelectors{
		Vendors: []string{"15B3", "15b4"}, DeviceIDs: []string{"1021", "1023"}, Drivers: []string{"mlx5_core", "bnxt_re"},
		IfNames: []string{"ibp3s0", "ibp3s9"}, LinkTypes: []string{"infiniband"}, PCIAddresses: []string{"3b:00.0", "0000:3c:00.0"},
		ACPIIndexes: []string{"102", "7"}, PFNames: []string{"ens2f0#1", "ens2f0#5", "ens3f0"},
		RootDevices: []string{"0000:81:00.0", "0000:82:00.0"}, PKeys: []string{"0x0012", "0x0013"},
		LinkLayers: []string{"Ethernet"}, NUMANodes: []int32{1, 4},
	}}
	want := []string{"selectors.vendors[1]", "selectors.deviceIDs[1]", "selectors.drivers[1]", "selectors.ifNames[1]",
		"selectors.pciAddresses[1]", "selectors.acpiIndexes[1]", "selectors.pfNames[1]", "selectors.pfNames[2]", "selectors.rootDevices[1]",
		"selectors.pKeys[1]", "selectors.numaNodes[1]"}
	devices := v1alpha1.RDMAPoolConfig{ResourceName: "q", RDMAHCAMax: 1, Devices: []string{"ib0", "ib9"}}
	s := pool.Select([]pool.Definition{{Source: "a", RDMAPoolConfig: c}, {Source: "b", RDMAPoolConfig: devices}}, node())
	for i, want := range [][]string{want, {"devices[1]"}} {
		var got []string
		for _, v := range s.Pools[i].Unmatched {
			got = append(got, v.Path)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("pool %d: %s", i, diff)
		}
	}
}

// Both names may be those of one port: a bond and its interface, or the interfaces of one function.
func TestSelectTakesPortOnceWhenTwoOfItsInterfacesAreListed(t *testing.T) {
	devices := node()
	bonded := &devices.HCAs[2]
	bonded.Ports[0].Nets = append(bonded.Ports[0].Nets, infiniband.Net{Name: "bond0", Type: infiniband.TypeEthernet})
	selection := pool.Select([]pool.Definition{{Source: "a", RDMAPoolConfig: v1alpha1.RDMAPoolConfig{
		ResourceName: "a", RDMAHCAMax: 10, Devices: []string{"ens2f0", "bond0"}}}}, devices)
	members := selection.Pools[0].Members
	if len(members) != 1 || !slices.Equal(members[0].Ports, []int{1}) {
		t.Errorf("got %+v, want port 1 of %s once", members, bonded.Name)
	}
}
