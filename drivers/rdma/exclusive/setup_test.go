package exclusive

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestSetupConfiguresAnInterfaceOnce(t *testing.T) {
	namespaces(t)
	state := func() (up bool, mtu int) {
		link, err := netlink.LinkByName("gf0")
		if err != nil {
			t.Fatal(err)
		}
		return link.Attrs().Flags&unix.IFF_UP != 0, link.Attrs().MTU
	}
	s, done := NewSetter(Setup{Up: true, MTU: 1400}), map[string]int{}
	for range 2 {
		if err := s.setUp("gf0", done); err != nil {
			t.Fatal(err)
		}
	}
	if up, mtu := state(); !up || mtu != 1400 {
		t.Errorf("up %v, MTU %d", up, mtu)
	}
	link, _ := netlink.LinkByName("gf0")
	if err := netlink.LinkSetDown(link); err != nil {
		t.Fatal(err)
	}
	if err := s.setUp("gf0", done); err != nil {
		t.Fatal(err)
	}
	if up, _ := state(); up {
		t.Error("an interface that somebody brought down was brought up again")
	}
	// It disappears and appears again, as with its driver.
	if err := netlink.LinkDel(link); err != nil {
		t.Fatal(err)
	}
	if err := s.setUp("gf0", done); err == nil {
		t.Error("an interface that is gone was set up")
	}
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "gf0"}, PeerName: "gf0-peer"}); err != nil {
		t.Fatal(err)
	}
	if err := s.setUp("gf0", done); err != nil {
		t.Fatal(err)
	}
	if up, mtu := state(); !up || mtu != 1400 {
		t.Errorf("after it came again: up %v, MTU %d", up, mtu)
	}
	if err := NewSetter(Setup{MTU: 1 << 20}).setUp("gf0", map[string]int{}); err == nil ||
		!strings.Contains(err.Error(), "set the MTU of gf0 from 1400 to 1048576 bytes") {
		t.Errorf("an MTU that the kernel refuses: %v", err)
	}
}

func TestSetupReportsAFailureUntilItEnds(t *testing.T) {
	s := NewSetter(Setup{Up: true})
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() { s.Run(ctx) })
	defer group.Wait()
	defer cancel()
	s.Set([]string{"gf-not-there"})
	<-s.Changed()
	if failure := s.Failure("gf-not-there"); !strings.Contains(failure, "look for the network interface gf-not-there") {
		t.Errorf("failure %q", failure)
	}
	s.Set(nil)
	<-s.Changed()
	if failure := s.Failure("gf-not-there"); failure != "" {
		t.Errorf("failure %q", failure)
	}
}
