package pci

import (
	"os"
	"path/filepath"
)

// Bound returns the names (PCI addresses) of the functions that a kernel driver has bound, from /sys/bus/pci/drivers. It returns
// none where the driver is not loaded.
func (f FS) Bound(driver string) []string {
	entries, err := os.ReadDir(filepath.Join(f.root, "bus/pci/drivers", driver))
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		// The driver's own files are here beside the links to functions: bind, new_id, module.
		if e.Type()&os.ModeSymlink != 0 && e.Name() != "module" {
			names = append(names, e.Name())
		}
	}
	return names
}
