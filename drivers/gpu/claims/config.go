package claims

import (
	"fmt"
	"slices"
	"strings"

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
		case *v1beta1.VfioDeviceConfig:
			return result, draplugin.Refuse("InvalidConfig", "%s: VfioDeviceConfig asks for a GPU that is passed through to a virtual machine, and "+
				"device %s is none: ask for the device class vfio.gpu.nvidia.com, whose GPUs are on nodes of form vfio", c.Path, d.Name())
		}
	}
	return result, nil
}

// warnings name the claim's configurations that apply to none of its devices, such as a MigDeviceConfig for a request that got a whole
// GPU, or a configuration of a device that is only observed. A configuration for a request with alternatives may be for one that was not
// chosen.
func (p *preparation) warnings() []draplugin.Remark {
	var out []draplugin.Remark
	for i, c := range p.claim.Status.Allocation.Devices.Config {
		if c.Source != resourceapi.AllocationConfigSourceClaim || c.Opaque == nil || c.Opaque.Driver != devices.Driver ||
			p.hasAlternatives(c.Requests) {
			continue
		}
		decoded, err := validation.Decode(devices.Driver, c.Opaque.Parameters.Raw)
		if err != nil {
			continue // of no device, or its preparation was refused
		}
		_, forMIG := decoded.(*v1beta1.MigDeviceConfig)
		path, used := draplugin.ConfigPath(i), false
		for j, d := range p.devices {
			applies := slices.ContainsFunc(p.claim.Devices[j].Configs, func(o draplugin.OpaqueConfig) bool { return o.Path == path })
			used = used || applies && forMIG == (d.Form == devices.MIG) && !p.claim.Devices[j].Admin()
		}
		if !used {
			out = append(out, draplugin.Remark{Reason: "ConfigWithoutEffect", Message: fmt.Sprintf(
				"%s has no effect: GpuConfig is for whole GPUs and shares, MigDeviceConfig for MIG devices, neither for adminAccess, and the claim "+
					"has no such device in %s", path, requestsOf(c.Requests))})
		}
	}
	return out
}

func requestsOf(names []string) string {
	if len(names) == 0 {
		return "any request"
	}
	return "request " + strings.Join(names, ", ")
}

func (p *preparation) hasAlternatives(requests []string) bool {
	return slices.ContainsFunc(p.claim.Spec.Devices.Requests, func(r resourceapi.DeviceRequest) bool {
		return len(r.FirstAvailable) > 0 && (len(requests) == 0 || slices.ContainsFunc(requests, func(name string) bool {
			parent, _, _ := strings.Cut(name, "/")
			return parent == r.Name
		}))
	})
}

func author(c draplugin.OpaqueConfig) string {
	if c.Source == resourceapi.AllocationConfigSourceClass {
		return "device class"
	}
	return "claim"
}
