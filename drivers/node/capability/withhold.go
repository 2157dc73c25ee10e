package capability

import (
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"
)

// Withheld are devices that are not published, because the scheduler would allocate them wrongly without the fields that are dropped.
type Withheld struct {
	Devices []string
	Missing Missing
}

func (w Withheld) Error() string {
	shown := w.Devices[:min(len(w.Devices), 8)]
	more := ""
	if len(w.Devices) > len(shown) {
		more = fmt.Sprintf(" and %d more", len(w.Devices)-len(shown))
	}
	return fmt.Sprintf("devices %s%s are not published: they need %v", strings.Join(shown, ", "), more, w.Missing)
}

// Withhold returns resources without the devices of which the cluster would drop a field that keeps them from being allocated wrongly,
// and an error of type Withheld that names these; nil: there are none. The resources that it was given stay as they are.
func (m Missing) Withhold(resources resourceslice.DriverResources) (resourceslice.DriverResources, error) {
	if !m.Any() {
		return resources, nil
	}
	var withheld Withheld
	pools := make(map[string]resourceslice.Pool, len(resources.Pools))
	for name, pool := range resources.Pools {
		var kept []resourceslice.Slice
		for _, slice := range pool.Slices {
			if m.Counters {
				slice.SharedCounters = nil
			}
			before := len(slice.Devices)
			slice.Devices = slices.DeleteFunc(slices.Clone(slice.Devices), func(d resourceapi.Device) bool {
				lacks := m.of(d)
				if lacks.Any() {
					withheld.Devices = append(withheld.Devices, d.Name)
					withheld.Missing = withheld.Missing.and(lacks)
				}
				return lacks.Any()
			})
			for i := range slice.Devices {
				if m.Taints { // the rest of the taint has no effect
					slice.Devices[i].Taints = nil
				}
			}
			if len(slice.Devices) > 0 || before == 0 && len(slice.SharedCounters) > 0 {
				kept = append(kept, slice)
			}
		}
		pool.Slices = kept
		pools[name] = pool
	}
	resources.Pools = pools
	if len(withheld.Devices) == 0 {
		return resources, nil
	}
	slices.Sort(withheld.Devices)
	return resources, withheld
}

// of returns the missing features that a device needs.
func (m Missing) of(d resourceapi.Device) Missing {
	multiple := ptr.Deref(d.AllowMultipleAllocations, false)
	counted := len(d.ConsumesCounters) > 0
	return Missing{
		Taints: m.Taints && slices.ContainsFunc(d.Taints, func(t resourceapi.DeviceTaint) bool {
			return t.Effect != resourceapi.DeviceTaintEffectNone
		}),
		Counters:      m.Counters && counted,
		Shares:        m.Shares && multiple,
		CountedShares: m.CountedShares && multiple && counted,
	}
}

func (m Missing) and(o Missing) Missing {
	return Missing{Taints: m.Taints || o.Taints, Counters: m.Counters || o.Counters, Shares: m.Shares || o.Shares,
		CountedShares: m.CountedShares || o.CountedShares}
}
