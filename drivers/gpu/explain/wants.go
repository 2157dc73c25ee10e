package explain

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"gpufabric.io/drivers/gpu/devices"
)

// Want is the requested form, as far as the selectors of the request and its class show. Selectors are read as text; conditions
// beyond the form (a model, a UUID) are left to the scheduler.
type Want struct {
	Form devices.Form
	// Profiles are the MIG profiles that the selectors name; none: any will do.
	Profiles []string
	// VGPUProfile is the profile whose shares are requested.
	VGPUProfile string
	// Amounts are the requested capacities (memory, cores, shares). A GPU that is only offered whole does not have them.
	Amounts []resourceapi.QualifiedName
}

var (
	migProfile  = regexp.MustCompile(`\b\d+[cg](?:\.\d+g)?\.\d+gb(?:\+[a-z.]+)?`)
	vgpuProfile = regexp.MustCompile(`vgpuProfile\s*==\s*['"]([^'"]+)['"]`)
	migType     = regexp.MustCompile(`type\s*==\s*['"]mig['"]`)
	vfioType    = regexp.MustCompile(`type\s*==\s*['"]vfio['"]`)
	sharedType  = regexp.MustCompile(`type\s*==\s*['"]shared['"]`)
)

// wantOf reads the selectors of a class and a request. ours reports whether they select this driver's devices.
func wantOf(
	class *resourceapi.DeviceClass, own []resourceapi.DeviceSelector, capacity *resourceapi.CapacityRequirements,
) (w Want, ours bool) {
	var text strings.Builder
	for _, s := range slices.Concat(class.Spec.Selectors, own) {
		if s.CEL != nil {
			text.WriteString(s.CEL.Expression + "\n")
		}
	}
	all := text.String()
	if capacity != nil {
		w.Amounts = slices.Sorted(maps.Keys(capacity.Requests))
	}
	profile := vgpuProfile.FindStringSubmatch(all)
	switch {
	case migType.MatchString(all):
		w.Form, w.Profiles = devices.MIG, migProfile.FindAllString(all, -1)
	case vfioType.MatchString(all):
		w.Form = devices.VFIO
	case profile != nil:
		w.Form, w.VGPUProfile = devices.Shared, profile[1]
	case sharedType.MatchString(all) || strings.Contains(all, "allowMultipleAllocations") || strings.Contains(all, "'shareable'"):
		w.Form = devices.Shared
	default:
		w.Form = devices.Whole
	}
	return w, strings.Contains(all, devices.Driver)
}

// matches reports whether a device has the wanted form.
func (w Want) matches(d resourceapi.Device) bool {
	text := func(name resourceapi.QualifiedName) string {
		if a := d.Attributes[name]; a.StringValue != nil {
			return *a.StringValue
		}
		return ""
	}
	multiple := d.AllowMultipleAllocations != nil && *d.AllowMultipleAllocations
	form := devices.Form(text(devices.AttrType))
	switch {
	case w.Form == devices.MIG:
		return form == devices.MIG && (len(w.Profiles) == 0 || slices.Contains(w.Profiles, text(devices.AttrProfile)))
	case w.Form == devices.VFIO:
		return form == devices.VFIO
	case w.VGPUProfile != "":
		return text(devices.AttrVGPUProfile) == w.VGPUProfile
	case w.Form == devices.Shared:
		return multiple && text(devices.AttrVGPUProfile) == "" && w.counted(d)
	}
	return form == devices.Whole && (len(w.Amounts) == 0 || multiple && w.counted(d))
}

// counted reports whether a device has all requested capacities.
func (w Want) counted(d resourceapi.Device) bool {
	return !slices.ContainsFunc(w.Amounts, func(name resourceapi.QualifiedName) bool {
		_, has := d.Capacity[name]
		return !has
	})
}

// String names the wanted form.
func (w Want) String() string {
	switch {
	case w.Form == devices.MIG && len(w.Profiles) > 0:
		return "a MIG instance of " + strings.Join(w.Profiles, " or ")
	case w.Form == devices.MIG:
		return "a MIG instance"
	case w.Form == devices.VFIO:
		return "a GPU for a virtual machine"
	case w.VGPUProfile != "":
		return "a share of the VGPUProfile " + w.VGPUProfile
	case slices.Contains(w.Amounts, devices.CapShares):
		return "shares of a GPU, by their number"
	case w.Form == devices.Shared:
		return "a share of a GPU"
	case len(w.Amounts) > 0:
		return "a part of a GPU's memory or cores"
	}
	return "a whole GPU"
}

// remedy reports how to make a node offer the form.
func (w Want) remedy(node string) string {
	label := func(forms string) string {
		return fmt.Sprintf("kubectl label --overwrite node %s gpufabric.io/gpu-forms=%s", node, forms)
	}
	switch {
	case w.Form == devices.MIG && len(w.Profiles) > 0:
		return label(devices.Forms{Mode: devices.ModeMIG, MIGProfiles: w.Profiles[:1]}.String()) +
			" (if its GPUs have that profile; otherwise see the node's condition GPUForms)"
	case w.Form == devices.MIG:
		return label("mig_1g.10gb") + " (with a profile of its GPUs: nvidia-smi mig -lgip lists them)"
	case w.Form == devices.VFIO:
		return label(string(devices.ModeVFIO)) + " (with gpus.passthrough.enabled, and an IOMMU on the node)"
	case w.VGPUProfile != "":
		return fmt.Sprintf("the VGPUProfile %s must select node %s and its GPUs, by nodeSelector and productNames", w.VGPUProfile, node)
	case slices.Contains(w.Amounts, devices.CapShares):
		return label("shares_4") + " (with as many shares a GPU as you want; they have no cores of their own)"
	case w.Form == devices.Shared || len(w.Amounts) > 0:
		return label(string(devices.ModeShareable))
	}
	return label(string(devices.ModeWhole))
}
