package v1alpha1

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Validate returns every mistake in the spec; path is the field that holds it. Only the nodes know whether a GPU is large enough.
func (s *VGPUProfileSpec) Validate(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	modes := []VGPUMode{VGPUSoftware, VGPUMIG, VGPUExclusive}
	switch s.Mode {
	case VGPUSoftware:
		if s.Memory == nil {
			errs = append(errs, field.Required(path.Child("memory"), "the memory of a slice, such as 10Gi"))
		}
	case VGPUMIG:
		if s.Memory == nil && s.Cores == 0 {
			errs = append(errs, field.Required(path.Child("memory"), "memory or cores that the MIG device must have"))
		}
	case VGPUExclusive:
		if s.Cores != 0 {
			errs = append(errs, field.Forbidden(path.Child("cores"), "not allowed with mode Exclusive: a whole GPU has all its cores"))
		}
	default:
		errs = append(errs, field.NotSupported(path.Child("mode"), s.Mode, modes))
	}
	if s.Mode != VGPUSoftware && s.Split != 0 {
		errs = append(errs, field.Forbidden(path.Child("split"), "only allowed with mode Software"))
	}
	if s.Mode != VGPUSoftware && s.NodeSelector != nil {
		errs = append(errs, field.Forbidden(path.Child("nodeSelector"),
			"only allowed with mode Software: the other modes choose among devices that are there anyway; use the pod's nodeSelector"))
	}
	if m := s.Memory; m != nil {
		switch {
		case m.Cmp(resource.MustParse("1Mi")) < 0:
			errs = append(errs, field.Invalid(path.Child("memory"), m.String(), "must be at least 1Mi"))
		case m.Cmp(resource.MustParse("1Ti")) > 0:
			errs = append(errs, field.Invalid(path.Child("memory"), m.String(), "must be at most 1Ti: no GPU has more"))
		}
	}
	for _, n := range []struct {
		field string
		value int32
	}{{"cores", s.Cores}, {"split", s.Split}} {
		if n.value < 0 || n.value > 100 {
			errs = append(errs, field.Invalid(path.Child(n.field), n.value, "must be between 1 and 100, or left out"))
		}
	}
	if s.Policy != "" && s.Policy != VGPUBinpack && s.Policy != VGPUSpread {
		errs = append(errs, field.NotSupported(path.Child("policy"), s.Policy, []VGPUPolicy{VGPUBinpack, VGPUSpread}))
	}
	if s.NodeSelector != nil {
		errs = append(errs, metavalidation.ValidateLabelSelector(s.NodeSelector, metavalidation.LabelSelectorValidationOptions{},
			path.Child("nodeSelector"))...)
	}
	for i, name := range s.ProductNames {
		if name == "" || len(name) > 64 {
			errs = append(errs, field.Invalid(path.Child("productNames").Index(i), name,
				"must have 1 to 64 characters, as NVML writes a GPU's name"))
		}
		if slices.Index(s.ProductNames, name) < i {
			errs = append(errs, field.Duplicate(path.Child("productNames").Index(i), name))
		}
	}
	seen := map[string]bool{}
	for i, namespace := range s.Namespaces {
		at := path.Child("namespaces").Index(i)
		for _, problem := range validation.IsDNS1123Label(namespace) {
			errs = append(errs, field.Invalid(at, namespace, problem))
		}
		if seen[namespace] {
			errs = append(errs, field.Duplicate(at, namespace))
		}
		seen[namespace] = true
	}
	return errs
}
