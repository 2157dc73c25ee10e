package plugin_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpufabric.io/drivers/hardware/sysfstest"
	"gpufabric.io/drivers/node/capability/capabilitytest"
	"gpufabric.io/drivers/rdma/dra"
)

// withAPI gives the node a fake API server.
func (n *node) withAPI() *fake.Clientset {
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a", UID: "node-uid"}})
	var named atomic.Int32
	// The fake API server does not implement generateName.
	client.PrependReactor("create", "resourceslices", func(action k8stesting.Action) (bool, runtime.Object, error) {
		slice := action.(k8stesting.CreateAction).GetObject().(*resourceapi.ResourceSlice)
		if slice.Name == "" {
			slice.Name = fmt.Sprintf("%s%03d", slice.GenerateName, named.Add(1))
		}
		return false, nil, nil
	})
	capabilitytest.DryRuns(client, capabilitytest.All)
	n.options.Client, n.options.Slots = client, 64
	return client
}

// awaitDevices waits until the published devices satisfy want.
func awaitDevices(t *testing.T, client *fake.Clientset, description string,
	want func(map[string]resourceapi.Device) bool) map[string]resourceapi.Device {
	t.Helper()
	watch, err := client.ResourceV1().ResourceSlices().Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	deadline := time.After(time.Minute)
	for {
		list, err := client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		devices := make(map[string]resourceapi.Device)
		for _, slice := range list.Items {
			if slice.Spec.Pool.Name != "node-a-rdma" || slice.Spec.Driver != "rdma.gpufabric.io" {
				t.Fatalf("slice of pool %s of driver %s", slice.Spec.Pool.Name, slice.Spec.Driver)
			}
			for _, d := range slice.Spec.Devices {
				devices[d.Name] = d
			}
		}
		if want(devices) {
			return devices
		}
		select {
		case <-watch.ResultChan():
		case <-deadline:
			t.Fatalf("no %s; the devices are %v", description, devices)
		}
	}
}

func plain(d resourceapi.Device) map[string]any {
	values := make(map[string]any)
	for name, a := range d.Attributes {
		switch {
		case a.StringValue != nil:
			values[string(name)] = *a.StringValue
		case a.IntValue != nil:
			values[string(name)] = *a.IntValue
		}
	}
	return values
}

