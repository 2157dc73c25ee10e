package plugin_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/hardware/sysfstest"
	"gpufabric.io/drivers/node/deviceplugin/kubelettest"
	"gpufabric.io/drivers/node/options"
	"gpufabric.io/drivers/rdma/plugin"
)

const (
	shared = "rdma/hca_shared_devices_a"

	seed = `{"periodicUpdateInterval": 300, "configList": [{"resourceName": "hca_shared_devices_a", "rdmaHcaMax": 1000,
		"selectors": {"vendors": ["15b3"], "deviceIDs": ["1021"]}}]}`
	// divided is the seed's pool with units that are shares of one HCA.
	divided = `{"periodicUpdateInterval": 300, "configList": [{"resourceName": "hca_shared_devices_a", "rdmaHcaMax": 1000,
		"deviceNodes": "Allocated", "selectors": {"vendors": ["15b3"], "deviceIDs": ["1021"]}}]}`
)

// node is a fake node with a kubelet and the role running on it.
type node struct {
	t       *testing.T
	tree    *sysfstest.Tree
	kubelet *kubelettest.Kubelet
	config  string
	options plugin.Options
	stop    func()
}

// newNode makes a node of two InfiniBand HCAs on two NUMA nodes, without the role.
func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{t: t, tree: sysfstest.New(t), kubelet: kubelettest.New(t)}
	state := t.TempDir()
	n.config = filepath.Join(t.TempDir(), "config.json")
	n.options = plugin.Options{
		Node: options.Node{
			DriverRoot: "/", // this role must not use it
			SysfsRoot:  n.tree.Sys, DevRoot: n.tree.Dev, ProcDevices: filepath.Join(t.TempDir(), "devices"), CDIRoot: filepath.Join(state, "cdi"),
			KubeletRoot: n.kubelet.Root(), StateDir: state, NodeName: "node-a",
		},
		ConfigFile: n.config, DevicePlugin: true,
	}
	n.kubelet.Start()
	return n
}

func (n *node) addHCA(bus int, numa string, h sysfstest.HCA) string {
	h.Function.Parent = fmt.Sprintf("pci0000:%02x/0000:%02x:00.0", bus, bus)
	h.Function.Address = fmt.Sprintf("0000:%02x:00.0", bus+1)
	h.Function.NUMANode = numa
	return n.tree.AddHCA(h)
}

// configure writes the configuration as the kubelet writes a ConfigMap volume: atomically.
func (n *node) configure(text string) {
	n.t.Helper()
	temporary := n.config + ".new"
	if err := os.WriteFile(temporary, []byte(text), 0o644); err != nil {
		n.t.Fatal(err)
	}
	if err := os.Rename(temporary, n.config); err != nil {
		n.t.Fatal(err)
	}
}

// start runs the role until the test ends or n.stop is called.
func (n *node) start() {
	n.t.Helper()
	ctx, cancel := context.WithCancel(n.t.Context())
	var group sync.WaitGroup
	group.Go(func() {
		if err := plugin.Run(ctx, n.options); err != nil {
			n.t.Error(err)
		}
	})
	n.stop = func() {
		cancel()
		group.Wait()
		// Until the kubelet notices the end, it has its earlier list.
		n.kubelet.Await(shared, "end of the stream", func(r kubelettest.Resource) bool { return r.Capacity == 0 })
	}
	n.t.Cleanup(n.stop)
}

// two adds two HCAs and configures the seed's pool, with units that are shares of one.
func (n *node) two() (first, second string) {
	first = n.addHCA(0x3a, "0", sysfstest.HCA{Nets: []string{"ibp59s0"}})
	second = n.addHCA(0x5d, "1", sysfstest.HCA{Nets: []string{"ibp94s0"}})
	n.configure(divided)
	return first, second
}

func paths(response *pluginapi.ContainerAllocateResponse) []string {
	var p []string
	for _, d := range response.GetDevices() {
		p = append(p, d.GetContainerPath())
	}
	slices.Sort(p)
	return p
}

func numa(devices []*pluginapi.Device) map[int64]int {
	count := make(map[int64]int)
	for _, d := range devices {
		for _, node := range d.GetTopology().GetNodes() {
			count[node.GetID()]++
		}
	}
	return count
}

