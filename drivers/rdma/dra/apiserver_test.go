package dra

import (
	"fmt"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/hardware/sysfstest"
	"gpufabric.io/drivers/rdma/apiservertest"
	"gpufabric.io/drivers/rdma/health"
	"gpufabric.io/drivers/rdma/inventory"
	"gpufabric.io/drivers/rdma/pool"
)

// serve runs a real API server until the test ends.
func serve(t *testing.T) kubernetes.Interface {
	t.Helper()
	config := apiservertest.Start(t)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// discovered returns a node's devices with those pools.
func discovered(t *testing.T, tree *sysfstest.Tree, pools ...v1alpha1.RDMAPoolConfig) (*inventory.Inventory, []pool.Pool) {
	t.Helper()
	found, err := inventory.Discover(t.Context(), inventory.Roots{Sysfs: tree.Sys})
	if err != nil || len(found.Skipped) > 0 {
		t.Fatalf("%v, skipped %v", err, found.Skipped)
	}
	var definitions []pool.Definition
	for i, p := range pools {
		definitions = append(definitions, pool.Definition{RDMAPoolConfig: p, Source: fmt.Sprintf("configList[%d]", i)})
	}
	return found, pool.Select(definitions, found).Pools
}

// at is a function below a root port of its own.
func at(bus int) sysfstest.Function {
	return sysfstest.Function{Parent: fmt.Sprintf("pci0000:%02x/0000:%02x:00.0", bus, bus), Address: fmt.Sprintf("0000:%02x:00.0", bus+1)}
}

// If the API server refuses one device, it refuses the whole slice.
func TestAPIServerAcceptsEveryNodesDevices(t *testing.T) {
	client := serve(t)
	all := &v1alpha1.RDMASelectors{Vendors: []string{"15b3"}}
	up := func(health.Key) health.State { return health.State{Phase: health.Up} }
	down := func(health.Key) health.State { return health.State{Phase: health.Recovering} }
	for _, test := range []struct {
		name  string
		tree  func(*sysfstest.Tree)
		pools []v1alpha1.RDMAPoolConfig
		o     Options
		state func(health.Key) health.State
	}{
		{name: "an HCA without a pool", o: Options{Slots: 64}},
		{name: "one slot for each device", o: Options{Slots: 1}},
		{name: "the most slots", o: Options{Slots: 100_000}},
		{name: "a pool of as many units as HCAs", o: Options{Slots: 64},
			pools: []v1alpha1.RDMAPoolConfig{{ResourceName: "a", RDMAHCAMax: 2, Selectors: all}}},
		{name: "a pool of no units", o: Options{Slots: 64}, pools: []v1alpha1.RDMAPoolConfig{{ResourceName: "a", Selectors: all}}},
		{name: "an exclusive pool", o: Options{Slots: 64}, pools: []v1alpha1.RDMAPoolConfig{{ResourceName: "a", Mode: v1alpha1.RDMAExclusive,
			Selectors: all}}},
		{
			name: "a pool that the device plugin serves, with ports that come back", o: Options{Slots: 64, DevicePlugin: true}, state: down,
			pools: []v1alpha1.RDMAPoolConfig{{ResourceName: "hca_shared_devices_a", RDMAHCAMax: 1000, Selectors: all}},
		},
		{name: "a port whose driver gives no rate", o: Options{Slots: 64}, tree: func(tree *sysfstest.Tree) {
			tree.Remove(tree.AddHCA(sysfstest.HCA{Function: at(0x80)}) + "/ports/1/rate")
		}},
		{name: "a port of 1 Gb/s", o: Options{Slots: 64}, tree: func(tree *sysfstest.Tree) {
			tree.AddHCA(sysfstest.HCA{Function: at(0x80), Rate: "1 Gb/sec (1X SDR)"})
		}},
		{name: "two ports, one of them Ethernet's", o: Options{Slots: 64}, tree: func(tree *sysfstest.Tree) {
			tree.Write(tree.AddHCA(sysfstest.HCA{Function: at(0x80), Ports: 2, Nets: []string{"ib0", "ib1"}})+"/ports/2/link_layer", "Ethernet")
		}},
		{name: "more partition keys than an attribute holds", o: Options{Slots: 64}, tree: func(tree *sysfstest.Tree) {
			var keys []string
			for key := range 100 {
				keys = append(keys, fmt.Sprintf("0x%04x", 0x8001+key))
			}
			tree.AddHCA(sysfstest.HCA{Function: at(0x80), PKeys: keys})
		}},
		{name: "texts longer than an attribute", o: Options{Slots: 64}, tree: func(tree *sysfstest.Tree) {
			tree.AddHCA(sysfstest.HCA{Function: at(0x80), Name: "mlx5_of_a_name_that_somebody_gave_it_and_that_is_long",
				BoardID: fmt.Sprintf("%0100d", 7)})
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			tree := sysfstest.New(t)
			tree.AddHCA(sysfstest.HCA{Function: at(0x10)})
			tree.AddHCA(sysfstest.HCA{Function: at(0x20), Ethernet: true, Nets: []string{"ens2"}})
			if test.tree != nil {
				test.tree(tree)
			}
			state := test.state
			if state == nil {
				state = up
			}
			found, pools := discovered(t, tree, test.pools...)
			published := Slices(Ports(found, pools, test.o), found, state, test.o)
			for i, devices := range published {
				node := "node-a"
				slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-a-%d", i)},
					Spec: resourceapi.ResourceSliceSpec{
						Driver: Driver, NodeName: &node, Devices: devices,
						Pool: resourceapi.ResourcePool{Name: "node-a-rdma", Generation: 1, ResourceSliceCount: int64(len(published))},
					}}
				got, err := client.ResourceV1().ResourceSlices().Create(t.Context(), slice, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
				if err != nil {
					t.Fatal(err)
				}
				for i := range got.Spec.Devices {
					if len(got.Spec.Devices[i].Capacity) != len(devices[i].Capacity) || len(got.Spec.Devices[i].Taints) != len(devices[i].Taints) {
						t.Errorf("the API server kept of %+v only %+v", devices[i], got.Spec.Devices[i])
					}
				}
			}
		})
	}
}
