package v1alpha1

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var (
	pciDeviceID = regexp.MustCompile(`^0[xX][0-9a-fA-F]{8}$`)
	// A profile as NVML names it: 1g.5gb, 1g.5gb+me, 1c.3g.20gb, 1g.10gb-me.
	migProfile = regexp.MustCompile(`^([1-8]c\.)?[1-8]g\.[1-9][0-9]{0,3}gb([+-][a-z.]+)?$`)
)

// maxGPUs bounds indices: no machine has more GPUs.
const maxGPUs = 256

// Validate returns every mistake in the spec; path is the field that holds it. Only a node knows whether its GPUs have a profile,
// and space for it.
func (s *MIGLayoutSpec) Validate(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if s.NodeSelector != nil {
		errs = append(errs, metavalidation.ValidateLabelSelector(s.NodeSelector, metavalidation.LabelSelectorValidationOptions{},
			path.Child("nodeSelector"))...)
	}
	at := path.Child("config")
	if s.Config.Version != "v1" {
		errs = append(errs, field.NotSupported(at.Child("version"), s.Config.Version, []string{"v1"}))
	}
	names := slices.Sorted(maps.Keys(s.Config.Layouts))
	if len(names) == 0 {
		errs = append(errs, field.Required(at.Child("mig-configs"), "at least one layout"))
	} else if _, ok := s.Config.Layouts[s.Layout]; !ok {
		errs = append(errs, field.Invalid(path.Child("layout"), s.Layout, "config has no layout of that name; it has "+strings.Join(names, ", ")))
	}
	for _, name := range names {
		for i, entry := range s.Config.Layouts[name] {
			errs = append(errs, entry.validate(at.Child("mig-configs").Key(name).Index(i))...)
		}
	}
	return errs
}

func (e *MIGPartedEntry) validate(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, id := range e.DeviceFilter {
		if !pciDeviceID.MatchString(id) {
			errs = append(errs, field.Invalid(path.Child("device-filter").Index(i), id,
				"must be a PCI device and vendor ID in eight hexadecimal digits, such as 0x20B010DE"))
		}
	}
	if !e.Devices.All && len(e.Devices.Indices) == 0 {
		errs = append(errs, field.Required(path.Child("devices"), "all, or a list of GPU indices"))
	}
	seen := map[int32]bool{}
	for i, index := range e.Devices.Indices {
		at := path.Child("devices").Index(i)
		switch {
		case index < 0 || index >= maxGPUs:
			errs = append(errs, field.Invalid(at, index, "must be between 0 and 255"))
		case seen[index]:
			errs = append(errs, field.Duplicate(at, index))
		}
		seen[index] = true
	}
	if !e.MIGEnabled && len(e.MIGDevices) > 0 {
		errs = append(errs, field.Forbidden(path.Child("mig-devices"), "only allowed where mig-enabled is true"))
	}
	for _, profile := range slices.Sorted(maps.Keys(e.MIGDevices)) {
		at := path.Child("mig-devices").Key(profile)
		if !migProfile.MatchString(profile) {
			errs = append(errs, field.Invalid(at, profile, "must be a MIG profile, such as 1g.5gb or 1g.10gb+me (nvidia-smi mig -lgip lists them)"))
		}
		if n := e.MIGDevices[profile]; n < 1 || n > 8 {
			errs = append(errs, field.Invalid(at, n, "must be between 1 and 8 instances"))
		}
	}
	return errs
}
