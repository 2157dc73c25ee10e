package pci

import (
	"path/filepath"
	"strings"

	"gpufabric.io/drivers/hardware/internal/sysfile"
)

// Tags of Vital Product Data's resources (PCI Local Bus Specification 3.0, appendix I; drivers/pci/vpd.c of Linux).
const (
	vpdLarge    = 0x80 // a bit: two bytes of length follow, the low one first
	vpdReadOnly = 0x90
	vpdEnd      = 0x78
)

// VPD returns the read-only field of that keyword (PN, SN, V3) of the function at path, a path under the sysfs root as in
// Function.Path. It is empty where there is none. A read queries the function word by word, which may take milliseconds.
func (f FS) VPD(path, keyword string) string {
	dir, err := sysfile.Open(filepath.Join(f.root, path))
	if err != nil {
		return ""
	}
	defer dir.Close()
	data, err := dir.Bytes("vpd")
	if err != nil {
		return ""
	}
	return vpdField(data, keyword)
}

func vpdField(data []byte, keyword string) string {
	for len(data) > 0 && data[0] != vpdEnd {
		tag, start, length := data[0], 1, int(data[0]&7)
		if tag&vpdLarge != 0 {
			if len(data) < 3 {
				return ""
			}
			start, length = 3, int(data[1])|int(data[2])<<8
		}
		if start+length > len(data) {
			return ""
		}
		if tag == vpdReadOnly {
			return vpdKeyword(data[start:start+length], keyword)
		}
		data = data[start+length:]
	}
	return ""
}

// vpdKeyword finds a field in the read-only resource: two letters, a length, and the text.
func vpdKeyword(fields []byte, keyword string) string {
	for len(fields) >= 3 {
		length := int(fields[2])
		if 3+length > len(fields) {
			return ""
		}
		if string(fields[:2]) == keyword {
			return strings.TrimRight(string(fields[3:3+length]), " \x00")
		}
		fields = fields[3+length:]
	}
	return ""
}
