package migrate

import (
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"gpufabric.io/drivers/api/resource/validation"
)

// drivers are the DRA drivers whose names gpufabric serves too.
func drivers() []string { return []string{"gpu.nvidia.com", "compute-domain.nvidia.com"} }

// named reports whether a name of a class, or an expression of one, is about devices that gpufabric serves.
func named(text string) bool {
	return slices.ContainsFunc(drivers(), func(d string) bool { return strings.Contains(text, d) }) ||
		text == "mig.nvidia.com" || strings.HasPrefix(text, "compute-domain-") && strings.HasSuffix(text, ".nvidia.com")
}

// ofClass finds the changes of a DeviceClass; nil: it is about other devices.
func ofClass(name string, spec *resourceapi.DeviceClassSpec) []match {
	ours := named(name)
	for _, s := range spec.Selectors {
		ours = ours || s.CEL != nil && named(s.CEL.Expression)
	}
	switch {
	case strings.Contains(name, "imex.nvidia.com"):
		return []match{{rule: "imex"}}
	case !ours:
		return nil
	}
	found := []match{{rule: "claims"}}
	if named(name) {
		found[0].rule = "classes"
	}
	for _, mistake := range validation.DeviceClass(spec, field.NewPath("spec")) {
		found = append(found, match{field: mistake.Field, rule: "configuration", says: mistake.ErrorBody()})
	}
	return found
}

// ofClaim finds the changes of a claim or its template; at is the path of the spec. classes are those about our devices.
func ofClaim(spec *resourceapi.ResourceClaimSpec, at *field.Path, classes map[string]bool) []match {
	var found []match
	class := func(name string, path *field.Path) {
		m := match{field: path.Child("deviceClassName").String()}
		switch {
		case strings.Contains(name, "imex.nvidia.com"):
			m.rule = "imex"
		case strings.Contains(name, "hami"):
			m.rule = "hami-claims"
		case name == "vfio.gpu.nvidia.com":
			m.rule = "passthrough"
		case classes[name] || named(name):
			m.rule = "claims"
		default:
			return
		}
		found = append(found, m)
	}
	requests := at.Child("devices", "requests")
	for i, r := range spec.Devices.Requests {
		if r.Exactly != nil {
			class(r.Exactly.DeviceClassName, requests.Index(i).Child("exactly"))
		}
		for j, s := range r.FirstAvailable {
			class(s.DeviceClassName, requests.Index(i).Child("firstAvailable").Index(j))
		}
	}
	for i, c := range spec.Devices.Constraints {
		if c.MatchAttribute != nil && strings.HasPrefix(string(*c.MatchAttribute), "gpu.nvidia.com/partition") {
			found = append(found, match{field: at.Child("devices", "constraints").Index(i).Child("matchAttribute").String(), rule: "partition"})
		}
	}
	for _, mistake := range validation.Claim(spec, at) {
		found = append(found, match{field: mistake.Field, rule: "configuration", says: mistake.ErrorBody()})
	}
	return worst(found)
}

// worst leaves out that fields stay as they are where another of the object does not, and all but one of those that stay.
func worst(found []match) []match {
	stays := func(m match) bool { return m.rule == "claims" }
	if changes := slices.DeleteFunc(slices.Clone(found), stays); len(changes) > 0 {
		return changes
	}
	if len(found) > 1 {
		found = []match{{rule: "claims", says: fmt.Sprintf("%d requests", len(found))}}
	}
	return found
}
