//go:build rdmaguest

package kerneltest

import (
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"gpufabric.io/drivers/hardware/uverbs"
	"gpufabric.io/drivers/rdma/health"
)

func setLink(t *testing.T, name string, set func(netlink.Link) error) {
	t.Helper()
	link, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := set(link); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

func TestHealthFollowsTheLink(t *testing.T) {
	a := find(t, plainA)
	up(t, a.name)
	software(t, "rxe_0", a.name)
	near := find(t, switched)
	up(t, near.name)
	add(t, "mlx5_0", near.function, "ethernet", 1, near.name)
	for device, net := range map[string]string{"rxe_0": a.name, "mlx5_0": near.name} {
		h, _ := discover(t, device)
		port := health.Ports(&h.Device)[0]
		eventually(t, device+" carries traffic", func() bool { return health.Read("/sys", port) == "" })
		setLink(t, net, netlink.LinkSetDown)
		eventually(t, device+" is down", func() bool { return strings.Contains(health.Read("/sys", port), "state is DOWN") })
		setLink(t, net, netlink.LinkSetUp)
		eventually(t, device+" is up again", func() bool { return health.Read("/sys", port) == "" })
	}
}

func TestEventsComeFromAnOpenDevice(t *testing.T) {
	a := find(t, plainA)
	up(t, a.name)
	software(t, "rxe_0", a.name)
	far := find(t, farA)
	add(t, "mlx5_0", far.function, "infiniband", 2, "-")
	for _, test := range []struct {
		device, driver string
		port           int
		down, up       func()
	}{
		{"rxe_0", "", 1, func() { setLink(t, a.name, netlink.LinkSetDown) }, func() { setLink(t, a.name, netlink.LinkSetUp) }},
		{"mlx5_0", "e1000e", 2, func() { command(t, "port mlx5_0 2 down") }, func() { command(t, "port mlx5_0 2 up") }},
	} {
		h, _ := discover(t, test.device)
		device, err := uverbs.Open("/dev/infiniband/"+h.Verbs.Name, test.driver)
		if err != nil {
			t.Fatal(err)
		}
		next := func(want uverbs.EventType) {
			t.Helper()
			stop := time.AfterFunc(10*time.Second, func() { _ = device.Close() })
			defer stop.Stop()
			for {
				event, err := device.Next()
				if err != nil {
					t.Fatalf("%s: waiting for event %d: %v", test.device, want, err)
				}
				t.Logf("%s: event %d of port %d", test.device, event.Type, event.Port)
				if event.Type == want && event.Port == test.port {
					return
				}
			}
		}
		test.down()
		next(uverbs.PortError)
		test.up()
		next(uverbs.PortActive)
		if err := device.Close(); err != nil {
			t.Error(err)
		}
	}
}

// An IPoIB interface has a carrier only after a subnet manager let it join the broadcast group of its partition. The port carries
// RDMA before that.
func TestHealthIgnoresIPoIBWithoutCarrier(t *testing.T) {
	far := find(t, farA)
	add(t, "mlx5_0", far.function, "infiniband", 1, "-")
	eventually(t, "there is an IPoIB interface", func() bool { h, _ := discover(t, "mlx5_0"); return h != nil && len(h.Nets()) == 1 })
	h, _ := discover(t, "mlx5_0")
	net := h.Nets()[0]
	setLink(t, net, netlink.LinkSetUp)
	if carrier := read("/sys/class/net/" + net + "/carrier"); carrier != "0" {
		t.Fatalf("%s has the carrier %q: this test needs one without", net, carrier)
	}
	port := health.Ports(&h.Device)[0]
	if reason := health.Read("/sys", port); reason != "" {
		t.Errorf("the port of %s: %s", net, reason)
	}
	command(t, "port mlx5_0 1 down")
	if reason := health.Read("/sys", port); !strings.Contains(reason, "DOWN") {
		t.Errorf("a port that is down: %q", reason)
	}
}
