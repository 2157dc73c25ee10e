package pci

import (
	"errors"
	"io/fs"
	"strconv"
	"strings"

	"gpufabric.io/drivers/hardware/internal/sysfile"
)

// Identity is a function's vendor, device and class.
type Identity struct {
	Vendor, Device uint16
	Class          Class
}

// identify reads modalias: one file has the contents of class, vendor and device. uevent would name the driver too,
// but kernels of 2024 read it under the device's lock, which a driver holds while it probes: a discovery must not wait for that. A
// tree without modalias, which no kernel makes, has the three files.
func identify(dir *sysfile.Dir) (Identity, error) {
	text, err := dir.Text("modalias")
	if errors.Is(err, fs.ErrNotExist) {
		return identifyByFiles(dir)
	}
	if err != nil {
		return Identity{}, err
	}
	is, ok := parseModalias(text)
	if !ok {
		return Identity{}, dir.Invalid("modalias", text, "a PCI function's, as in pci:v000015B3d00001021sv000015B3sd00000041bc02sc07i00")
	}
	return is, nil
}

// parseModalias takes vendor, device, subsystem (vendor and device) and class (base class, subclass and programming interface), each in
// hexadecimal.
func parseModalias(text string) (is Identity, ok bool) {
	var values [7]uint64
	for i, field := range [...]struct {
		before       string
		digits, bits int
	}{{"pci:v", 8, 16}, {"d", 8, 16}, {"sv", 8, 16}, {"sd", 8, 16}, {"bc", 2, 8}, {"sc", 2, 8}, {"i", 2, 8}} {
		rest, found := strings.CutPrefix(text, field.before)
		if !found || len(rest) < field.digits {
			return Identity{}, false
		}
		var err error
		if values[i], err = strconv.ParseUint(rest[:field.digits], 16, field.bits); err != nil {
			return Identity{}, false
		}
		text = rest[field.digits:]
	}
	return Identity{uint16(values[0]), uint16(values[1]), Class(values[4]<<16 | values[5]<<8 | values[6])}, text == ""
}

func identifyByFiles(dir *sysfile.Dir) (Identity, error) {
	class, err := dir.Hex("class", 24)
	if err != nil {
		return Identity{}, err
	}
	vendor, err := dir.Hex("vendor", 16)
	if err != nil {
		return Identity{}, err
	}
	device, err := dir.Hex("device", 16)
	return Identity{uint16(vendor), uint16(device), Class(class)}, err
}
