package annotation

import (
	"encoding/json"
	"fmt"
)

// NodeMIGSlots is this project's own: it lists the MIG slots of a node's GPUs for our scheduler. Volcano's takes them only from
// knownMigGeometries.
const NodeMIGSlots = "vgpu.gpufabric.io/mig-slots"

// maximumSlots bounds the groups of a GPU and the slots of a group: no GPU has more than seven instances, and administrators list
// few geometries.
const maximumSlots = 64

// FormatSlots writes the value of NodeMIGSlots: for each GPU by UUID its groups, and for each slot of a group its memory in units
// of the node's memory factor. The indexes in both lists are the two numbers of `[group-position]`. Without GPUs the value is
// empty.
func FormatSlots(slots map[string][][]int64) string {
	if len(slots) == 0 {
		return ""
	}
	text, _ := json.Marshal(slots) // lists of numbers can always be encoded
	return string(text)
}

// ParseSlots reads the value of NodeMIGSlots.
func ParseSlots(value string) (map[string][][]int64, error) {
	if len(value) > maximumLength {
		return nil, fmt.Errorf("%s of %d bytes, where at most %d are read", NodeMIGSlots, len(value), maximumLength)
	}
	if value == "" {
		return nil, nil
	}
	var slots map[string][][]int64
	if err := json.Unmarshal([]byte(value), &slots); err != nil {
		return nil, fmt.Errorf("%s: %w", NodeMIGSlots, err)
	}
	for uuid, groups := range slots {
		if len(groups) > maximumSlots {
			return nil, fmt.Errorf("%s: %d groups of %q, where at most %d are read", NodeMIGSlots, len(groups), shorten(uuid), maximumSlots)
		}
		for i, group := range groups {
			if len(group) > maximumSlots {
				return nil, fmt.Errorf("%s: %d slots in group %d of %q, where at most %d are read", NodeMIGSlots, len(group), i, shorten(uuid),
					maximumSlots)
			}
			for _, memory := range group {
				if memory < 0 || memory > maximumMemory {
					return nil, fmt.Errorf("%s: a slot of %d units in group %d of %q, where 0 to %d are allowed", NodeMIGSlots, memory, i, shorten(uuid),
						int64(maximumMemory))
				}
			}
		}
	}
	return slots, nil
}
