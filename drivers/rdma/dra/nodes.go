package dra

import (
	"errors"
	"fmt"
	"os"

	"gpufabric.io/drivers/hardware/infiniband"
	"gpufabric.io/drivers/rdma/inventory"
)

// existing makes a function that filters the character devices that have a node on the host.
func existing(dev inventory.DeviceNodes) func([]infiniband.CharDevice) ([]infiniband.CharDevice, error) {
	return func(wanted []infiniband.CharDevice) ([]infiniband.CharDevice, error) {
		var found []infiniband.CharDevice
		for _, c := range wanted {
			if c.Name == "" {
				continue // The port has no such device.
			}
			_, err := dev.Stat(c)
			switch {
			case err == nil:
				found = append(found, c)
			case !errors.Is(err, os.ErrNotExist):
				return nil, fmt.Errorf("device node: %w", err)
			}
		}
		return found, nil
	}
}
