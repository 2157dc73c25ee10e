package v1beta1

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"gpufabric.io/drivers/api/opaque"
)

// Config is a configuration that a claim or a device class hands to a driver.
//
// +kubebuilder:object:generate=false
type Config = opaque.Config

// configKinds are the kinds of configuration, each with a function that makes an empty one.
func configKinds() map[string]func() Config {
	return map[string]func() Config{
		"ComputeDomainChannelConfig": func() Config { return &ComputeDomainChannelConfig{} },
		"ComputeDomainDaemonConfig":  func() Config { return &ComputeDomainDaemonConfig{} },
		"GpuConfig":                  func() Config { return &GpuConfig{} },
		"MigDeviceConfig":            func() Config { return &MigDeviceConfig{} },
		"VfioDeviceConfig":           func() Config { return &VfioDeviceConfig{} },
	}
}

// Decode reads a configuration of this package strictly, by the rules of package opaque.
func Decode(raw []byte) (Config, error) {
	return opaque.Decode(raw, SchemeGroupVersion().String(), configKinds(), func(raw []byte, err error) error {
		if errs := wrongQuantities(raw); len(errs) > 0 {
			return errs.ToAggregate()
		}
		return err
	})
}

// wrongQuantities names the memory limits that are no quantities. A quantity's own error does not name them.
func wrongQuantities(raw []byte) field.ErrorList {
	var loose struct {
		Sharing struct {
			MpsConfig struct {
				DefaultPinnedDeviceMemoryLimit    any            `json:"defaultPinnedDeviceMemoryLimit"`
				DefaultPerDevicePinnedMemoryLimit map[string]any `json:"defaultPerDevicePinnedMemoryLimit"`
			} `json:"mpsConfig"`
		} `json:"sharing"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &loose); err != nil {
		return nil
	}
	var errs field.ErrorList
	check := func(path *field.Path, value any) {
		if value == nil {
			return
		}
		if _, err := resource.ParseQuantity(fmt.Sprint(value)); err != nil {
			errs = append(errs, field.Invalid(path, value, "must be a quantity of memory, like 1Gi"))
		}
	}
	at, mps := field.NewPath("sharing", "mpsConfig"), loose.Sharing.MpsConfig
	check(at.Child("defaultPinnedDeviceMemoryLimit"), mps.DefaultPinnedDeviceMemoryLimit)
	for _, key := range slices.Sorted(maps.Keys(mps.DefaultPerDevicePinnedMemoryLimit)) {
		check(at.Child("defaultPerDevicePinnedMemoryLimit").Key(key), mps.DefaultPerDevicePinnedMemoryLimit[key])
	}
	return errs
}
