package exclusive

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Interface is the configuration of a network interface on the node. It serves to find the interface after a move, even if it was
// renamed or the kernel made a new one, and to restore its settings. It omits settings below /proc/sys/net: the kernel resets them
// at each move.
type Interface struct {
	Name string `json:"name"`
	// Parent is the PCI function of the interface, or its scalable function (mlx5_core.sf.2); empty: only its name is known.
	Parent string `json:"parent,omitempty"`
	// Identity distinguishes the interfaces of one function: the permanent address, or an IPoIB interface's port GUID. Empty: there is
	// none.
	Identity   string    `json:"identity,omitempty"`
	InfiniBand bool      `json:"infiniBand,omitempty"`
	Up         bool      `json:"up,omitempty"`
	MTU        int       `json:"mtu,omitempty"` // in bytes
	Addresses  []Address `json:"addresses,omitempty"`
	Routes     []Route   `json:"routes,omitempty"`
}

// Address is an address of an interface. Its lifetime is not kept: the program that assigned the address renews it.
type Address struct {
	Address   string `json:"address"`             // 10.0.0.1/24
	Peer      string `json:"peer,omitempty"`      // the other end's, of a point-to-point link
	Broadcast string `json:"broadcast,omitempty"` // IPv4 only
	Scope     int    `json:"scope,omitempty"`     // as in rtnetlink(7)
}

// Route is a route through an interface, except those that come with its addresses.
type Route struct {
	Destination string `json:"destination"`       // 10.1.0.0/16
	Gateway     string `json:"gateway,omitempty"` // empty: the destination is on the link
	Source      string `json:"source,omitempty"`  // preferred source address
	Table       int    `json:"table"`             // 254: main
	Priority    int    `json:"priority,omitempty"`
	Scope       int    `json:"scope,omitempty"`
	Protocol    int    `json:"protocol,omitempty"`
	Flags       int    `json:"flags,omitempty"` // of the next hop: onlink
	MTU         int    `json:"mtu,omitempty"`
}

// Look implements Links.
func (Netlink) Look(name string) (Interface, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return Interface{}, fmt.Errorf("read the network interface %s: %w", name, err)
	}
	a := link.Attrs()
	i := Interface{
		Name: name, Parent: a.ParentDev, Identity: identity(link), InfiniBand: infiniBand(link), Up: a.Flags&unix.IFF_UP != 0, MTU: a.MTU,
	}
	addresses, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return Interface{}, fmt.Errorf("read the addresses of %s: %w", name, err)
	}
	for _, address := range addresses {
		if address.IP.IsLinkLocalUnicast() && address.IP.To4() == nil {
			continue // The kernel makes one whenever the interface comes up.
		}
		kept := Address{Address: address.IPNet.String(), Scope: address.Scope}
		if address.Peer != nil {
			kept.Peer = address.Peer.String()
		}
		if address.Broadcast != nil {
			kept.Broadcast = address.Broadcast.String()
		}
		i.Addresses = append(i.Addresses, kept)
	}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{LinkIndex: a.Index, Table: unix.RT_TABLE_UNSPEC},
		netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
	if err != nil {
		return Interface{}, fmt.Errorf("read the routes through %s: %w", name, err)
	}
	for _, route := range routes {
		// The kernel's own routes come with addresses. Routes with several next hops belong to several interfaces.
		if route.Protocol == unix.RTPROT_KERNEL || route.Table == unix.RT_TABLE_LOCAL || route.Type != unix.RTN_UNICAST ||
			len(route.MultiPath) > 0 || route.Dst == nil {
			continue
		}
		kept := Route{
			Destination: route.Dst.String(), Table: route.Table, Priority: route.Priority, Scope: int(route.Scope), Protocol: int(route.Protocol),
			Flags: route.Flags & int(netlink.FLAG_ONLINK), MTU: route.MTU,
		}
		if route.Gw != nil {
			kept.Gateway = route.Gw.String()
		}
		if route.Src != nil {
			kept.Source = route.Src.String()
		}
		i.Routes = append(i.Routes, kept)
	}
	return i, nil
}

func infiniBand(link netlink.Link) bool { return link.Attrs().EncapType == "infiniband" }

func identity(link netlink.Link) string {
	a := link.Attrs()
	if infiniBand(link) {
		return a.HardwareAddr[max(0, len(a.HardwareAddr)-8):].String()
	}
	return a.PermHWAddr.String()
}

// in finds the interface among links of one namespace, under whatever name; nil: it does not exist. An interface of the same name may
// be another one: every pod has an eth0.
func (i *Interface) in(links []netlink.Link) netlink.Link {
	var found netlink.Link
	for _, link := range links {
		a := link.Attrs()
		if i.Parent == "" && a.Name == i.Name {
			return link
		}
		// A partition's interface is below another interface, and is not the one we look for.
		partition := infiniBand(link) && a.ParentIndex != 0
		if i.Parent == "" || a.ParentDev != i.Parent || infiniBand(link) != i.InfiniBand || partition || i.Identity != "" &&
			identity(link) != i.Identity {
			continue
		}
		if found == nil || a.Name == i.Name {
			found = link
		}
	}
	return found
}

