package toolchain

import (
	"fmt"
	"regexp"
	"strconv"
)

// version is major, minor and patch; pre-release suffixes are ignored.
type version [3]int

var versionPattern = regexp.MustCompile(`(\d+)\.(\d+)\.(\d+)`)

// findVersion returns the first X.Y.Z in text, such as in the output of a command's version flag.
func findVersion(text string) (version, error) {
	match := versionPattern.FindStringSubmatch(text)
	if match == nil {
		return version{}, fmt.Errorf("no version such as 1.2.3 in %q", text)
	}
	var v version
	for i := range v {
		n, err := strconv.Atoi(match[i+1])
		if err != nil {
			return version{}, err
		}
		v[i] = n
	}
	return v, nil
}

func (v version) less(other version) bool {
	for i := range v {
		if v[i] != other[i] {
			return v[i] < other[i]
		}
	}
	return false
}

func (v version) String() string { return fmt.Sprintf("%d.%d.%d", v[0], v[1], v[2]) }

// span is the versions from min up to, but without, below.
type span struct{ min, below version }

func (s span) holds(v version) bool { return !v.less(s.min) && v.less(s.below) }
