package v1alpha1

import (
	"fmt"
	"strconv"
	"strings"
)

// ParsePKey reads a partition key, 0x0001 to 0xffff, and returns it without the membership bit.
func ParsePKey(text string) (uint16, error) {
	digits, found := strings.CutPrefix(strings.ToLower(text), "0x")
	key, err := strconv.ParseUint(digits, 16, 16)
	if !found || err != nil || key&0x7fff == 0 {
		return 0, fmt.Errorf("%q is not a partition key, 0x0001 to 0xffff", text)
	}
	return uint16(key) & 0x7fff, nil
}

// VFRange is a set of virtual functions by index. The zero value is all of them.
//
// +kubebuilder:object:generate=false
type VFRange struct{ spans [][2]int }

// maxVFs is how many virtual functions PCIe lets one physical function have.
const maxVFs = 65535

// ParseVFRange splits "ens2f0#0,2-7" into the name and the virtual functions; without # it returns all of them.
func ParseVFRange(text string) (string, VFRange, error) {
	name, ranges, found := strings.Cut(text, "#")
	if !found {
		return name, VFRange{}, nil
	}
	var r VFRange
	for _, span := range strings.Split(ranges, ",") {
		first, last, isSpan := strings.Cut(span, "-")
		if !isSpan {
			last = first
		}
		from, errFrom := strconv.ParseUint(first, 10, 16)
		to, errTo := strconv.ParseUint(last, 10, 16)
		if errFrom != nil || errTo != nil || from > to || to >= maxVFs {
			return "", VFRange{}, fmt.Errorf("%q is not a range of virtual functions, such as 0,2-7", ranges)
		}
		r.spans = append(r.spans, [2]int{int(from), int(to)})
	}
	return name, r, nil
}

// All reports whether the range is unrestricted.
func (r VFRange) All() bool { return r.spans == nil }

// Has reports whether index is in the range.
func (r VFRange) Has(index int) bool {
	for _, span := range r.spans {
		if span[0] <= index && index <= span[1] {
			return true
		}
	}
	return r.All()
}
