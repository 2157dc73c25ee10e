//go:build rdmaguest

package kerneltest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/tools/record"

	"gpufabric.io/drivers/hardware/driver"
	"gpufabric.io/drivers/hardware/uverbs"
	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/rdma/exclusive"
	"gpufabric.io/drivers/rdma/inventory"
)

// pods is the plugin's exclusive mode; the test plays the container runtime.
type pods struct {
	*exclusive.Hook
	dir    string
	events <-chan string
}

func newPods(t *testing.T, dir string, grants ...exclusive.Grant) pods {
	t.Helper()
	mover, _, err := exclusive.NewMover(dir, exclusive.Netlink{Sysfs: "/sys"}, atomicfile.Writer{})
	if err != nil {
		t.Fatal(err)
	}
	events := record.NewFakeRecorder(10)
	return pods{dir: dir, events: events.Events, Hook: &exclusive.Hook{
		Events: events, Mover: mover, Grants: func(string) []exclusive.Grant { return grants },
		Nodes: inventory.DeviceNodes{Dev: driver.Here("/dev"), Sysfs: "/sys"}.NRI,
	}}
}

func grant(rdma string, nets ...string) exclusive.Grant {
	return exclusive.Grant{Claim: "default/nic", PodUID: "uid", Devices: []exclusive.Device{{RDMA: rdma, Nets: nets}}}
}

func sandbox(namespace string) *api.PodSandbox {
	return &api.PodSandbox{Id: "sandbox", Uid: "uid", Namespace: "default", Name: "pod", Linux: &api.LinuxPodSandbox{
		Namespaces: []*api.LinuxNamespace{{Type: "network", Path: namespace}},
	}}
}

// container returns the device nodes of the pod's container, just before the runtime would create it.
func (p pods) container(t *testing.T, s *api.PodSandbox) []*api.LinuxDevice {
	t.Helper()
	adjustment, _, err := p.CreateContainer(t.Context(), s, &api.Container{Name: "train",
		Env: []string{exclusive.Environment("1-2", "default/nic")}})
	if err != nil {
		t.Fatal(err)
	}
	return adjustment.GetLinux().GetDevices()
}

// setUp is the part of an interface's settings that these tests check.
func setUp(name string) (string, error) {
	i, err := exclusive.Netlink{}.Look(name)
	if err != nil {
		return "", err
	}
	var addresses, routes []string
	for _, a := range i.Addresses {
		addresses = append(addresses, a.Address)
	}
	for _, r := range i.Routes {
		routes = append(routes, fmt.Sprintf("%s via %s table %d", r.Destination, r.Gateway, r.Table))
	}
	return fmt.Sprintf("up %v, MTU %d, addresses %v, routes %v", i.Up, i.MTU, addresses, routes), nil
}

func expectSetUp(t *testing.T, name, want string) {
	t.Helper()
	if got, err := setUp(name); err != nil || got != want {
		t.Errorf("%s on the node: %s, %v; want %s", name, got, err, want)
	}
}

// configure gives an interface two addresses, an MTU, a route, a default route and one in another table, as a node's configuration
// does.
func configure(t *testing.T, name string) (onNode, inPod string) {
	t.Helper()
	link, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	mtu := 1400
	if err := errors.Join(netlink.LinkSetMTU(link, mtu), netlink.LinkSetUp(link)); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"10.0.0.1/24", "fd00::1/64"} {
		address, err := netlink.ParseAddr(text)
		if err != nil {
			t.Fatal(err)
		}
		address.Flags = unix.IFA_F_NODAD
		if err := netlink.AddrAdd(link, address); err != nil {
			t.Fatalf("add %s: %v", text, err)
		}
	}
	for _, route := range []struct {
		destination string
		table       int
	}{{"10.9.0.0/16", unix.RT_TABLE_MAIN}, {"0.0.0.0/0", unix.RT_TABLE_MAIN}, {"10.8.0.0/16", 100}} {
		_, destination, err := net.ParseCIDR(route.destination)
		if err != nil {
			t.Fatal(err)
		}
		err = netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: destination, Gw: net.ParseIP("10.0.0.254"), Table: route.table})
		if err != nil {
			t.Fatalf("add the route to %s: %v", route.destination, err)
		}
	}
	t.Cleanup(func() {
		if link, err := netlink.LinkByName(name); err == nil {
			for _, text := range []string{"10.0.0.1/24", "fd00::1/64"} {
				address, _ := netlink.ParseAddr(text)
				_ = netlink.AddrDel(link, address)
			}
			_ = errors.Join(netlink.LinkSetDown(link), netlink.LinkSetMTU(link, 1500))
		}
	})
	onNode, err = setUp(name)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(onNode, "0.0.0.0/0 via 10.0.0.254 table 254") || !strings.Contains(onNode, "10.8.0.0/16 via 10.0.0.254 table 100") {
		t.Fatalf("the node's configuration reads %s", onNode)
	}
	return onNode, "up true, MTU 1400, addresses [10.0.0.1/24 fd00::1/64], routes [10.9.0.0/16 via 10.0.0.254 table 254]"
}

