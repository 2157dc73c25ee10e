package pci

// A PCIe switch is, in sysfs, an upstream port with its downstream ports below it, all of them bridges:
//
//	pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0
//	           root port    upstream     downstream   function
//
// Some cards have a switch of their own (a BlueField, a dual-GPU board). For placement, only a switch that a card shares with other
// cards matters. So a switch counts when there are functions behind at least two of its downstream ports.
//
// A function without a switch still gets a value: where a claim compares the attribute, the scheduler never picks a device without
// it, not even where the comparison is one of several alternatives.

// switchCount holds, for each upstream port, the downstream ports that have something below them.
type switchCount map[Address]map[Address]struct{}

// add records the switches above the function at p.
func (s switchCount) add(p position) {
	for i := 1; i+1 < len(p.bridges); i += 2 {
		upstream, downstream := p.bridges[i], p.bridges[i+1]
		if s[upstream] == nil {
			s[upstream] = make(map[Address]struct{})
		}
		s[upstream][downstream] = struct{}{}
	}
}

// of returns the nearest shared switch above the function, else the nearest switch, else its root port, else the function itself.
func (s switchCount) of(f *Function) Address {
	bridges := f.Bridges
	var nearest Address
	for i := len(bridges) - 2; i >= 1; i-- {
		upstream := bridges[i]
		if i%2 == 0 {
			continue // Ports alternate below the root port: upstream, downstream, upstream, downstream.
		}
		if len(s[upstream]) > 1 {
			return upstream
		}
		if nearest == "" {
			nearest = upstream
		}
	}
	switch {
	case nearest != "":
		return nearest
	case len(bridges) > 0:
		return bridges[0]
	}
	return f.Address
}
