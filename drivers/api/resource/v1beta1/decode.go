package v1beta1

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
)

// Config is a configuration that a claim or a device class hands to a driver.
//
// +kubebuilder:object:generate=false
type Config interface {
	// Default fills in what was left out.
	Default()
	// Validate names every field that is wrong, its value and what is allowed. It is called after Default.
	Validate() field.ErrorList
}

// maxConfigBytes is what the API server accepts in an opaque configuration (10 KiB).
const maxConfigBytes = 10 << 10

// configKinds are the kinds of configuration, each with what makes an empty one.
func configKinds() map[string]func() Config {
	return map[string]func() Config{
		"ComputeDomainChannelConfig": func() Config { return &ComputeDomainChannelConfig{} },
		"ComputeDomainDaemonConfig":  func() Config { return &ComputeDomainDaemonConfig{} },
		"GpuConfig":                  func() Config { return &GpuConfig{} },
		"MigDeviceConfig":            func() Config { return &MigDeviceConfig{} },
		"VfioDeviceConfig":           func() Config { return &VfioDeviceConfig{} },
	}
}

// Decode reads a configuration strictly: its apiVersion and kind must be of this package, and no field may be unknown, doubled or
// differ in case. The result is defaulted and valid. The error names what is wrong and what is allowed; it never echoes more than
// a line of the input.
func Decode(raw []byte) (Config, error) {
	if len(raw) > maxConfigBytes {
		return nil, fmt.Errorf("the configuration has %d bytes, at most %d are allowed", len(raw), maxConfigBytes)
	}
	if !utf8.Valid(raw) {
		return nil, errors.New("the configuration is not UTF-8")
	}
	var meta metav1.TypeMeta
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &meta); err != nil {
		if named := wrongType(raw, err); named != err { //nolint:errorlint // whether it was worded anew
			return nil, named
		}
		return nil, fmt.Errorf("the configuration is not a JSON object: %.200w", err)
	}
	if want := SchemeGroupVersion().String(); meta.APIVersion != want {
		return nil, fmt.Errorf("apiVersion: %.80q, allowed is %q", meta.APIVersion, want)
	}
	kinds := configKinds()
	newConfig, ok := kinds[meta.Kind]
	if !ok {
		return nil, fmt.Errorf("kind: %.80q, allowed are %s", meta.Kind, strings.Join(slices.Sorted(maps.Keys(kinds)), ", "))
	}
	config := newConfig()
	strict, err := kjson.UnmarshalStrict(raw, config)
	if err != nil {
		if errs := wrongQuantities(raw); len(errs) > 0 {
			err = errs.ToAggregate()
		}
		err = wrongType(raw, err)
		return nil, fmt.Errorf("%s: %w", meta.Kind, shorten(err))
	}
	if err := errors.Join(strict...); err != nil {
		return nil, fmt.Errorf("%s: %w", meta.Kind, shorten(err))
	}
	config.Default()
	if errs := config.Validate(); len(errs) > 0 {
		return nil, fmt.Errorf("%s: %w", meta.Kind, shorten(errs.ToAggregate()))
	}
	return config, nil
}

// wrongQuantities names the memory limits that are no quantities, which a quantity's own error does not.
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

// shorten keeps an author's input from filling Events and logs through an error that quotes it.
func shorten(err error) error {
	const limit = 600
	if text := err.Error(); len(text) > limit {
		return errors.New(strings.ToValidUTF8(text[:limit], "") + "…")
	}
	return err
}
