// Package pool assigns HCAs to pools, and gives the reason for each that has none.
package pool

import (
	"fmt"
	"slices"
	"strings"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/hardware/infiniband"
	"gpufabric.io/drivers/rdma/health"
	"gpufabric.io/drivers/rdma/inventory"
)

// Definition is a pool as it was configured.
type Definition struct {
	v1alpha1.RDMAPoolConfig
	// Source is the place of its configuration, for people: "config.json configList[0]", "RDMAPool rail-0".
	Source string
	// Object is the RDMAPool's name; empty: it comes from the file.
	Object string
	// Generation is the RDMAPool's.
	Generation int64
}

// Pool is a pool with its devices on this node.
type Pool struct {
	Definition
	Members []Member // by RDMA device name
	// Conflicts are the devices that another pool has too, or wanted and did not get, as "mlx5_0: also in RDMAPool b".
	Conflicts []string
	// Unmatched are the values of its lists that select no device of this node, each by itself.
	Unmatched []v1alpha1.RDMAValue
}

// Empty is the reason why a pool that has devices does not offer a unit of them by the device plugin API; empty: it does. Without
// rdmaHcaMax there are none, as in the public plugin, which logs that it exposes 0 devices.
func (p *Pool) Empty() string {
	if p.RDMAHCAMax > 0 || len(p.Members) == 0 || p.Exclusive() {
		return ""
	}
	return "the pool has no units: set rdmaHcaMax to the number of pods that may share its devices on a node"
}

// Closed reports whether the pool has devices that a pod with its own network cannot open while the kernel's RDMA subsystem is in
// exclusive mode: units of a device plugin, and shares. Whole HCAs of claims can move into the pod's network.
func (p *Pool) Closed(devicePlugin bool) bool {
	return len(p.Members) > 0 && (devicePlugin || !p.Exclusive())
}

// Member is an HCA of a pool.
type Member struct {
	HCA   *inventory.HCA
	Ports []int // the ports that match the pool's selectors: those whose health counts
}

// Trouble is the reason why the member cannot carry traffic: that of each of its ports. It is empty if any of them can.
func (m *Member) Trouble(state func(health.Key) health.State) string {
	var reasons []string
	for _, port := range m.Ports {
		s := state(health.Key{Device: m.HCA.Name, Port: port})
		if s.Phase.Healthy() {
			return ""
		}
		reason := s.Reason
		switch s.Phase {
		case health.Unknown:
			reason = "the port was not read yet"
		case health.Recovering:
			reason = "the port is up again, but not for long (before: " + s.Reason + ")"
		}
		reasons = append(reasons, reason)
	}
	return strings.Join(slices.Compact(reasons), "; ")
}

// Verdict is the result for one device.
type Verdict struct {
	Device   string // mlx5_0, or a PCI address where there is no RDMA device
	PCI      string
	Pools    []string          // the resources that took it
	Refusals map[string]string // by the resource that did not: why
	Skipped  string            // why it was offered to no pool; empty: it was
}

// Selection is the result of Select.
type Selection struct {
	Pools    []Pool // as defined, without those that were refused
	Verdicts []Verdict
	// Refused are definitions that cannot be served beside an earlier one, with the reason, by Source.
	Refused map[string]string
}

// Nets are the network interfaces of all pools' devices.
func (s *Selection) Nets() []string {
	var nets []string
	for i := range s.Pools {
		for _, m := range s.Pools[i].Members {
			nets = append(nets, m.HCA.Nets()...)
		}
	}
	slices.Sort(nets)
	return slices.Compact(nets)
}

