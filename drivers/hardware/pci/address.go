package pci

import (
	"fmt"
	"strconv"
	"strings"
)

// Address is a PCI function's address as sysfs writes it: dddd:bb:dd.f in lower-case hexadecimal, with a domain of four to eight digits.
type Address string

// ParseAddress checks text, which may be in either case and may lack the domain (0000 is taken then).
func ParseAddress(text string) (Address, error) {
	full := strings.ToLower(text)
	if len(full) == len("bb:dd.f") {
		full = "0000:" + full
	}
	// The kernel writes a domain with four digits, or as many as it needs; NVML always with eight.
	if len(full) <= len("dddddddd:bb:dd.f") {
		for len(full) > len("dddd:bb:dd.f") && full[0] == '0' {
			full = full[1:]
		}
	}
	if !valid(full) {
		return "", fmt.Errorf("%q is not a PCI address: write domain:bus:device.function in hexadecimal, such as 0000:3b:00.1", text)
	}
	return Address(full), nil
}

func valid(a string) bool {
	domain := len(a) - len(":bb:dd.f")
	if domain < 4 || domain > 8 {
		return false
	}
	bus, device, function := domain+1, domain+4, domain+7
	if a[bus-1] != ':' || a[device-1] != ':' || a[function-1] != '.' {
		return false
	}
	return isHex(a[:domain], 8*4) && isHex(a[bus:bus+2], 8) && isHex(a[device:device+2], 5) && isHex(a[function:], 3)
}

// isHex reports whether text is a lower-case hexadecimal number of at most bits bits.
func isHex(text string, bits int) bool {
	if text != strings.ToLower(text) {
		return false
	}
	_, err := strconv.ParseUint(text, 16, bits)
	return err == nil
}
