package record

import (
	"encoding/binary"
	"path/filepath"

	"gpufabric.io/fakes/profile"
)

// dataDirect finds the data-direct function of a ConnectX-8: 15b3:2100, with the same V3 field in its Vital Product Data (rdma-core,
// rdma_topo). The kernel lets only root read that data; without it there is none.
func (s sysfs) dataDirect(address string) *profile.DataDirect {
	v3 := s.v3(address)
	functions, err := filepath.Glob(filepath.Join(s.root, "bus/pci/devices/*"))
	if v3 == "" || err != nil {
		return nil
	}
	for _, path := range functions {
		other := filepath.Base(path)
		dir := "bus/pci/devices/" + other + "/"
		if s.text(dir+"vendor") == "0x15b3" && s.text(dir+"device") == "0x2100" && s.v3(other) == v3 {
			return &profile.DataDirect{PCI: other, Bridges: s.bridges(other)}
		}
	}
	return nil
}

// Tags of Vital Product Data (PCI Local Bus Specification 3.0, appendix I).
const vpdReadOnly, vpdLarge = 0x90, 0x80

// v3 is the vendor's field V3 of a function, which ConnectX-8 fills with an identifier of the card; empty: it has none.
func (s sysfs) v3(address string) string {
	data := []byte(s.text("bus/pci/devices/" + address + "/vpd"))
	for len(data) >= 3 && data[0]&vpdLarge != 0 {
		end := 3 + int(binary.LittleEndian.Uint16(data[1:]))
		if end > len(data) {
			return ""
		}
		fields := data[3:end]
		for data[0] == vpdReadOnly && len(fields) >= 3 && 3+int(fields[2]) <= len(fields) {
			length := 3 + int(fields[2])
			if string(fields[:2]) == "V3" {
				return string(fields[3:length])
			}
			fields = fields[length:]
		}
		data = data[end:]
	}
	return ""
}