// sees returns the RDMA devices and interfaces of a namespace.
func sees() (devices, nets []string) {
	for _, list := range []struct {
		class string
		names *[]string
	}{{"infiniband", &devices}, {"net", &nets}} {
		entries, _ := os.ReadDir("/sys/class/" + list.class)
		for _, e := range entries {
			if e.Name() == "bonding_masters" { // a file of the module bonding
				continue
			}
			*list.names = append(*list.names, e.Name())
		}
	}
	return devices, nets
}

// opens reports whether a container in this thread's namespace can open one of the device's nodes. It makes the node for that.
func opens(node *api.LinuxDevice) error {
	path := filepath.Join("/tmp", fmt.Sprintf("uverbs-%d", node.GetMinor()))
	defer os.Remove(path) //nolint:errcheck // of a test
	if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(uint32(node.GetMajor()), uint32(node.GetMinor())))); err != nil {
		return err
	}
	device, err := uverbs.Open(path, "")
	if err != nil {
		return err
	}
	return device.Close()
}

func TestExclusiveMovesADeviceWithItsAddresses(t *testing.T) {
	near, far := find(t, switched), find(t, farA)
	add(t, "mlx5_9", far.function, "ethernet", 1, far.name)
	add(t, "mlx5_0", near.function, "ethernet", 1, near.name)
	onNode, inPod := configure(t, near.name)
	exclusively(t)
	namespace, _ := namespace(t, "pod")
	before, _ := discover(t, "mlx5_0")
	remove("mlx5_9") // The kernel gives uverbs devices the lowest free numbers.
	p, s := newPods(t, t.TempDir(), grant("mlx5_0", near.name)), sandbox(namespace)
	for range 2 { // The second round is a restarted plugin.
		if err := p.RunPodSandbox(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	if gone, _ := discover(t, "mlx5_0"); gone != nil {
		t.Error("the node still has mlx5_0")
	}
	nodes := p.container(t, s)
	if len(nodes) == 0 || nodes[0].GetPath() == "/dev/infiniband/"+before.Verbs.Name {
		t.Errorf("device nodes %v; before the move there was %s", nodes, before.Verbs.Name)
	}
	inside(t, namespace, func() error {
		if devices, nets := sees(); fmt.Sprint(devices) != "[mlx5_0]" || fmt.Sprint(nets) != "["+near.name+" lo]" {
			t.Errorf("the pod has %v and %v", devices, nets)
		}
		if got, err := setUp(near.name); err != nil || got != inPod {
			t.Errorf("in the pod: %s, %v; want %s", got, err, inPod)
		}
		eventually(t, "the port has a GID of the address", func() bool { return strings.Contains(gids("mlx5_0"), "ffff:0a00:0001") })
		return opens(nodes[0])
	})
	if err := opens(nodes[0]); !errors.Is(err, unix.EPERM) {
		t.Errorf("the node opens the pod's device: %v", err)
	}
	for range 2 {
		if err := p.StopPodSandbox(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	if back, _ := discover(t, "mlx5_0"); back == nil || fmt.Sprint(back.Nets()) != "["+near.name+"]" {
		t.Errorf("after the pod: %+v", back)
	}
	expectSetUp(t, near.name, onNode)
}

// gids are the GIDs of a device's first port.
func gids(device string) string {
	var all []string
	for i := range 16 {
		all = append(all, read(fmt.Sprintf("/sys/class/infiniband/%s/ports/1/gids/%d", device, i)))
	}
	return strings.Join(all, " ")
}

func TestExclusiveFindsARenamedInterface(t *testing.T) {
	near, far := find(t, switched), find(t, farA)
	add(t, "mlx5_0", near.function, "ethernet", 1, near.name)
	onNode, inPod := configure(t, near.name)
	exclusively(t)
	namespace, _ := namespace(t, "pod")
	// The pod already has an interface of that name. It renames the one it is given to the name of another interface of the node.
	inside(t, namespace, func() error {
		return netlink.LinkAdd(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: near.name}})
	})
	p, s := newPods(t, t.TempDir(), grant("mlx5_0", near.name)), sandbox(namespace)
	if err := p.RunPodSandbox(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	inside(t, namespace, func() error {
		if got, err := setUp("rdma0"); err != nil || got != inPod {
			t.Errorf("in the pod: %s, %v; want %s", got, err, inPod)
		}
		link, err := netlink.LinkByName("rdma0")
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetDown(link), netlink.LinkSetName(link, far.name))
	})
	if err := p.StopPodSandbox(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	expectSetUp(t, near.name, onNode)
}

func TestExclusiveRestoresAddressesOfAnEndedNamespace(t *testing.T) {
	near := find(t, switched)
	add(t, "mlx5_0", near.function, "ethernet", 1, near.name)
	onNode, _ := configure(t, near.name)
	exclusively(t)
	namespace, end := namespace(t, "pod")
	dir := t.TempDir()
	if err := newPods(t, dir, grant("mlx5_0", near.name)).RunPodSandbox(t.Context(), sandbox(namespace)); err != nil {
		t.Fatal(err)
	}
	// The plugin dies, and the pod ends before the next plugin starts.
	end()
	p := newPods(t, dir)
	eventually(t, "the next plugin has taken it back", func() bool {
		_, err := p.Synchronize(t.Context(), nil, nil)
		back, _ := discover(t, "mlx5_0")
		records, _ := filepath.Glob(dir + "/*.json")
		return err == nil && back != nil && len(records) == 0
	})
	expectSetUp(t, near.name, onNode)
}

func TestExclusiveSkipsImpossibleAddresses(t *testing.T) {
	near := find(t, switched)
	add(t, "mlx5_0", near.function, "ethernet", 1, near.name)
	virtualInterface(t, "storage0")
	other, err := netlink.LinkByName("storage0")
	if err != nil {
		t.Fatal(err)
	}
	storage, _ := netlink.ParseAddr("10.77.0.1/24")
	if err := netlink.AddrAdd(other, storage); err != nil {
		t.Fatal(err)
	}
	configure(t, near.name)
	link, err := netlink.LinkByName(near.name)
	if err != nil {
		t.Fatal(err)
	}
	// A daemon of the node has a route through the NIC that prefers the address of another interface.
	_, destination, _ := net.ParseCIDR("10.6.0.0/16")
	err = netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: destination, Gw: net.ParseIP("10.0.0.254"),
		Src: net.ParseIP("10.77.0.1")})
	if err != nil {
		t.Fatal(err)
	}
	onNode, err := setUp(near.name)
	if err != nil {
		t.Fatal(err)
	}
	exclusively(t)
	namespace, _ := namespace(t, "pod")
	inside(t, namespace, func() error {
		// IPv6 is off, as containerd or the CNI sets it for pods of an IPv4 cluster.
		return errors.Join(os.WriteFile("/proc/sys/net/ipv6/conf/all/disable_ipv6", []byte("1"), 0),
			os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0))
	})
	p, s := newPods(t, t.TempDir(), grant("mlx5_0", near.name)), sandbox(namespace)
	if err := p.RunPodSandbox(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	inside(t, namespace, func() error {
		const want = "up true, MTU 1400, addresses [10.0.0.1/24], routes [10.6.0.0/16 via 10.0.0.254 table 254 10.9.0.0/16 via 10.0.0.254 " +
			"table 254]"
		if got, err := setUp(near.name); err != nil || got != want {
			t.Errorf("in the pod: %s, %v; want %s", got, err, want)
		}
		return opens(p.container(t, s)[0])
	})
	select {
	case event := <-p.events:
		if !strings.Contains(event, "Warning RDMAInterfaceIncomplete "+near.name+" has no address fd00::1/64 in the pod") {
			t.Errorf("the pod's Event is %q", event)
		}
	default:
		t.Error("the pod has no Event")
	}
	if err := p.StopPodSandbox(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	expectSetUp(t, near.name, onNode)
	if routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Dst: destination}, netlink.RT_FILTER_DST); err != nil ||
		len(routes) != 1 || routes[0].Src.String() != "10.77.0.1" {
		t.Errorf("on the node the route is %v, %v", routes, err)
	}
}

