package policy

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	mellanox "gpufabric.io/drivers/api/mellanox/v1alpha1"
)

// served are the supported fields of each section. It includes fields that need no action: the rdma-plugin serves the pools, so the
// device plugin's image, pull secrets and resources are not used; and drivers' pods tolerate every taint.
func served() map[string][]string {
	image := []string{"image", "repository", "version", "imagePullSecrets"}
	plugin := append(slices.Clone(image), "config", "containerResources")
	return map[string][]string{
		"global": {"repository", "version", "imagePullSecrets"},
		"ofedDriver": append(slices.Clone(image), "env", "startupProbe", "livenessProbe", "readinessProbe", "upgradePolicy",
			"terminationGracePeriodSeconds"),
		"devicePlugin":           plugin,
		"rdmaSharedDevicePlugin": plugin,
		"nvPeerDriver":           append(slices.Clone(image), "gpuDriverSourcePath"),
	}
}

// unserved names what a section asks for and is not supported; empty: nothing.
func unserved(name string, section any) string {
	known, found := served()[name]
	if !found {
		if empty(section) || name == "tolerations" {
			return ""
		}
		return fmt.Sprintf("the section %s is not served: known are %s", name, strings.Join(slices.Sorted(maps.Keys(served())), ", "))
	}
	fields, _ := section.(map[string]any)
	var missing []string
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		if !slices.Contains(known, field) && !empty(fields[field]) {
			missing = append(missing, name+"."+field)
		}
	}
	var texts []string
	if len(missing) > 0 {
		texts = append(texts, "not served: "+strings.Join(missing, ", "))
	}
	if upgrades := unservedUpgrade(upgradePolicy(fields["upgradePolicy"])); len(upgrades) > 0 {
		texts = append(texts, unservedFields(upgrades))
	}
	return strings.Join(texts, "; ")
}

// upgradePolicy reads a driver's upgrade policy; nil: there is none.
func upgradePolicy(fields any) *mellanox.UpgradePolicySpec {
	if fields == nil {
		return nil
	}
	content, err := json.Marshal(fields)
	if err != nil {
		return nil
	}
	p := &mellanox.UpgradePolicySpec{}
	if json.Unmarshal(content, p) != nil {
		return nil // The schema lets none in.
	}
	return p
}

// empty reports whether a value asks for nothing.
func empty(value any) bool {
	switch v := value.(type) {
	case nil:
		return true
	case bool:
		return !v
	case string:
		return v == ""
	case map[string]any:
		return len(v) == 0
	case []any:
		return len(v) == 0
	}
	return false
}
