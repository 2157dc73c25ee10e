package plugin_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	oci "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"gpufabric.io/drivers/hardware/sysfstest"
	"gpufabric.io/drivers/node/deviceplugin/kubelettest"
	"gpufabric.io/drivers/node/occupancy/occupancytest"
)

func TestPoolsOfEveryKind(t *testing.T) {
	for _, test := range []struct {
		name     string
		hcas     []sysfstest.HCA
		config   string
		resource string
		units    int
		want     []string // device nodes of a pod with one unit
	}{
		{
			"RoCE has no issm",
			[]sysfstest.HCA{{Ethernet: true, Nets: []string{"ens2f0"}}, {Ethernet: true, Nets: []string{"ens3f0"}}},
			`{"configList": [{"resourceName": "hca_shared_devices_a", "rdmaHcaMax": 1000, "devices": ["ens2f0"]}]}`,
			shared, 1000, []string{"rdma_cm", "umad0", "uverbs0"},
		},
		{
			"EFA has neither issm nor umad",
			[]sysfstest.HCA{{Ethernet: true, NoUMAD: true, Function: sysfstest.Function{Vendor: "0x1d0f", Device: "0xefa2", Driver: "efa"}}},
			`{"configList": [{"resourceName": "efa", "resourcePrefix": "vpc.amazonaws.com", "rdmaHcaMax": 4, "selectors": {"drivers": ["efa"]}}]}`,
			"vpc.amazonaws.com/efa", 4, []string{"rdma_cm", "uverbs0"},
		},
		{
			"an exclusive pool has as many units as HCAs",
			[]sysfstest.HCA{{}, {}, {}},
			`{"configList": [{"resourceName": "hca", "mode": "Exclusive", "selectors": {"vendors": ["15b3"]}}]}`,
			"rdma/hca", 3, []string{"issm0", "rdma_cm", "umad0", "uverbs0"},
		},
		{
			"one HCA where the configuration says so",
			[]sysfstest.HCA{{}, {}},
			`{"configList": [{"resourceName": "hca", "rdmaHcaMax": 10, "deviceNodes": "Allocated", "selectors": {"vendors": ["15b3"]}}]}`,
			"rdma/hca", 10, []string{"issm0", "rdma_cm", "umad0", "uverbs0"},
		},
		{
			"all HCAs without a word",
			[]sysfstest.HCA{{}, {}},
			`{"configList": [{"resourceName": "hca", "rdmaHcaMax": 10, "selectors": {"vendors": ["15b3"]}}]}`,
			"rdma/hca", 10, []string{"issm0", "issm1", "rdma_cm", "umad0", "umad1", "uverbs0", "uverbs1"},
		},
		{
			"all HCAs where the configuration says so",
			[]sysfstest.HCA{{}, {}},
			`{"configList": [{"resourceName": "hca", "rdmaHcaMax": 10, "deviceNodes": "All", "selectors": {"vendors": ["15b3"]}}]}`,
			"rdma/hca", 10, []string{"issm0", "issm1", "rdma_cm", "umad0", "umad1", "uverbs0", "uverbs1"},
		},
		{
			"a two-port HCA brings the umads of both ports",
			[]sysfstest.HCA{{Ports: 2}},
			`{"configList": [{"resourceName": "hca", "rdmaHcaMax": 10, "selectors": {"linkTypes": ["infiniband"]}}]}`,
			"rdma/hca", 10, []string{"issm0", "issm1", "rdma_cm", "umad0", "umad1", "uverbs0"},
		},
		{
			"no units where rdmaHcaMax is 0",
			[]sysfstest.HCA{{}},
			`{"configList": [{"resourceName": "hca", "rdmaHcaMax": 0, "selectors": {"vendors": ["15b3"]}}]}`,
			"rdma/hca", 0, nil,
		},
		{
			"no units where no device matches",
			[]sysfstest.HCA{{}},
			`{"configList": [{"resourceName": "hca", "rdmaHcaMax": 5, "selectors": {"vendors": ["8086"]}}]}`,
			"rdma/hca", 0, nil,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := newNode(t)
			for i, h := range test.hcas {
				vendor, device, driver := h.Vendor, h.Device, h.Driver
				h.Function = sysfstest.Function{Vendor: vendor, Device: device, Driver: driver}
				n.addHCA(0x10+2*i, "0", h)
			}
			n.configure(test.config)
			n.start()
			n.kubelet.AwaitAllocatable(test.resource, test.units)
			if test.units == 0 {
				return
			}
			_, response, err := n.kubelet.Allocate(t.Context(), test.resource, 1)
			if err != nil {
				t.Fatal(err)
			}
			for i := range test.want {
				test.want[i] = "/dev/infiniband/" + test.want[i]
			}
			if diff := cmp.Diff(test.want, paths(response)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestDeviceNodesByCDI(t *testing.T) {
	n := newNode(t)
	n.two()
	n.options.DevicePluginCDI = true
	n.start()
	n.kubelet.AwaitAllocatable(shared, 1000)
	_, response, err := n.kubelet.Allocate(t.Context(), shared, 1)
	if err != nil {
		t.Fatal(err)
	}
	if len(response.GetDevices()) > 0 || len(response.GetCdiDevices()) != 1 {
		t.Fatalf("got %v", response)
	}
	registry, err := cdi.NewCache(cdi.WithSpecDirs(n.options.CDIRoot), cdi.WithAutoRefresh(false))
	if err != nil {
		t.Fatal(err)
	}
	if errs := registry.GetErrors(); len(errs) > 0 {
		t.Fatal(errs)
	}
	device := registry.GetDevice(response.GetCdiDevices()[0].GetName())
	if device == nil {
		t.Fatalf("the runtime finds %v, not %v", registry.ListDevices(), response.GetCdiDevices())
	}
	// The tree's device nodes are plain files, which a runtime accepts as devices only where the spec gives their numbers.
	container := &oci.Spec{}
	if _, err := registry.InjectDevices(container, response.GetCdiDevices()[0].GetName()); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, node := range container.Linux.Devices {
		got = append(got, fmt.Sprintf("%s %s %d:%d", node.Path, node.Type, node.Major, node.Minor))
	}
	want := []string{"/dev/infiniband/uverbs0 c 231:192", "/dev/infiniband/umad0 c 231:0", "/dev/infiniband/issm0 c 231:64",
		"/dev/infiniband/rdma_cm c 10:122"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	n.configure(strings.Replace(divided, "_a", "_b", 1))
	n.kubelet.AwaitAllocatable("rdma/hca_shared_devices_b", 1000)
	n.kubelet.Await(shared, "end of the pool", func(r kubelettest.Resource) bool { return r.Capacity == 0 })
	n.stop()
	n.configure(strings.Replace(divided, "_a", "_c", 1)) // while the role is down
	n.start()
	n.kubelet.AwaitAllocatable("rdma/hca_shared_devices_c", 1000)
	n.stop()
	if files, _ := filepath.Glob(filepath.Join(n.options.CDIRoot, "*")); len(files) != 1 ||
		!strings.Contains(files[0], "rdma_hca_shared_devices_c") {
		t.Errorf("the specs are %v", files)
	}
}

func TestAllocateRefusesAnExclusiveUnitWhenAForgottenPodUsesIt(t *testing.T) {
	const resource = "rdma/hca"
	n := newNode(t)
	n.two()
	n.configure(`{"configList": [{"resourceName": "hca", "mode": "Exclusive", "selectors": {"vendors": ["15b3"]}}]}`)
	pods := occupancytest.New(t, n.options.Cgroups().Path)
	n.start()
	units := kubelettest.IDs(n.kubelet.AwaitAllocatable(resource, 2).Devices)
	pods.Run("pod-a")
	n.kubelet.Record(resource, map[string][]string{"pod-a": units[:1]})
	if _, err := n.kubelet.AllocateIDs(t.Context(), resource, units[0]); err == nil || !strings.Contains(err.Error(), "pod-a") {
		t.Errorf("an HCA was allocated under a running container: %v", err)
	}
	n.kubelet.Record(resource, nil)
	n.kubelet.AwaitAllocatable(resource, 1)
	pods.End("pod-a")
	n.kubelet.AwaitAllocatable(resource, 2)
}

// The kubelet writes its checkpoint without the pod that it forgot after the next allocation.
func TestAllocateGivesAnExclusiveHCAOnceWhenPodsAreForceDeleted(t *testing.T) {
	const resource = "rdma/hca"
	n := newNode(t)
	n.two()
	n.configure(`{"configList": [{"resourceName": "hca", "mode": "Exclusive", "selectors": {"vendors": ["15b3"]}}]}`)
	pods := occupancytest.Real(t, n.options.Cgroups().Path)
	n.start()
	unit := kubelettest.IDs(n.kubelet.AwaitAllocatable(resource, 2).Devices)[:1]
	allocate := func(int) {
		if _, err := n.kubelet.AllocateIDs(t.Context(), resource, unit...); err != nil {
			t.Fatal(err)
		}
	}
	pods.Taken(func(try int, pod string) {
		allocate(try)
		n.kubelet.Record(resource, map[string][]string{pod: unit})
	}, func(string) error { return nil }, func(try int) {
		allocate(try)
		n.kubelet.Record(resource, nil)
	})
}