func TestPluginDoesNotNeedADirectoryWithoutDevicePlugins(t *testing.T) {
	n := newNode(t)
	n.addHCA(0x3a, "1", sysfstest.HCA{})
	n.options.DevicePlugin = false
	root, err := os.MkdirTemp("", "kubelet") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	n.options.KubeletRoot = root
	// A file in its place makes every use of the directory fail.
	if err := os.WriteFile(filepath.Join(root, "device-plugins"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	client := n.withAPI()
	n.start()
	awaitDevices(t, client, "device", func(d map[string]resourceapi.Device) bool { return len(d) == 1 })
}

func TestDRAPublishesAPortWithItsAttributes(t *testing.T) {
	n := newNode(t)
	n.addHCA(0x3a, "1", sysfstest.HCA{Nets: []string{"ibp3s0"}, PKeys: []string{"0xffff", "0x8012", "0x0000"}})
	n.options.DevicePlugin = false
	n.configure(seed)
	client := n.withAPI()
	n.start()
	devices := awaitDevices(t, client, "device in the pool", func(d map[string]resourceapi.Device) bool {
		return d["pci-0000-3b-00-0-1"].Attributes[dra.AttrPool].StringValue != nil
	})
	got := devices["pci-0000-3b-00-0-1"]
	want := map[string]any{
		"rdmaDevice": "mlx5_0", "port": int64(1), "linkLayer": "InfiniBand", "rateGbps": int64(400), "nodeGUID": "9c63:c003:0000:0000",
		"portGUID": "9c63:c003:0001:0000", "lid": int64(17), "pkeys": "0x0012,0x7fff", "fwVersion": "28.39.1002", "psid": "MT_0000000838",
		"sriov": "none", "gpudirect": "none", "pool": "rdma/hca_shared_devices_a", "ifName": "ibp3s0", "mtu": int64(4092),
		"vendor": "15b3", "deviceID": "1021", "driver": "mlx5_core",
		"resource.kubernetes.io/pciBusID": "0000:3b:00.0", "resource.kubernetes.io/pcieRoot": "pci0000:3a",
		"resource.kubernetes.io/numaNode": int64(1),
		"gpufabric.io/pcieSwitch":         "0000:3a:00.0",
	}
	if diff := cmp.Diff(want, plain(got)); diff != "" {
		t.Error(diff)
	}
	slots, bandwidth := got.Capacity[dra.CapSlots], got.Capacity[dra.CapBandwidth]
	if slots.Value.Value() != 1000 || slots.RequestPolicy.Default.Value() != 1 {
		t.Errorf("slots: %v", slots)
	}
	if bandwidth.Value.Value() != 400 || bandwidth.RequestPolicy.Default.Value() != 0 {
		t.Errorf("bandwidth: %v", bandwidth)
	}
	if got.AllowMultipleAllocations == nil || !*got.AllowMultipleAllocations || len(got.Taints) > 0 {
		t.Errorf("got %+v", got)
	}
}

func TestTaintsFollowThePortAndTheDevicePlugin(t *testing.T) {
	n := newNode(t)
	first, _ := n.two()
	client := n.withAPI()
	n.start()
	taints := func(d resourceapi.Device) []string {
		var keys []string
		for _, taint := range d.Taints {
			keys = append(keys, taint.Key+"="+taint.Value+":"+string(taint.Effect))
		}
		slices.Sort(keys)
		return keys
	}
	held := "rdma.gpufabric.io/device-plugin=hca_shared_devices_a:NoSchedule"
	down := "rdma.gpufabric.io/port-down=Down:NoSchedule"
	expect := func(description string, keys ...string) {
		t.Helper()
		awaitDevices(t, client, description, func(d map[string]resourceapi.Device) bool {
			return len(d) == 2 && slices.Equal(taints(d["pci-0000-3b-00-0-1"]), keys) &&
				slices.Equal(taints(d["pci-0000-5e-00-0-1"]), []string{held})
		})
	}
	expect("devices that the device plugin has", held)
	n.tree.Write(first+"/ports/1/state", "1: DOWN")
	expect("taint of a port that is down", held, down)
	n.tree.Write(first+"/ports/1/rate", "200 Gb/sec (4X HDR)")
	n.tree.Write(first+"/ports/1/state", "4: ACTIVE")
	expect("devices that are healthy again", held)
	awaitDevices(t, client, "the rate that the port came back with", func(d map[string]resourceapi.Device) bool {
		rate, bandwidth := d["pci-0000-3b-00-0-1"].Attributes[dra.AttrRate].IntValue, d["pci-0000-3b-00-0-1"].Capacity[dra.CapBandwidth]
		return *rate == 200 && bandwidth.Value.Value() == 200
	})
}

func TestDRAGivesHCAsOfAnExclusivePoolWhole(t *testing.T) {
	n := newNode(t)
	n.addHCA(0x3a, "0", sysfstest.HCA{Ports: 2})
	n.addHCA(0x5d, "0", sysfstest.HCA{Ethernet: true, Nets: []string{"ens2f0"}})
	n.options.DevicePlugin = false
	n.configure(`{"configList": [{"resourceName": "hca", "mode": "Exclusive", "selectors": {"linkTypes": ["infiniband"]}}]}`)
	client := n.withAPI()
	n.start()
	devices := awaitDevices(t, client, "exclusive device", func(d map[string]resourceapi.Device) bool {
		return d["pci-0000-3b-00-0-1"].Attributes[dra.AttrPool].StringValue != nil
	})
	if whole := devices["pci-0000-3b-00-0-1"]; whole.AllowMultipleAllocations != nil || whole.Capacity[dra.CapSlots].RequestPolicy != nil {
		t.Errorf("the exclusive device can be shared: %+v", whole)
	}
	if len(devices) != 2 {
		t.Errorf("a two-port HCA that is given whole is one device; got %v", devices)
	}
	slots := devices["pci-0000-5e-00-0-1"].Capacity[dra.CapSlots]
	if slots.Value.Value() != 64 {
		t.Errorf("a device in no pool has %v slots", slots.Value.Value())
	}
}

// claimed makes an allocated claim of devices in the API.
func claimed(t *testing.T, client *fake.Clientset, uid string, parameters string, devices ...string) *drapb.Claim {
	t.Helper()
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "claim-" + uid, Namespace: "default", UID: types.UID(uid)}}
	claim.Status.Allocation = &resourceapi.AllocationResult{}
	for i, name := range devices {
		share := types.UID(fmt.Sprintf("%s-share-%d", uid, i))
		claim.Status.Allocation.Devices.Results = append(claim.Status.Allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{
			Driver: "rdma.gpufabric.io", Pool: "node-a-rdma", Device: name, Request: "nic", ShareID: &share,
		})
	}
	if parameters != "" {
		claim.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{{
			Source: resourceapi.AllocationConfigSourceClaim,
			DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
				Driver: "rdma.gpufabric.io", Parameters: runtime.RawExtension{Raw: []byte(parameters)},
			}},
		}}
	}
	if err := client.Tracker().Add(claim); err != nil {
		t.Fatal(err)
	}
	return &drapb.Claim{Namespace: "default", Name: claim.Name, Uid: uid}
}