func TestExclusiveMovesAnIPoIBInterface(t *testing.T) {
	far := find(t, farA)
	add(t, "mlx5_0", far.function, "infiniband", 1, "-")
	h, _ := discover(t, "mlx5_0")
	if len(h.Nets()) != 1 {
		t.Fatalf("interfaces %v", h.Nets())
	}
	net := h.Nets()[0]
	// udev gives it a permanent name, which the kernel does not have.
	setLink(t, net, func(link netlink.Link) error { return netlink.LinkSetName(link, "ibp130") })
	onNode, inPod := configure(t, "ibp130")
	exclusively(t)
	namespace, _ := namespace(t, "pod")
	p, s := newPods(t, t.TempDir(), grant("mlx5_0", "ibp130")), sandbox(namespace)
	if err := p.RunPodSandbox(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	inside(t, namespace, func() error {
		if devices, nets := sees(); fmt.Sprint(devices) != "[mlx5_0]" || fmt.Sprint(nets) != "[ibp130 lo]" {
			t.Errorf("the pod has %v and %v", devices, nets)
		}
		if got, err := setUp("ibp130"); err != nil || got != inPod {
			t.Errorf("in the pod: %s, %v; want %s", got, err, inPod)
		}
		return opens(p.container(t, s)[0])
	})
	if err := p.StopPodSandbox(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	back, _ := discover(t, "mlx5_0")
	if back == nil || fmt.Sprint(back.Nets()) != "[ibp130]" {
		t.Fatalf("after the pod: %+v", back)
	}
	expectSetUp(t, "ibp130", onNode)
}

func TestInterfacesAreSetUpInSharedModeAndInPods(t *testing.T) {
	near := find(t, switched)
	add(t, "mlx5_0", near.function, "ethernet", 1, near.name)
	link, err := netlink.LinkByName(near.name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if link, err := netlink.LinkByName(near.name); err == nil {
			_ = errors.Join(netlink.LinkSetDown(link), netlink.LinkSetMTU(link, 1500))
		}
	})
	if err := netlink.LinkSetDown(link); err != nil {
		t.Fatal(err)
	}
	h, _ := discover(t, "mlx5_0")
	setter := exclusive.NewSetter(exclusive.Setup{Up: true, MTU: 1400})
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() { setter.Run(ctx) })
	defer group.Wait()
	defer cancel()
	setter.Set(h.Nets())
	const want = "up true, MTU 1400, addresses [], routes []"
	eventually(t, "the node has the interface up", func() bool { got, err := setUp(near.name); return err == nil && got == want })
	eventually(t, "the device's port is active", func() bool {
		return strings.Contains(read("/sys/class/infiniband/mlx5_0/ports/1/state"), "ACTIVE")
	})
	exclusively(t)
	namespace, _ := namespace(t, "pod")
	p, s := newPods(t, t.TempDir(), grant("mlx5_0", near.name)), sandbox(namespace)
	if err := p.RunPodSandbox(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	inside(t, namespace, func() error {
		if got, err := setUp(near.name); err != nil || got != want {
			t.Errorf("in the pod: %s, %v; want %s", got, err, want)
		}
		return nil
	})
	if err := p.StopPodSandbox(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	expectSetUp(t, near.name, want)
}

func TestExclusiveRejectsAnImmovableDevice(t *testing.T) {
	a := find(t, plainA)
	up(t, a.name)
	software(t, "rxe_0", a.name)
	exclusively(t)
	namespace, _ := namespace(t, "pod")
	p := newPods(t, t.TempDir(), grant("rxe_0", a.name))
	err := p.RunPodSandbox(t.Context(), sandbox(namespace))
	if err == nil || !strings.Contains(err.Error(), "such as rdma_rxe and siw") {
		t.Errorf("got %v", err)
	}
	if h, _ := discover(t, "rxe_0"); h == nil || fmt.Sprint(h.Nets()) != "["+a.name+"]" {
		t.Errorf("afterwards %+v", h)
	}
}
