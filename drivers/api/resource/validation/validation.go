// Package validation checks the configurations that claims and device classes have for this project's drivers. The webhook and the
// node plugins use the same checks, so that a node can do what the API accepts.
package validation

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/api/resource/v1beta1"
)

// The drivers whose configurations this package checks.
const (
	GPUDriver           = "gpu.nvidia.com"
	ComputeDomainDriver = "compute-domain.nvidia.com"
	RDMADriver          = "rdma.gpufabric.io"
)

// kinds are the kinds of configuration that a driver takes.
func kinds(driver string) ([]string, bool) {
	switch driver {
	case GPUDriver:
		return []string{"GpuConfig", "MigDeviceConfig", "VfioDeviceConfig"}, true
	case ComputeDomainDriver:
		return []string{"ComputeDomainChannelConfig", "ComputeDomainDaemonConfig"}, true
	case RDMADriver:
		return []string{"RDMAConfig"}, true
	default:
		return nil, false
	}
}

// Decode reads a configuration for a driver strictly. Its error names the field, its value, and what is allowed.
func Decode(driver string, raw []byte) (v1beta1.Config, error) {
	allowed, known := kinds(driver)
	if !known {
		return nil, fmt.Errorf("driver %.80q does not belong to this project", driver)
	}
	if driver == RDMADriver {
		return v1alpha1.DecodeConfig(raw)
	}
	config, err := v1beta1.Decode(raw)
	if err != nil {
		return nil, locate(raw, err)
	}
	kind := kindOf(config)
	if !slices.Contains(allowed, kind) {
		return nil, fmt.Errorf("kind: %q configures another driver; %s takes %s", kind, driver, strings.Join(allowed, ", "))
	}
	return config, nil
}

// locate names the field of a quantity that could not be read. The decoder's own error has neither field nor value.
func locate(raw []byte, err error) error {
	var c struct {
		Sharing struct {
			MPS struct {
				Limit  json.RawMessage            `json:"defaultPinnedDeviceMemoryLimit"`
				Limits map[string]json.RawMessage `json:"defaultPerDevicePinnedMemoryLimit"`
			} `json:"mpsConfig"`
		} `json:"sharing"`
	}
	if json.Unmarshal(raw, &c) != nil {
		return err
	}
	at := field.NewPath("sharing", "mpsConfig")
	check := func(path *field.Path, value json.RawMessage) error {
		var q resource.Quantity
		if len(value) == 0 || q.UnmarshalJSON(value) == nil {
			return nil
		}
		return field.Invalid(path, string(value[:min(len(value), 40)]), "must be a quantity, such as 10Gi")
	}
	found := check(at.Child("defaultPinnedDeviceMemoryLimit"), c.Sharing.MPS.Limit)
	for _, key := range slices.Sorted(maps.Keys(c.Sharing.MPS.Limits)) {
		if found == nil {
			found = check(at.Child("defaultPerDevicePinnedMemoryLimit").Key(key[:min(len(key), 60)]), c.Sharing.MPS.Limits[key])
		}
	}
	if found != nil {
		return found
	}
	return err
}

// kindOf is the kind of a decoded configuration.
func kindOf(config v1beta1.Config) string {
	name := fmt.Sprintf("%T", config)
	return name[strings.LastIndexByte(name, '.')+1:]
}

// DeviceClass returns every mistake in the configurations of a device class.
func DeviceClass(spec *resourceapi.DeviceClassSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, c := range spec.Config {
		at := path.Child("config").Index(i).Child("opaque", "parameters")
		errs = append(errs, opaque(c.Opaque, at)...)
	}
	return errs
}

// Claim returns every mistake in the configurations of a claim. Two configurations for one request are no mistake: the later one
// wins, as in NVIDIA's DRA driver. It matches the order of status.allocation.devices.config in Kubernetes, where a claim's
// configurations come after its class's.
func Claim(spec *resourceapi.ResourceClaimSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, c := range spec.Devices.Config {
		at := path.Child("devices", "config").Index(i).Child("opaque", "parameters")
		mistakes := opaque(c.Opaque, at)
		if len(mistakes) == 0 && sliceOfAShare(spec, c) {
			mistakes = append(mistakes, field.Forbidden(at.Child("sharing", "timeSlicingConfig", "interval"), ShareInterval))
		}
		errs = append(errs, mistakes...)
	}
	return errs
}

// opaque checks one configuration; it ignores those of other drivers.
func opaque(c *resourceapi.OpaqueDeviceConfiguration, at *field.Path) field.ErrorList {
	if c == nil {
		return nil
	}
	if _, ours := kinds(c.Driver); !ours {
		return nil
	}
	if _, err := Decode(c.Driver, c.Parameters.Raw); err != nil {
		return field.ErrorList{field.Invalid(at, field.OmitValueType{}, err.Error())}
	}
	return nil
}
