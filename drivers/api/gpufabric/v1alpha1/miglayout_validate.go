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
	set := 0
	for _, is := range []bool{s.Layout != "" || !s.Config.isZero(), s.Auto != nil, len(s.GPUs) > 0} {
		if is {
			set++
		}
	}
	switch {
	case set != 1:
		return append(errs, field.Invalid(path, set, "must have exactly one of config (with layout), auto and gpus"))
	case s.Auto != nil:
		return append(errs, s.Auto.validate(path.Child("auto"))...)
	case len(s.GPUs) > 0:
		return append(errs, validateGPUs(s.GPUs, path.Child("gpus"))...)
	}
	return append(errs, s.validateConfig(path)...)
}

func (c *MIGPartedConfig) isZero() bool { return c.Version == "" && c.Layouts == nil }

// maxDevices bounds reserves and ceilings, and maxShapes the shapes of a layout by demand.
const (
	maxDevices = 100_000
	maxShapes  = 16
	// maxLayoutGPUs bounds an explicit layout; no node has more GPUs.
	maxLayoutGPUs = 64
	// maxInstances is more than any GPU can have.
	maxInstances = 16
)

func (a *MIGAuto) validate(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	shapes := path.Child("shapes")
	switch n := len(a.Shapes); {
	case n == 0:
		errs = append(errs, field.Required(shapes, "at least one shape: a MIG profile, or whole"))
	case n > maxShapes:
		return append(errs, field.TooMany(shapes, n, maxShapes))
	}
	seen := map[string]bool{}
	for i, shape := range a.Shapes {
		at := shapes.Index(i)
		switch {
		case shape.Profile != MIGWhole && !migProfile.MatchString(shape.Profile):
			errs = append(errs, field.Invalid(at.Child("profile"), shape.Profile,
				"must be whole, or a MIG profile such as 1g.10gb (nvidia-smi mig -lgip lists them)"))
		case seen[shape.Profile]:
			errs = append(errs, field.Duplicate(at.Child("profile"), shape.Profile))
		}
		seen[shape.Profile] = true
		for name, n := range map[string]int32{"max": shape.Max, "reserve.min": shape.Reserve.Min, "reserve.max": shape.Reserve.Max} {
			if n < 0 || n > maxDevices {
				errs = append(errs, field.Invalid(at.Child(name), n, "must be between 0 and 100000 devices"))
			}
		}
		if r := shape.Reserve; r.Max > 0 && r.Min > r.Max {
			errs = append(errs, field.Invalid(at.Child("reserve"), r.Min, "min must not exceed max"))
		}
		if shape.Max > 0 && shape.Reserve.Min > shape.Max {
			errs = append(errs, field.Invalid(at.Child("reserve", "min"), shape.Reserve.Min,
				"must not exceed max, the number of devices of the shape"))
		}
	}
	return errs
}

func validateGPUs(gpus []MIGLayoutGPU, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(gpus) > maxLayoutGPUs {
		return append(errs, field.TooMany(path, len(gpus), maxLayoutGPUs))
	}
	seen := map[string]bool{}
	for i, g := range gpus {
		at := path.Index(i)
		switch {
		case g.UUID == "":
			errs = append(errs, field.Required(at.Child("uuid"), "the GPU's UUID (nvidia-smi -L lists them)"))
		case seen[g.UUID]:
			errs = append(errs, field.Duplicate(at.Child("uuid"), g.UUID))
		}
		seen[g.UUID] = true
		if n := len(g.Instances); n > maxInstances {
			errs = append(errs, field.TooMany(at.Child("instances"), n, maxInstances))
			continue
		}
		starts := map[MIGLayoutInstance]bool{}
		for j, instance := range g.Instances {
			here := at.Child("instances").Index(j)
			if !migProfile.MatchString(instance.Profile) {
				errs = append(errs, field.Invalid(here.Child("profile"), instance.Profile,
					"must be a MIG profile, such as 1g.10gb (nvidia-smi mig -lgip lists them)"))
			}
			if instance.Start < 0 || instance.Start >= maxInstances {
				errs = append(errs, field.Invalid(here.Child("start"), instance.Start, "must be a memory slice, 0 to 15"))
			}
			if starts[instance] {
				errs = append(errs, field.Duplicate(here, instance.Profile))
			}
			starts[instance] = true
		}
		if n := len(g.Withdrawn); n > maxInstances {
			errs = append(errs, field.TooMany(at.Child("withdrawn"), n, maxInstances))
		}
	}
	return errs
}

func (s *MIGLayoutSpec) validateConfig(path *field.Path) field.ErrorList {
	var errs field.ErrorList
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
