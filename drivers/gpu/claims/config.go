package claims

import (
	resourceapi "k8s.io/api/resource/v1"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/api/resource/validation"
	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/node/draplugin"
)

// share is how one device is shared between the processes that hold it.
type share struct {
	strategy v1beta1.SharingStrategy
	interval v1beta1.TimeSliceInterval
	mps      *v1beta1.MpsConfig
}

// ordinary is how a device without configuration is shared.
func ordinary() share {
	return share{strategy: v1beta1.TimeSlicing, interval: v1beta1.DefaultTimeSlice}
}

// configure reads every configuration that applies to a device and returns the strongest of its kind. It reads all of them, so that
// it reports a mistake even where another configuration would win.
func configure(d *devices.Device, configs []draplugin.OpaqueConfig) (share, error) {
	result := ordinary()
	for _, c := range configs {
		decoded, err := validation.Decode(devices.Driver, c.Raw)
		if err != nil {
			return result, draplugin.Refuse("InvalidConfig", "%s (from the %s): %w", c.Path, author(c), err)
		}
		switch config := decoded.(type) {
		case *v1beta1.GpuConfig:
			if d.Form == devices.MIG {
				continue // for the claim's whole GPUs
			}
			if d.Form == devices.Shared && c.Source != resourceapi.AllocationConfigSourceClass {
				if validation.AsksForInterval(c.Raw) {
					return result, draplugin.Refuse("IntervalNotForShares", "%s: sharing.timeSlicingConfig.interval for device %s: %s", c.Path,
						d.Name(), validation.ShareInterval)
				}
				if config.Sharing.Strategy == v1beta1.TimeSlicing {
					continue // the class's interval remains
				}
			}
			s := config.Sharing
			result = share{strategy: s.Strategy, mps: s.MpsConfig, interval: v1beta1.DefaultTimeSlice}
			if s.TimeSlicingConfig != nil && s.TimeSlicingConfig.Interval != nil {
				result.interval = *s.TimeSlicingConfig.Interval
			}
		case *v1beta1.MigDeviceConfig:
			if d.Form != devices.MIG {
				continue // for the claim's MIG devices
			}
			result = share{strategy: config.Sharing.Strategy, mps: config.Sharing.MpsConfig, interval: v1beta1.DefaultTimeSlice}
		}
	}
	return result, nil
}

func author(c draplugin.OpaqueConfig) string {
	if c.Source == resourceapi.AllocationConfigSourceClass {
		return "device class"
	}
	return "claim"
}