// An unchanged config.json has the meaning that k8s-rdma-shared-dev-plugin gives it.
func TestUnitOfConfigFileGivesEveryHCAOfThePool(t *testing.T) {
	n := newNode(t)
	var want []string
	for i := range 8 {
		n.addHCA(0x10+2*i, strconv.Itoa(i/4), sysfstest.HCA{})
		for _, node := range []string{"issm", "umad", "uverbs"} {
			want = append(want, fmt.Sprintf("/dev/infiniband/%s%d", node, i))
		}
	}
	slices.Sort(want)
	want = slices.Insert(want, 8, "/dev/infiniband/rdma_cm")
	n.configure(strings.Replace(seed, "1000", "1", 1)) // one pod a node
	n.start()
	view := n.kubelet.AwaitAllocatable(shared, 1)
	if got := numa(view.Devices); len(got) > 0 {
		t.Errorf("the unit has the NUMA nodes %v", got)
	}
	_, response, err := n.kubelet.Allocate(t.Context(), shared, 1)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, paths(response)); diff != "" {
		t.Error(diff)
	}
	if _, _, err := n.kubelet.Allocate(t.Context(), shared, 1); err == nil {
		t.Error("a second pod got a unit")
	}
}

func TestAllocateGivesOnlyTheDeviceNodesOfTheHCA(t *testing.T) {
	n := newNode(t)
	n.two()
	n.start()
	view := n.kubelet.AwaitAllocatable(shared, 1000)
	if diff := cmp.Diff(map[int64]int{0: 500, 1: 500}, numa(view.Devices)); diff != "" {
		t.Errorf("units by NUMA node: %s", diff)
	}
	var got [][]string
	for range 2 {
		ids, response, err := n.kubelet.Allocate(t.Context(), shared, 1)
		if err != nil {
			t.Fatal(err)
		}
		t.Log(ids)
		got = append(got, paths(response))
		for _, d := range response.GetDevices() {
			if d.GetPermissions() != "rwm" || !strings.HasPrefix(d.GetHostPath(), n.tree.Dev) {
				t.Errorf("device %v", d)
			}
		}
		if len(response.GetEnvs())+len(response.GetMounts()) > 0 {
			t.Errorf("the old plugin gave neither environment nor mounts; this one gave %v", response)
		}
	}
	want := [][]string{
		{"/dev/infiniband/issm0", "/dev/infiniband/rdma_cm", "/dev/infiniband/umad0", "/dev/infiniband/uverbs0"},
		{"/dev/infiniband/issm1", "/dev/infiniband/rdma_cm", "/dev/infiniband/umad1", "/dev/infiniband/uverbs1"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("two pods: %s", diff)
	}
}

func TestAllocateServesAThousandPodsOnOneHCA(t *testing.T) {
	n := newNode(t)
	n.addHCA(0x3a, "0", sysfstest.HCA{Nets: []string{"ibp3s0"}})
	n.configure(seed)
	n.start()
	view := n.kubelet.AwaitAllocatable(shared, 1000)
	// gRPC's limit for messages is 4 MiB, and the kubelet keeps it. The maximum number of units of a pool must fit too, with their
	// NUMA nodes.
	message := proto.Size(&pluginapi.ListAndWatchResponse{Devices: view.Devices})
	if most := message * v1alpha1.MaxRDMAUnits / 1000; message > 64<<10 || most > 4<<20 {
		t.Errorf("the list of 1000 units has %d bytes, that of %d about %d; want at most 64 KiB and 4 MiB", message, v1alpha1.MaxRDMAUnits, most)
	}
	for i := range 1000 {
		if _, _, err := n.kubelet.Allocate(t.Context(), shared, 1); err != nil {
			t.Fatalf("pod %d: %v", i, err)
		}
	}
	if _, _, err := n.kubelet.Allocate(t.Context(), shared, 1); err == nil {
		t.Error("there were more than 1000 units")
	}
}

func TestAllocateSpreadsUnitsOverHCAs(t *testing.T) {
	n := newNode(t)
	n.two()
	n.start()
	n.kubelet.AwaitAllocatable(shared, 1000)
	_, response, err := n.kubelet.Allocate(t.Context(), shared, 2)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"issm0", "issm1", "rdma_cm", "umad0", "umad1", "uverbs0", "uverbs1"}
	for i := range want {
		want[i] = "/dev/infiniband/" + want[i]
	}
	if diff := cmp.Diff(want, paths(response)); diff != "" {
		t.Error(diff)
	}
}

