package plugin

import (
	"errors"
	"slices"

	nvidia "gpufabric.io/drivers/hardware/nvml"
	"gpufabric.io/drivers/hardware/pci"
)

// errPluggedIn ends a run of the plugin that starts again.
var errPluggedIn = errors.New("a GPU was plugged in")

// bus watches which GPUs NVIDIA's kernel driver has taken, by their places on the PCI bus. Sysfs reports no change, so it is looked at now
// and then: one directory, read whole. Only one goroutine uses it at a time.
type bus struct {
	sysfs pci.FS
	// known were there when the role started, or had it start again.
	known map[string]bool
	// fresh came since the last look.
	fresh map[string]bool
}

func newBus(sysfsRoot string) *bus {
	b := &bus{sysfs: pci.NewFS(sysfsRoot)}
	b.settle()
	return b
}

// settle takes the GPUs that are there for known.
func (b *bus) settle() { b.known, b.fresh = b.bound(), nil }

// bound are the functions that the driver has; none where it is not loaded.
func (b *bus) bound() map[string]bool {
	out := map[string]bool{}
	for _, name := range b.sysfs.Bound(nvidia.KernelDriver) {
		out[name] = true
	}
	return out
}

// came are the functions that were not there before and stood at two looks in turn: a driver that has just got a GPU is not done with it.
// One that left the bus and is back has come too, since NVML's handle on it is dead. Nothing comes twice.
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