// move moves the interface from this thread's namespace to target, which has the links in there. If one of them has its name, the
// interface gets another name.
func (i *Interface) move(there []netlink.Link, target netns.NsHandle) error {
	here, err := netlink.LinkList()
	if err != nil {
		return err
	}
	link := i.in(here)
	if link == nil {
		return errors.New("the interface is not in either namespace")
	}
	if named(there, link.Attrs().Name) {
		name := ""
		for n := 0; name == "" || named(there, name) || named(here, name); n++ {
			name = fmt.Sprintf("rdma%d", n)
		}
		if err := errors.Join(netlink.LinkSetDown(link), netlink.LinkSetName(link, name)); err != nil {
			return fmt.Errorf("rename %s, which is the name of another there: %w", link.Attrs().Name, err)
		}
	}
	return netlink.LinkSetNsFd(link, int(target))
}

func named(links []netlink.Link, name string) bool {
	return slices.ContainsFunc(links, func(l netlink.Link) bool { return l.Attrs().Name == name })
}

// setUp restores an interface, which a move left down and without settings in this thread's namespace: its name, unless another has
// it, its settings, its addresses and these routes. It returns descriptions of missing addresses and routes: a namespace may be
// without IPv6, and a route may depend on another interface's address.
func (i *Interface) setUp(place string, routes []Route) (missing []string, err error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list the interfaces in %s: %w", place, err)
	}
	link := i.in(links)
	if link == nil {
		return nil, nil // Its hardware is gone, or a pod removed it.
	}
	a := link.Attrs()
	fail := func(what string, err error) error {
		return fmt.Errorf("set up %s in %s: %s: %w", i.Name, place, what, err)
	}
	if a.Name != i.Name && !named(links, i.Name) {
		if err := errors.Join(netlink.LinkSetDown(link), netlink.LinkSetName(link, i.Name)); err != nil {
			return nil, fail("rename "+a.Name, err)
		}
	}
	if i.MTU > 0 && a.MTU != i.MTU {
		if err := netlink.LinkSetMTU(link, i.MTU); err != nil {
			return nil, fail(fmt.Sprintf("set the MTU %d", i.MTU), err)
		}
	}
	if i.Up {
		if err := netlink.LinkSetUp(link); err != nil {
			return nil, fail("bring it up", err)
		}
	}
	for _, address := range i.Addresses {
		if err := address.add(link); err != nil {
			missing = append(missing, fmt.Sprintf("%s has no address %s in %s: %v", i.Name, address.Address, place, err))
		}
	}
	if !i.Up {
		return missing, nil
	}
	// Routes without a gateway come first, since gateways need them.
	ordered := slices.Clone(routes)
	slices.SortStableFunc(ordered, func(a, b Route) int { return min(len(a.Gateway), 1) - min(len(b.Gateway), 1) })
	for _, route := range ordered {
		if err := route.add(a.Index); err != nil {
			missing = append(missing, fmt.Sprintf("%s has no route to %s in %s: %v", i.Name, route.Destination, place, err))
		}
	}
	return missing, nil
}

// inPod returns the routes that go to a pod with the interface. A default route is left to the pod's own network, and so are routes
// of other tables than the main one, since no rules lead there. A preferred source address of another interface is dropped: the
// kernel chooses one in the pod.
func (i *Interface) inPod() []Route {
	var routes []Route
	for _, route := range i.Routes {
		if route.Table != unix.RT_TABLE_MAIN || route.isDefault() {
			continue
		}
		if !i.has(route.Source) {
			route.Source = ""
		}
		routes = append(routes, route)
	}
	return routes
}

// has reports whether the interface has an address.
func (i *Interface) has(source string) bool {
	return slices.ContainsFunc(i.Addresses, func(a Address) bool {
		address, _, _ := strings.Cut(a.Address, "/")
		return address == source
	})
}

func (a *Address) add(link netlink.Link) error {
	parsed, err := netlink.ParseAddr(a.Address)
	if err != nil {
		return err
	}
	// The kernel takes the first four bytes of an IPv4 address: a net.IP of 16 bytes starts with zeros.
	parsed.Scope, parsed.Broadcast = a.Scope, net.ParseIP(a.Broadcast).To4()
	if a.Peer != "" {
		if parsed.Peer, err = netlink.ParseIPNet(a.Peer); err != nil {
			return err
		}
	}
	if parsed.IP.To4() == nil {
		parsed.Flags = unix.IFA_F_NODAD // It was checked for duplicates on the node.
	}
	return netlink.AddrReplace(link, parsed)
}

func (r *Route) isDefault() bool { return r.Destination == "0.0.0.0/0" || r.Destination == "::/0" }

func (r *Route) add(index int) error {
	destination, err := netlink.ParseIPNet(r.Destination)
	if err != nil {
		return err
	}
	return netlink.RouteReplace(&netlink.Route{
		LinkIndex: index, Dst: destination, Gw: net.ParseIP(r.Gateway), Src: net.ParseIP(r.Source), Table: r.Table, Priority: r.Priority,
		Scope: netlink.Scope(r.Scope), Protocol: netlink.RouteProtocol(r.Protocol), Flags: r.Flags, MTU: r.MTU,
	})
}
