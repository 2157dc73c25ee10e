package pool

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/hardware/infiniband"
	"gpufabric.io/drivers/rdma/inventory"
)

// matchFunction checks the selectors that are about the whole device, and returns the answer of the first that refuses it.
func matchFunction(s *v1alpha1.RDMASelectors, h *inventory.HCA) string {
	f := h.Function
	if f == nil {
		if len(s.Vendors)+len(s.DeviceIDs)+len(s.Drivers)+len(s.PCIAddresses)+len(s.ACPIIndexes)+len(s.PFNames)+len(s.RootDevices)+len(
			s.NUMANodes) > 0 {
			return "it is a software device, and the pool selects by PCI properties"
		}
		return ""
	}
	if vendor := fmt.Sprintf("%04x", f.Vendor); !allows(s.Vendors, vendor) {
		return refusal("selectors.vendors", "vendor", []string{vendor}, s.Vendors)
	}
	if device := fmt.Sprintf("%04x", f.Device); !allows(s.DeviceIDs, device) {
		return refusal("selectors.deviceIDs", "device ID", []string{device}, s.DeviceIDs)
	}
	if len(s.Drivers) > 0 && !slices.Contains(s.Drivers, f.Driver) {
		return refusal("selectors.drivers", "driver", []string{f.Driver}, s.Drivers)
	}
	if len(s.PCIAddresses) > 0 && !slices.ContainsFunc(s.PCIAddresses, func(a string) bool { return sameAddress(a, string(f.Address)) }) {
		return refusal("selectors.pciAddresses", "address", []string{string(f.Address)}, s.PCIAddresses)
	}
	if len(s.ACPIIndexes) > 0 {
		index := "" // The firmware named none.
		if f.ACPIIndex > 0 {
			index = strconv.Itoa(f.ACPIIndex)
		}
		if !slices.Contains(s.ACPIIndexes, index) {
			return refusal("selectors.acpiIndexes", "ACPI index", []string{index}, s.ACPIIndexes)
		}
	}
	if len(s.NUMANodes) > 0 && !slices.Contains(s.NUMANodes, int32(f.NUMANode)) {
		return fmt.Sprintf("selectors.numaNodes: its NUMA node %d is not among %v", f.NUMANode, s.NUMANodes)
	}
	if len(s.PFNames) > 0 {
		if reason := matchPhysical(s.PFNames, h, func(name string) bool { return slices.Contains(h.PhysicalNets, name) }); reason != "" {
			return "selectors.pfNames: " + reason
		}
	}
	if len(s.RootDevices) > 0 {
		physical := string(f.Address)
		if f.Virtual() {
			physical = string(f.PhysicalFunction)
		}
		if reason := matchPhysical(s.RootDevices, h, func(address string) bool { return sameAddress(address, physical) }); reason != "" {
			return "selectors.rootDevices: " + reason
		}
	}
	return ""
}

// matchPhysical checks the physical function, and h's index among its virtual functions.
func matchPhysical(wanted []string, h *inventory.HCA, isPhysical func(string) bool) string {
	reason := fmt.Sprintf("its physical function is not among %v", wanted)
	for _, text := range wanted {
		name, span, err := v1alpha1.ParseVFRange(text)
		if err != nil || !isPhysical(name) {
			continue
		}
		switch {
		case h.Function.Virtual() && span.Has(h.Function.VirtualIndex):
			return ""
		case h.Function.Virtual():
			reason = fmt.Sprintf("it is virtual function %d, which %q leaves out", h.Function.VirtualIndex, text)
		case span.All() && h.Function.NumVFs == 0:
			return ""
		default:
			reason = fmt.Sprintf("it is the physical function, and %q selects virtual ones", text)
		}
	}
	return reason
}

// matchPort checks the selectors that are about one port.
func matchPort(s *v1alpha1.RDMASelectors, h *inventory.HCA, p *infiniband.Port) string {
	if len(s.IfNames) > 0 {
		names := make([]string, len(p.Nets))
		for i, net := range p.Nets {
			names[i] = net.Name
		}
		if !slices.ContainsFunc(names, func(name string) bool { return slices.Contains(s.IfNames, name) }) {
			return refusal("selectors.ifNames", "interface", names, s.IfNames)
		}
	}
	if len(s.LinkTypes) > 0 {
		types := linkTypes(p)
		if !slices.ContainsFunc(types, func(t string) bool { return slices.Contains(s.LinkTypes, t) }) {
			return refusal("selectors.linkTypes", "link type", types, s.LinkTypes)
		}
	}
	if len(s.LinkLayers) > 0 && !slices.Contains(s.LinkLayers, string(p.LinkLayer)) {
		return refusal("selectors.linkLayers", "link layer", []string{string(p.LinkLayer)}, s.LinkLayers)
	}
	if p.Rate < float64(s.MinRateGbps) {
		return fmt.Sprintf("selectors.minRateGbps: its rate of %g Gb/s is less than %d", p.Rate, s.MinRateGbps)
	}
	if len(s.PKeys) > 0 {
		return matchPKeys(s.PKeys, h.PKeys[p.Number], p)
	}
	return ""
}

func matchPKeys(wanted []string, keys []uint16, p *infiniband.Port) string {
	if p.LinkLayer != infiniband.InfiniBand {
		return fmt.Sprintf("selectors.pKeys: its link layer is %s, which has no partitions", p.LinkLayer)
	}
	have := make([]string, len(keys))
	for i, key := range keys {
		have[i] = fmt.Sprintf("0x%04x", key)
		for _, text := range wanted {
			if want, err := v1alpha1.ParsePKey(text); err == nil && want == key&0x7fff {
				return ""
			}
		}
	}
	return refusal("selectors.pKeys", "partition key", have, wanted)
}

// linkTypes are the types of the port's interfaces as the ip command names them; for a port without one its link layer counts.
func linkTypes(p *infiniband.Port) []string {
	var types []string
	for _, net := range p.Nets {
		switch net.Type {
		case infiniband.TypeEthernet:
			types = append(types, "ether")
		case infiniband.TypeInfiniBand:
			types = append(types, "infiniband")
		default:
			types = append(types, fmt.Sprint(net.Type))
		}
	}
	if len(types) > 0 {
		return slices.Compact(types)
	}
	switch p.LinkLayer {
	case infiniband.Ethernet:
		return []string{"ether"}
	case infiniband.InfiniBand:
		return []string{"infiniband"}
	}
	return nil
}

// allows reports whether wanted is empty or has value, in either case.
func allows(wanted []string, value string) bool {
	return len(wanted) == 0 || slices.ContainsFunc(wanted, func(w string) bool { return strings.EqualFold(w, value) })
}

func sameAddress(a, b string) bool {
	return strings.EqualFold(a, b) || strings.EqualFold("0000:"+a, b)
}

func refusal(selector, what string, have, wanted []string) string {
	switch {
	case len(have) == 0 || len(have) == 1 && have[0] == "":
		return fmt.Sprintf("%s: it has no %s, and %v is wanted", selector, what, wanted)
	case len(have) == 1:
		return fmt.Sprintf("%s: its %s %s is not among %v", selector, what, have[0], wanted)
	}
	return fmt.Sprintf("%s: none of its %ss %v is among %v", selector, what, have, wanted)
}