// Select gives each pool its devices. Shared pools may have an HCA in common, which is reported on both. An HCA of an exclusive
// pool belongs to no other pool; the pool defined first has it. Of two pools with one resource name the first is served.
func Select(definitions []Definition, devices *inventory.Inventory) *Selection {
	s := &Selection{Refused: make(map[string]string)}
	bySource := make(map[string]Definition)
	for _, d := range definitions {
		if other, taken := bySource[d.Resource()]; taken {
			s.Refused[d.Source] = fmt.Sprintf("the resource %s is that of %s already: rename one of the two", d.Resource(), other.Source)
			first := &s.Pools[slices.IndexFunc(s.Pools, func(p Pool) bool { return p.Source == other.Source })]
			first.Conflicts = append(first.Conflicts, fmt.Sprintf("%s wants the resource %s too", d.Source, d.Resource()))
			continue
		}
		bySource[d.Resource()] = d
		s.Pools = append(s.Pools, Pool{Definition: d, Unmatched: unmatched(&d.RDMAPoolConfig, devices)})
	}
	for i := range devices.HCAs {
		s.Verdicts = append(s.Verdicts, s.place(&devices.HCAs[i]))
	}
	for _, skipped := range devices.Skipped {
		s.Verdicts = append(s.Verdicts, Verdict{Device: skipped.Name, PCI: string(skipped.PCI), Skipped: skipped.Reason})
	}
	return s
}

// unmatched are the values of a pool that no device of the node has.
func unmatched(c *v1alpha1.RDMAPoolConfig, devices *inventory.Inventory) []v1alpha1.RDMAValue {
	return slices.DeleteFunc(c.Values(), func(v v1alpha1.RDMAValue) bool {
		for i := range devices.HCAs {
			if _, refused := match(&v.Alone, &devices.HCAs[i]); refused == "" {
				return true
			}
		}
		return false
	})
}

// place offers one HCA to every pool.
func (s *Selection) place(h *inventory.HCA) Verdict {
	v := Verdict{Device: h.Name, PCI: string(h.PCI), Refusals: make(map[string]string)}
	var holders []*Pool
	for i := range s.Pools {
		p := &s.Pools[i]
		ports, reason := match(&p.RDMAPoolConfig, h)
		if reason == "" {
			for _, holder := range holders {
				if holder.Exclusive() || p.Exclusive() {
					reason = fmt.Sprintf("%s has it already, and one of the two pools is exclusive", holder.Source)
					p.Conflicts = append(p.Conflicts, fmt.Sprintf("%s: %s has it", h.Name, holder.Source))
					holder.Conflicts = append(holder.Conflicts, fmt.Sprintf("%s: %s wants it", h.Name, p.Source))
					break
				}
			}
		}
		if reason != "" {
			v.Refusals[p.Resource()] = reason
			continue
		}
		for _, holder := range holders {
			p.Conflicts = append(p.Conflicts, fmt.Sprintf("%s: also in %s", h.Name, holder.Source))
			holder.Conflicts = append(holder.Conflicts, fmt.Sprintf("%s: also in %s", h.Name, p.Source))
		}
		p.Members = append(p.Members, Member{HCA: h, Ports: ports})
		v.Pools = append(v.Pools, p.Resource())
		holders = append(holders, p)
	}
	return v
}

// match returns the ports of h that the pool selects, or the selector that refused it.
func match(c *v1alpha1.RDMAPoolConfig, h *inventory.HCA) ([]int, string) {
	if len(c.Devices) > 0 {
		return matchDevices(c.Devices, h)
	}
	s := c.Selectors
	if s == nil {
		s = &v1alpha1.RDMASelectors{}
	}
	if reason := matchFunction(s, h); reason != "" {
		return nil, reason
	}
	var ports []int
	var reasons []string
	for i := range h.Ports {
		if reason := matchPort(s, h, &h.Ports[i]); reason != "" {
			reasons = append(reasons, reason)
			continue
		}
		ports = append(ports, h.Ports[i].Number)
	}
	if len(ports) == 0 {
		return nil, strings.Join(slices.Compact(reasons), "; ")
	}
	return ports, ""
}

func matchDevices(names []string, h *inventory.HCA) ([]int, string) {
	var ports []int
	for _, port := range h.Ports {
		if slices.ContainsFunc(port.Nets, func(net infiniband.Net) bool { return slices.Contains(names, net.Name) }) {
			ports = append(ports, port.Number)
		}
	}
	if len(ports) == 0 {
		return nil, refusal("devices", "interface", h.Nets(), names)
	}
	return ports, ""
}