func TestPluginWithdrawsUnitsWhileAPortIsDown(t *testing.T) {
	for _, test := range []struct {
		name     string
		ethernet bool // an IPoIB interface's carrier is not its port's
		down     func(*sysfstest.Tree, string)
		up       func(*sysfstest.Tree, string)
	}{
		{
			"by its state", false,
			func(tree *sysfstest.Tree, device string) { tree.Write(device+"/ports/1/state", "1: DOWN") },
			func(tree *sysfstest.Tree, device string) { tree.Write(device+"/ports/1/state", "4: ACTIVE") },
		},
		{
			"by its physical state", false,
			func(tree *sysfstest.Tree, device string) { tree.Write(device+"/ports/1/phys_state", "2: Polling") },
			func(tree *sysfstest.Tree, device string) { tree.Write(device+"/ports/1/phys_state", "5: LinkUp") },
		},
		{
			"by its interface's carrier", true,
			func(tree *sysfstest.Tree, _ string) { tree.Write("class/net/ibp59s0/carrier", "0") },
			func(tree *sysfstest.Tree, _ string) { tree.Write("class/net/ibp59s0/carrier", "1") },
		},
		{
			"by a state that is garbage", false,
			func(tree *sysfstest.Tree, device string) { tree.Write(device+"/ports/1/state", "?") },
			func(tree *sysfstest.Tree, device string) { tree.Write(device+"/ports/1/state", "4: ACTIVE") },
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			first, _ := n.two()
			if test.ethernet {
				n.tree.Write(first+"/ports/1/link_layer", "Ethernet")
				n.tree.Write("class/net/ibp59s0/type", "1")
			}
			n.start()
			n.kubelet.AwaitAllocatable(shared, 1000)
			begin := time.Now()
			test.down(n.tree, first)
			view := n.kubelet.AwaitAllocatable(shared, 500)
			t.Logf("down to unhealthy: %v", time.Since(begin)) // under 1 s on an idle machine; a busy one proves nothing
			if view.Capacity != 1000 {
				t.Errorf("the capacity went to %d", view.Capacity)
			}
			for range 3 {
				_, response, err := n.kubelet.Allocate(t.Context(), shared, 1)
				if err != nil || !slices.Contains(paths(response), "/dev/infiniband/uverbs1") {
					t.Errorf("got %v, %v while the first HCA is down", paths(response), err)
				}
			}
			test.up(n.tree, first)
			n.kubelet.AwaitAllocatable(shared, 1000)
		})
	}
}

func TestPluginKeepsAllocatableOverAKubeletRestart(t *testing.T) {
	n := newNode(t)
	n.two()
	n.start()
	before := n.kubelet.AwaitAllocatable(shared, 1000)
	ids, _, err := n.kubelet.Allocate(t.Context(), shared, 1) // A pod that runs on.
	if err != nil {
		t.Fatal(err)
	}
	var took []time.Duration
	for range 5 {
		n.kubelet.Stop()
		begin := time.Now()
		n.kubelet.Start() // on a socket made again
		after := n.kubelet.Await(shared, "list", func(r kubelettest.Resource) bool { return r.Lists > 0 })
		took = append(took, time.Since(begin))
		// The kubelet's very first list is complete: it never counts a unit as gone or unhealthy in between.
		if after.Allocatable != 1000 || after.Capacity != 1000 {
			t.Errorf("the first list after a restart has %d units, %d of them healthy", after.Capacity, after.Allocatable)
		}
		if diff := cmp.Diff(kubelettest.IDs(before.Devices), kubelettest.IDs(after.Devices)); diff != "" {
			t.Error(diff)
		}
	}
	t.Logf("measured: restarts to allocatable: %v", took)
	if _, err := n.kubelet.AllocateIDs(t.Context(), shared, ids...); err != nil {
		t.Errorf("the pod's unit %v is not what it was: %v", ids, err)
	}
}

func TestPluginKeepsUnitsOnTheirHCAOverARestart(t *testing.T) {
	n := newNode(t)
	n.two()
	n.start()
	before := n.kubelet.AwaitAllocatable(shared, 1000)
	n.stop()
	n.addHCA(0x10, "0", sysfstest.HCA{Nets: []string{"ibp17s0"}})
	n.start()
	after := n.kubelet.AwaitAllocatable(shared, 1000)
	node := func(d *pluginapi.Device) int64 { return d.GetTopology().GetNodes()[0].GetID() }
	moved := 0
	for i, d := range before.Devices {
		if node(d) != node(after.Devices[i]) {
			moved++
		}
	}
	// A third HCA takes a third of the units: 166 of the second one's 500 moved to its NUMA node.
	if moved > 167 {
		t.Errorf("%d units moved to another NUMA node", moved)
	}
}

func TestPluginReadsTheConfigurationAgain(t *testing.T) {
	n := newNode(t)
	n.two()
	n.start()
	n.kubelet.AwaitAllocatable(shared, 1000)
	n.configure(strings.Replace(seed, "1000", "200", 1))
	n.kubelet.AwaitAllocatable(shared, 200)
	n.configure(strings.Replace(seed, "1000", "-4", 1))
	n.configure(`{"configList": [`)
	n.configure(strings.Replace(strings.Replace(seed, "1000", "30", 1), "_a", "_b", 1))
	n.kubelet.AwaitAllocatable("rdma/hca_shared_devices_b", 30)
	n.kubelet.Await(shared, "end of the renamed pool", func(r kubelettest.Resource) bool { return r.Capacity == 0 })
	n.configure("nonsense")
	n.kubelet.Stop()
	n.kubelet.Start()
	n.kubelet.AwaitAllocatable("rdma/hca_shared_devices_b", 30)
}

