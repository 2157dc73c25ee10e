package edits

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpufabric.io/drivers/hardware/driver"
)

// whole returns the essential file of CUDA that a driver root lacks: nvcdi treats a root without libcuda as one without a driver.
func (o Options) whole(mounts []*specs.Mount, version string) error {
	const library = "libcuda.so."
	if slices.ContainsFunc(mounts, func(m *specs.Mount) bool { return strings.HasPrefix(filepath.Base(m.HostPath), library) }) {
		return nil
	}
	var others []string
	for _, dir := range driver.LibraryDirs() {
		found, err := filepath.Glob(filepath.Join(o.DriverRoot, dir, library+"*"))
		if err == nil {
			others = append(others, found...)
		}
	}
	there := "there is no " + library + "* at all"
	if len(others) > 0 {
		there = "there is " + strings.Join(others, ", ")
	}
	return fmt.Errorf("the driver under %s is incomplete, or has parts of two versions: containers do not get %s%s, the version of the "+
		"kernel's driver; %s: install all of "+
		"version %s, or unload the kernel's modules and load those of the version that is installed", o.DriverRoot, library, version, there,
		version)
}
