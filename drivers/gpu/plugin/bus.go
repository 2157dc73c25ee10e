package plugin

import (
	"errors"
	"slices"

	nvidia "gpufabric.io/drivers/hardware/nvml"
	"gpufabric.io/drivers/hardware/pci"
)

// errPluggedIn ends a run of the plugin that then starts again.
var errPluggedIn = errors.New("a GPU was plugged in")

// bus watches which GPUs NVIDIA's kernel driver has bound, by their addresses on the PCI bus. Sysfs does not report a change, so bus reads
// one directory from time to time. Only one goroutine uses it at a time.
type bus struct {
	sysfs pci.FS
	// known are the GPUs that were there when the role started, or that made it start again.
	known map[string]bool
	// fresh are the GPUs that appeared since the last scan.
	fresh map[string]bool
}

func newBus(sysfsRoot string) *bus {
	b := &bus{sysfs: pci.NewFS(sysfsRoot)}
	b.settle()
	return b
}

// settle adds the present GPUs to known.
func (b *bus) settle() { b.known, b.fresh = b.bound(), nil }

// bound returns the functions that the driver has bound; none where it is not loaded.
func (b *bus) bound() map[string]bool {
	out := map[string]bool{}
	for _, name := range b.sysfs.Bound(nvidia.KernelDriver) {
		out[name] = true
	}
	return out
}

// came returns the functions that are new and were seen in two scans in a row: a driver that has just bound a GPU needs time to
// initialise it. A GPU that left the bus and is back counts as new, since NVML's handle for it is invalid. No function is returned
// twice.
func (b *bus) came() []string {
	now := b.bound()
	var came []string
	fresh := map[string]bool{}
	for function := range now {
		switch {
		case b.known[function]:
		case b.fresh[function]:
			came = append(came, function)
		default:
			fresh[function] = true
		}
	}
	known := map[string]bool{}
	for function := range now {
		if !fresh[function] {
			known[function] = true
		}
	}
	b.known, b.fresh = known, fresh
	slices.Sort(came)
	return came
}
