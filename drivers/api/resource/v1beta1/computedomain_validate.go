package v1beta1

import (
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Validate returns the mistakes for which the CustomResourceDefinition would refuse a domain's spec. An empty allocation mode is its
// default.
func (s *ComputeDomainSpec) Validate(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if s.NumNodes < 0 {
		errs = append(errs, field.Invalid(path.Child("numNodes"), s.NumNodes, "must be 0 or more"))
	}
	channel := path.Child("channel")
	name := channel.Child("resourceClaimTemplate", "name")
	if s.Channel.ResourceClaimTemplate.Name == "" {
		errs = append(errs, field.Required(name, "the name of the ResourceClaimTemplate that pods of the domain name"))
	} else {
		for _, problem := range validation.IsDNS1123Subdomain(s.Channel.ResourceClaimTemplate.Name) {
			errs = append(errs, field.Invalid(name, s.Channel.ResourceClaimTemplate.Name, problem))
		}
	}
	switch s.Channel.AllocationMode {
	case "", AllocationModeSingle, AllocationModeAll:
	default:
		errs = append(errs, field.NotSupported(channel.Child("allocationMode"), s.Channel.AllocationMode,
			[]AllocationMode{AllocationModeSingle, AllocationModeAll}))
	}
	return errs
}