// prepare prepares a claim as the kubelet does, in one call with others of its pod, and returns the edits of its container.
func (n *node) prepare(claim *drapb.Claim, together ...*drapb.Claim) (specs.ContainerEdits, string) {
	n.t.Helper()
	connection, err := grpc.NewClient("unix:"+filepath.Join(n.kubelet.Root(), "plugins/rdma.gpufabric.io/dra.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		n.t.Fatal(err)
	}
	defer func() { _ = connection.Close() }()
	ctx, cancel := context.WithTimeout(n.t.Context(), 2*time.Minute)
	defer cancel()
	answer, err := drapb.NewDRAPluginClient(connection).NodePrepareResources(ctx,
		&drapb.NodePrepareResourcesRequest{Claims: append(together, claim)}, grpc.WaitForReady(true))
	if err != nil {
		n.t.Fatal(err)
	}
	result := answer.GetClaims()[claim.GetUid()]
	if result.GetError() != "" {
		return specs.ContainerEdits{}, result.GetError()
	}
	var edits specs.ContainerEdits
	files, _ := filepath.Glob(filepath.Join(n.options.CDIRoot, "*"+claim.GetUid()+"*"))
	if len(files) != 1 {
		n.t.Fatalf("CDI specs of the claim: %v", files)
	}
	content, err := os.ReadFile(files[0])
	if err != nil {
		n.t.Fatal(err)
	}
	var spec specs.Spec
	if err := json.Unmarshal(content, &spec); err != nil {
		n.t.Fatal(err)
	}
	for _, d := range spec.Devices {
		edits.DeviceNodes = append(edits.DeviceNodes, d.ContainerEdits.DeviceNodes...)
		edits.Env = append(edits.Env, d.ContainerEdits.Env...)
	}
	return edits, ""
}

func TestDRAGivesAContainerItsPortsAndTheirNames(t *testing.T) {
	n := newNode(t)
	n.two()
	client := n.withAPI()
	n.start()
	for _, test := range []struct {
		name, parameters string
		devices          []string
		nodes, env       []string
		err              string
	}{
		{name: "one port", devices: []string{"pci-0000-5e-00-0-1"}, nodes: []string{"issm1", "rdma_cm", "umad1", "uverbs1"},
			env: []string{"NCCL_IB_HCA==mlx5_1:1"}},
		{
			name: "two ports", devices: []string{"pci-0000-5e-00-0-1", "pci-0000-3b-00-0-1"},
			nodes: []string{"issm0", "issm1", "rdma_cm", "umad0", "umad1", "uverbs0", "uverbs1"}, env: []string{"NCCL_IB_HCA==mlx5_0:1,mlx5_1:1"},
		},
		{
			name: "without environment", parameters: `{"apiVersion": "gpufabric.io/v1alpha1", "kind": "RDMAConfig", "environment": "None"}`,
			devices: []string{"pci-0000-3b-00-0-1"}, nodes: []string{"issm0", "rdma_cm", "umad0", "uverbs0"},
		},
		{name: "a device that is not there", devices: []string{"pci-0000-99-00-0-1"}, err: "pci-0000-99-00-0-1 is not on this node"},
		{
			name:       "a configuration with an unknown field",
			parameters: `{"apiVersion": "gpufabric.io/v1alpha1", "kind": "RDMAConfig", "environ": "None"}`,
			devices:    []string{"pci-0000-3b-00-0-1"}, err: `unknown field "environ"`,
		},
		{
			name: "a configuration of another kind", parameters: `{"apiVersion": "gpufabric.io/v1alpha1", "kind": "GpuConfig"}`,
			devices: []string{"pci-0000-3b-00-0-1"}, err: `kind: "GpuConfig", allowed are RDMAConfig`,
		},
		{
			name:       "a configuration with an unknown environment",
			parameters: `{"apiVersion": "gpufabric.io/v1alpha1", "kind": "RDMAConfig", "environment": "MPI"}`,
			devices:    []string{"pci-0000-3b-00-0-1"}, err: `environment: Unsupported value: "MPI"`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			edits, failure := n.prepare(claimed(t, client, strings.ReplaceAll(test.name, " ", "-"), test.parameters, test.devices...))
			if test.err != "" || failure != "" {
				if test.err == "" || !strings.Contains(failure, test.err) {
					t.Errorf("got %q, want an error with %q", failure, test.err)
				}
				return
			}
			nodes := make(map[string]bool)
			for _, d := range edits.DeviceNodes {
				if d.Type != "c" || d.Major == 0 {
					t.Errorf("%s is %q %d:%d, which a runtime looks up on the host, where a plain file stands", d.Path, d.Type, d.Major, d.Minor)
				}
				nodes[strings.TrimPrefix(d.Path, "/dev/infiniband/")] = true
			}
			got := slices.Sorted(func(yield func(string) bool) {
				for name := range nodes {
					if !yield(name) {
						return
					}
				}
			})
			if diff := cmp.Diff(test.nodes, got); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(test.env, slices.Compact(edits.Env)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestDRANamesThePortsOfAllClaimsOfAPod: of a variable that several claims set, a container has the value of one.
func TestDRANamesThePortsOfAllClaimsOfAPod(t *testing.T) {
	n := newNode(t)
	n.two()
	client := n.withAPI()
	n.start()
	of := func(pod, uid, device string) *drapb.Claim {
		t.Helper()
		made := claimed(t, client, uid, "", device)
		claim, err := client.ResourceV1().ResourceClaims("default").Get(t.Context(), made.GetName(), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: pod, UID: types.UID(pod)}}
		if err := client.Tracker().Update(resourceapi.SchemeGroupVersion.WithResource("resourceclaims"), claim, "default"); err != nil {
			t.Fatal(err)
		}
		return made
	}
	const first, second, both = "pci-0000-3b-00-0-1", "pci-0000-5e-00-0-1", "NCCL_IB_HCA==mlx5_0:1,mlx5_1:1"
	one, other := of("trainer", "u1", first), of("trainer", "u2", second)
	for _, order := range [][2]*drapb.Claim{{one, other}, {other, one}} { // the second time, the claims are prepared
		if edits, failure := n.prepare(order[0], order[1]); failure != "" || !slices.Contains(edits.Env, both) {
			t.Errorf("claim %s: environment %v, %s", order[0].GetName(), edits.Env, failure)
		}
	}
	if edits, failure := n.prepare(of("trainer", "u3", first)); failure != "" || !slices.Contains(edits.Env, both) {
		t.Errorf("a claim that comes later: environment %v, %s", edits.Env, failure)
	}
	if edits, failure := n.prepare(of("neighbour", "u4", first)); failure != "" || !slices.Contains(edits.Env, "NCCL_IB_HCA==mlx5_0:1") {
		t.Errorf("another pod: environment %v, %s", edits.Env, failure)
	}
}

// There is no event for new firmware, so only the periodic discovery finds it. The start makes a few discoveries of its own, which
// may find as many changes, but not all six, each of which waits for the previous one.
func TestScannerFindsDevicesWithoutAnEvent(t *testing.T) {
	n := newNode(t)
	device := n.addHCA(0x3a, "0", sysfstest.HCA{})
	n.options.DevicePlugin = false
	n.configure(`{"periodicUpdateInterval": 1, "configList": [{"resourceName": "a", "rdmaHcaMax": 8, "selectors": {"vendors": ["15b3"]}}]}`)
	client := n.withAPI()
	n.start()
	for version := range 6 {
		firmware := fmt.Sprintf("28.40.%04d", version)
		n.tree.Write(device+"/fw_ver", firmware)
		awaitDevices(t, client, "firmware "+firmware, func(d map[string]resourceapi.Device) bool {
			got := d["pci-0000-3b-00-0-1"].Attributes[dra.AttrFirmware].StringValue
			return got != nil && *got == firmware
		})
	}
}
