package infiniband

import (
	"strconv"
	"strings"

	"gpufabric.io/drivers/hardware/internal/sysfile"
)

// number reads the number of an attribute of the form "4: ACTIVE".
func number(dir *sysfile.Dir, attribute string) (uint8, error) {
	text, err := dir.Text(attribute)
	if err != nil {
		return 0, err
	}
	digits, _, found := strings.Cut(text, ":")
	n, err := strconv.ParseUint(digits, 10, 8)
	if err != nil || !found {
		return 0, dir.Invalid(attribute, text, `a number and a name, as in "4: ACTIVE"`)
	}
	return uint8(n), nil
}

// guid reads an attribute of the form xxxx:xxxx:xxxx:xxxx.
func guid(dir *sysfile.Dir, attribute string) (string, error) {
	return groups(dir, attribute, 4, "a GUID, as in 9c63:c003:00f2:1a40")
}

// groups reads n groups of four hexadecimal digits.
func groups(dir *sysfile.Dir, attribute string, n int, want string) (string, error) {
	text, err := dir.Text(attribute)
	if err != nil {
		return "", err
	}
	if len(text) != n*5-1 {
		return "", dir.Invalid(attribute, text, want)
	}
	for i := range len(text) {
		c := text[i]
		hex := '0' <= c && c <= '9' || 'a' <= c && c <= 'f'
		if (i%5 == 4) != (c == ':') || i%5 != 4 && !hex {
			return "", dir.Invalid(attribute, text, want)
		}
	}
	return text, nil
}

// rate reads an attribute of the form "400 Gb/sec (4X NDR)" and returns Gb/s.
func rate(dir *sysfile.Dir) (float64, error) {
	text, err := sysfile.Optional(dir.Text("rate"))
	if err != nil || text == "" {
		return 0, err
	}
	digits, _, found := strings.Cut(text, " Gb/sec")
	v, err := strconv.ParseFloat(digits, 64)
	if err != nil || !found || !(v >= 0 && v <= maxRate) { // NaN, too, is outside
		return 0, dir.Invalid("rate", text, `a rate, as in "400 Gb/sec (4X NDR)"`)
	}
	return v, nil
}

// maxRate, in Gb/s, is far above any port's rate: a file with more is damaged.
const maxRate = 1e6

// linkLayer reads link_layer.
func linkLayer(dir *sysfile.Dir) (LinkLayer, error) {
	text, err := dir.Text("link_layer")
	if err != nil {
		return "", err
	}
	switch layer := LinkLayer(text); layer {
	case InfiniBand, Ethernet, Unspecified:
		return layer, nil
	}
	return "", dir.Invalid("link_layer", text, "InfiniBand, Ethernet or Unknown")
}

// devNumbers reads an attribute of the form 231:192.
func devNumbers(dir *sysfile.Dir) (major, minor uint32, err error) {
	text, err := dir.Text("dev")
	if err != nil {
		return 0, 0, err
	}
	before, after, _ := strings.Cut(text, ":")
	// The kernel's device numbers have 12 bits of major and 20 of minor.
	a, errA := strconv.ParseUint(before, 10, 12)
	b, errB := strconv.ParseUint(after, 10, 20)
	if errA != nil || errB != nil {
		return 0, 0, dir.Invalid("dev", text, "a device number, as in 231:192")
	}
	return uint32(a), uint32(b), nil
}
