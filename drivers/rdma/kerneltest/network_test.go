//go:build rdmaguest

package kerneltest

import (
	"testing"

	"github.com/vishvananda/netlink"
)

// virtualInterface makes an interface without hardware until the test ends: a macvlan where there is a parent, else a dummy.
func virtualInterface(t *testing.T, name string, parent ...string) {
	t.Helper()
	attributes := netlink.NewLinkAttrs()
	attributes.Name = name
	var link netlink.Link = &netlink.Dummy{LinkAttrs: attributes}
	if len(parent) > 0 {
		up(t, parent[0])
		on, err := netlink.LinkByName(parent[0])
		if err != nil {
			t.Fatal(err)
		}
		attributes.ParentIndex = on.Attrs().Index
		link = &netlink.Macvlan{LinkAttrs: attributes, Mode: netlink.MACVLAN_MODE_BRIDGE}
	}
	if err := netlink.LinkAdd(link); err != nil {
		t.Fatalf("make the interface %s: %v", name, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		t.Fatalf("bring %s up: %v", name, err)
	}
	t.Cleanup(func() { _ = netlink.LinkDel(link) })
}
