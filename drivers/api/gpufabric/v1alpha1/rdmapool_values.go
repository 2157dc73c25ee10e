package v1alpha1

import (
	"fmt"
	"slices"
)

// RDMAValue is one value of a pool's lists, by which the pool selects devices.
//
// +kubebuilder:object:generate=false
type RDMAValue struct {
	// Path is where it is: selectors.vendors[0].
	Path string
	// Text is the value: 15b3.
	Text string
	// Alone selects by this value and by nothing else.
	Alone RDMAPoolConfig
}

// Values lists the values by which the pool selects devices, each by itself. Values that every device can have (isRdma, minRateGbps)
// are not among them.
func (c *RDMAPoolConfig) Values() []RDMAValue {
	var out []RDMAValue
	for i, name := range c.Devices {
		out = append(out, RDMAValue{fmt.Sprintf("devices[%d]", i), name, RDMAPoolConfig{Devices: []string{name}}})
	}
	s := c.Selectors
	if s == nil {
		return out
	}
	for _, list := range []struct {
		field  string
		values []string
		alone  func([]string) RDMASelectors
	}{
		{"vendors", s.Vendors, func(v []string) RDMASelectors { return RDMASelectors{Vendors: v} }},
		{"deviceIDs", s.DeviceIDs, func(v []string) RDMASelectors { return RDMASelectors{DeviceIDs: v} }},
		{"drivers", s.Drivers, func(v []string) RDMASelectors { return RDMASelectors{Drivers: v} }},
		{"ifNames", s.IfNames, func(v []string) RDMASelectors { return RDMASelectors{IfNames: v} }},
		{"linkTypes", s.LinkTypes, func(v []string) RDMASelectors { return RDMASelectors{LinkTypes: v} }},
		{"pciAddresses", s.PCIAddresses, func(v []string) RDMASelectors { return RDMASelectors{PCIAddresses: v} }},
		{"acpiIndexes", s.ACPIIndexes, func(v []string) RDMASelectors { return RDMASelectors{ACPIIndexes: v} }},
		{"pfNames", s.PFNames, func(v []string) RDMASelectors { return RDMASelectors{PFNames: v} }},
		{"rootDevices", s.RootDevices, func(v []string) RDMASelectors { return RDMASelectors{RootDevices: v} }},
		{"pKeys", s.PKeys, func(v []string) RDMASelectors { return RDMASelectors{PKeys: v} }},
		{"linkLayers", s.LinkLayers, func(v []string) RDMASelectors { return RDMASelectors{LinkLayers: v} }},
	} {
		for i, value := range list.values {
			alone := list.alone([]string{value})
			out = append(out, RDMAValue{fmt.Sprintf("selectors.%s[%d]", list.field, i), value, RDMAPoolConfig{Selectors: &alone}})
		}
	}
	for i, node := range s.NUMANodes {
		alone := RDMASelectors{NUMANodes: []int32{node}}
		out = append(out, RDMAValue{fmt.Sprintf("selectors.numaNodes[%d]", i), fmt.Sprint(node), RDMAPoolConfig{Selectors: &alone}})
	}
	return out
}

// Unmatched are the values that select no device of any node, as `selectors.vendors[1] "15b4"`, by the reports on the present spec. It is
// empty while a node has not reported on it.
func (p *RDMAPool) Unmatched() []string {
	count := make(map[string]int)
	for i := range p.Status.Nodes {
		if p.Status.Nodes[i].ObservedGeneration != p.Generation {
			return nil
		}
		for _, path := range p.Status.Nodes[i].Unmatched {
			count[path]++
		}
	}
	values := slices.DeleteFunc(p.Spec.Values(), func(v RDMAValue) bool {
		return count[v.Path] == 0 || count[v.Path] < len(p.Status.Nodes)
	})
	var out []string
	for _, v := range values {
		out = append(out, fmt.Sprintf("%s %q", v.Path, v.Text))
	}
	return out
}
