package inventory

import (
	"context"
	"fmt"

	"gpufabric.io/drivers/hardware/pci"
)

// Locator scans the PCI bus below a sysfs root once and answers where each display controller sits. Attributes it lacks are left empty.
func Locator(ctx context.Context, sysfsRoot string) (func(busID string) (Place, error), error) {
	bus, err := pci.NewFS(sysfsRoot).Scan(ctx, func(c pci.Class) bool { return c>>16 == 0x03 })
	if err != nil {
		return nil, err
	}
	skipped := map[string]error{}
	for _, s := range bus.Skipped {
		skipped[s.Name] = s.Reason
	}
	return func(busID string) (Place, error) {
		address, err := pci.ParseAddress(busID)
		if err != nil {
			return Place{}, err
		}
		f := bus.Function(address)
		if f == nil {
			if reason := skipped[string(address)]; reason != nil {
				return Place{}, fmt.Errorf("%s could not be read from %s: %w", address, sysfsRoot, reason)
			}
			return Place{}, fmt.Errorf("%s is not among the display controllers of %s", address, sysfsRoot)
		}
		return Place{BusID: string(address), Root: f.Root, Switch: string(f.Switch), NUMANode: f.NUMANode}, nil
	}, nil
}
