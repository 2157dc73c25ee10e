package profile

// NICModel has the common data of every NIC of one model.
type NICModel struct {
	ID PCIID
	// HCAType is the sysfs file hca_type: MT and the device ID in decimal.
	HCAType         string
	HardwareVersion string
	// Firmware and BoardID are taken where the profile gives none.
	Firmware, BoardID string
	// VFID is the PCI ID of its virtual functions.
	VFID PCIID
}

// nicModel is the table of the models that a profile can name.
func nicModel(name string) NICModel {
	switch name {
	case "ConnectX-5":
		return NICModel{PCIID{0x15b3, 0x1017}, "MT4119", "0", "16.35.3502", "MT_0000000012", PCIID{0x15b3, 0x1018}}
	case "ConnectX-6":
		return NICModel{PCIID{0x15b3, 0x101b}, "MT4123", "0", "20.41.1000", "MT_0000000223", PCIID{0x15b3, 0x101c}}
	case "ConnectX-6 Dx":
		return NICModel{PCIID{0x15b3, 0x101d}, "MT4125", "0", "22.41.1000", "MT_0000000359", PCIID{0x15b3, 0x101e}}
	case "ConnectX-7":
		return NICModel{PCIID{0x15b3, 0x1021}, "MT4129", "0", "28.44.2524", "MT_0000000838", PCIID{0x15b3, 0x101e}}
	case "ConnectX-8":
		return NICModel{PCIID{0x15b3, 0x1023}, "MT4131", "0", "40.45.1020", "MT_0000001222", PCIID{0x15b3, 0x101e}}
	case "ConnectX-9":
		return NICModel{PCIID{0x15b3, 0x1025}, "MT4133", "0", "82.50.1002", "MT_0000001350", PCIID{0x15b3, 0x101e}}
	case "BlueField-2":
		return NICModel{PCIID{0x15b3, 0xa2d6}, "MT41686", "1", "24.41.1000", "MT_0000000540", PCIID{0x15b3, 0x101e}}
	default: // BlueField-3: the profile's enum allows no other
		return NICModel{PCIID{0x15b3, 0xa2dc}, "MT41692", "1", "32.44.1030", "MT_0000001093", PCIID{0x15b3, 0x101e}}
	}
}

// Details gives the NIC's model with the profile's own firmware and board in place of the model's.
func (n NIC) Details() NICModel {
	m := nicModel(n.Model)
	if n.Firmware != "" {
		m.Firmware = n.Firmware
	}
	if n.BoardID != "" {
		m.BoardID = n.BoardID
	}
	return m
}

// ID is the GPU model's vendor and device number.
func (m GPUModel) ID() PCIID { return parsePCIID(m.PCIID) }

// Subsystem is the GPU board's vendor and device number.
func (m GPUModel) Subsystem() PCIID { return parsePCIID(m.SubsystemID) }

// BridgeChain lists the PCI bridges above a device, the root port first; where the profile names none, one root port is made up
// on bus 0 of the device's domain, at a device number that is the device's bus (so that two buses never share a port).
func BridgeChain(address PCIAddress, bridges []string) []string {
	if len(bridges) > 0 {
		return bridges
	}
	if address.Bus == 0 {
		return nil
	}
	return []string{PCIAddress{address.Domain, 0, address.Bus & 0x1f, address.Bus >> 5 & 7}.String()}
}

// MajorsOrDefault gives the driver's majors with the usual number for each that is zero.
func (d Driver) MajorsOrDefault() Majors {
	m := d.Majors
	for _, x := range []struct {
		v *int
		d int
	}{{&m.NVIDIA, 195}, {&m.UVM, 510}, {&m.Caps, 235}, {&m.IMEXChannels, 501}, {&m.NVSwitch, 509}} {
		if *x.v == 0 {
			*x.v = x.d
		}
	}
	return m
}

// SwitchID is the NVSwitch's vendor and device number; without one in the profile, a third-generation NVSwitch's.
func (l NVLink) SwitchID() PCIID {
	if l.SwitchPCIID == "" {
		return PCIID{0x10de, 0x22a3}
	}
	return parsePCIID(l.SwitchPCIID)
}
