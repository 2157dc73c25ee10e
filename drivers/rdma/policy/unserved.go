package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// served are the fields of each section that do something here, or whose doing nothing is what they ask for.
func served() map[string][]string {
	image := []string{"image", "repository", "version"}
	return map[string][]string{
		"ofedDriver":             image,
		"devicePlugin":           append(slices.Clone(image), "config"),
		"rdmaSharedDevicePlugin": append(slices.Clone(image), "config"),
		"nvPeerDriver":           append(slices.Clone(image), "gpuDriverSourcePath"),
	}
}

// unserved says what of a section is asked for and not served; empty: nothing.
func unserved(name string, section any) string {
	known, found := served()[name]
	if !found {
		if empty(section) {
			return ""
		}
		return fmt.Sprintf("the section %s is not served: known are %s", name, strings.Join(slices.Sorted(maps.Keys(served())), ", "))
	}
	fields, _ := section.(map[string]any)
	var missing []string
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		value := fields[field]
		if slices.Contains(known, field) || empty(value) || field == "upgradePolicy" && !automatic(value) {
			continue
		}
		missing = append(missing, name+"."+field)
	}
	if len(missing) == 0 {
		return ""
	}
	return "not served: " + strings.Join(missing, ", ")
}

// automatic reports whether an upgrade policy wants pods replaced. Without it they are when somebody deletes them, which is how they run here.
func automatic(policy any) bool {
	fields, _ := policy.(map[string]any)
	wanted, said := fields["autoUpgrade"].(bool)
	return wanted || !said
}

// empty reports whether a value asks for nothing.
func empty(value any) bool {
	switch v := value.(type) {
	case nil:
		return true
	case map[string]any:
		return len(v) == 0
	case []any:
		return len(v) == 0
	}
	return false
}