func TestPluginKeepsUnitsOfAnHCAThatComesBack(t *testing.T) {
	n := newNode(t)
	n.two()
	n.start()
	n.kubelet.AwaitAllocatable(shared, 1000)
	n.tree.Remove("class/infiniband/mlx5_1")
	moved := filepath.Join(n.tree.Sys, "devices/pci0000:5d")
	if err := os.Rename(moved, moved+".gone"); err != nil {
		t.Fatal(err)
	}
	if view := n.kubelet.AwaitAllocatable(shared, 500); view.Capacity != 1000 {
		t.Errorf("the capacity went to %d", view.Capacity)
	}
	if err := os.Rename(moved+".gone", moved); err != nil {
		t.Fatal(err)
	}
	n.tree.Link("class/infiniband/mlx5_1", "devices/pci0000:5d/0000:5d:00.0/0000:5e:00.0/infiniband/mlx5_1")
	// The driver makes the device nodes again, which causes the event.
	node := filepath.Join(n.tree.Dev, "infiniband/uverbs1")
	if err := os.Remove(node); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(node, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	n.kubelet.AwaitAllocatable(shared, 1000)
}

func TestPluginKeepsUnitsOfAnHCAThatIsMissingAtStart(t *testing.T) {
	n := newNode(t)
	n.two()
	boot := filepath.Join(filepath.Dir(n.options.ProcDevices), "sys/kernel/random/boot_id")
	if err := os.MkdirAll(filepath.Dir(boot), 0o755); err != nil {
		t.Fatal(err)
	}
	again := func(id string) {
		if n.stop != nil {
			n.stop()
		}
		if err := os.WriteFile(boot, []byte(id), 0o644); err != nil {
			t.Fatal(err)
		}
		n.start()
	}
	again("b1")
	before := n.kubelet.AwaitAllocatable(shared, 1000)
	n.tree.Remove("class/infiniband/mlx5_1")
	again("b1")
	if view := n.kubelet.AwaitAllocatable(shared, 500); view.Capacity != 1000 {
		t.Errorf("the capacity went to %d", view.Capacity)
	}
	n.tree.Link("class/infiniband/mlx5_1", "devices/pci0000:5d/0000:5d:00.0/0000:5e:00.0/infiniband/mlx5_1")
	again("b1")
	after := n.kubelet.AwaitAllocatable(shared, 1000)
	for i, d := range before.Devices {
		if !proto.Equal(d, after.Devices[i]) {
			t.Fatalf("unit %v became %v", d, after.Devices[i])
		}
	}
	// No pod outlives a reboot, and an HCA that is absent then may have been taken out.
	n.tree.Remove("class/infiniband/mlx5_1")
	again("b2")
	n.kubelet.AwaitAllocatable(shared, 1000)
}

func TestPluginStartsWithoutHardware(t *testing.T) {
	n := newNode(t)
	n.tree.Remove("class/infiniband")
	if err := os.RemoveAll(n.tree.Dev); err != nil {
		t.Fatal(err)
	}
	n.start()
	n.configure(seed) // after the start
	n.kubelet.AwaitAllocatable(shared, 0)
}

func TestHardwareThatComesAfterTheStartIsFound(t *testing.T) {
	n := newNode(t)
	n.two()
	later := n.tree.Sys + ".later"
	for _, move := range []struct{ from, to string }{{n.tree.Sys, later}, {n.tree.Dev, n.tree.Dev + ".later"}} {
		if err := os.Rename(move.from, move.to); err != nil {
			t.Fatal(err)
		}
	}
	n.start()
	for _, move := range []struct{ from, to string }{{later, n.tree.Sys}, {n.tree.Dev + ".later", n.tree.Dev}} {
		if err := os.Rename(move.from, move.to); err != nil {
			t.Fatal(err)
		}
	}
	n.kubelet.AwaitAllocatable(shared, 1000)
}

func TestPluginSetsADamagedLayoutAside(t *testing.T) {
	n := newNode(t)
	n.two()
	n.start()
	n.kubelet.AwaitAllocatable(shared, 1000)
	n.stop()
	path := filepath.Join(n.options.StateDir, "layouts", "rdma_hca_shared_devices_a.layout")
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, bytes.Replace(content, []byte("0000:3b"), []byte("0000:3c"), 1), 0o644); err != nil {
		t.Fatal(err)
	}
	n.start()
	n.kubelet.AwaitAllocatable(shared, 1000)
	if _, err := os.Stat(filepath.Join(filepath.Dir(path), "unreadable", filepath.Base(path))); err != nil {
		t.Error(err)
	}
}
