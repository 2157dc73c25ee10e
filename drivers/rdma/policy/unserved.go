package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"

	mellanox "gpufabric.io/drivers/api/mellanox/v1alpha1"
)

// maxNamed bounds the paths in the message of a section, in bytes.
const maxNamed = 4096

// unserved compares the policy's spec as it is stored with the spec that was used. It returns the fields that request something and
// were not used, by section, as paths below spec: ofedDriver.livenessProbe.successThreshold.
func unserved(stored map[string]any, spec *mellanox.NicClusterPolicySpec) (map[string][]string, error) {
	effective, err := runtime.DefaultUnstructuredConverter.ToUnstructured(used(spec))
	if err != nil {
		return nil, err
	}
	asked := runtime.DeepCopyJSON(stored)
	dropInactive(asked)
	sections := make(map[string][]string)
	for section, content := range asked {
		missing(section, content, effective[section], func(path string) { sections[section] = append(sections[section], path) })
	}
	return sections, nil
}

// used returns the part of the spec on which the created objects depend. A test changes each of its fields and sees that the result
// changes.
func used(spec *mellanox.NicClusterPolicySpec) *mellanox.NicClusterPolicySpec {
	u := spec.DeepCopy()
	if u.DevicePlugin != nil {
		u.RDMASharedDevicePlugin = nil
	}
	if u.OFEDDriver != nil && u.OFEDDriver.UpgradePolicy != nil {
		upgrade := u.OFEDDriver.UpgradePolicy
		upgrade.Drain, upgrade.WaitForCompletion, upgrade.SafeLoad = nil, nil, false
	}
	return u
}

// dropInactive removes the fields that have no effect in the network operator either, because a switch beside them is off.
func dropInactive(stored map[string]any) {
	driver, _ := stored["ofedDriver"].(map[string]any)
	upgrade, _ := driver["upgradePolicy"].(map[string]any)
	if automatic, _ := upgrade["autoUpgrade"].(bool); !automatic {
		delete(driver, "upgradePolicy")
		return
	}
	if drain, given := upgrade["drain"].(map[string]any); given {
		if switchedOff(drain) {
			delete(upgrade, "drain")
		} else if drain["enable"] == nil {
			drain["enable"] = true // Its default, where the section exists.
		}
	}
	if wait, given := upgrade["waitForCompletion"].(map[string]any); given && asksNothing(wait["podSelector"]) {
		delete(upgrade, "waitForCompletion")
	}
}

// needsNoAction reports whether a field is satisfied without it: the drivers' pods tolerate every taint, no Deployment is
// made for a policy, and the rdma-plugin serves the pools, so that no container of a device plugin exists.
func needsNoAction(path string) bool {
	switch path {
	case "tolerations", "deploymentTolerations", "deploymentNodeAffinity", "devicePlugin.containerResources",
		"rdmaSharedDevicePlugin.containerResources":
		return true
	}
	return false
}

// missing returns the highest paths of asked that request something and are absent from used.
func missing(path string, asked, used any, report func(path string)) {
	if asksNothing(asked) || needsNoAction(path) {
		return
	}
	if used == nil {
		report(path)
		return
	}
	switch a := asked.(type) {
	case map[string]any:
		below, _ := used.(map[string]any)
		for _, key := range slices.Sorted(maps.Keys(a)) {
			missing(path+"."+key, a[key], below[key], report)
		}
	case []any:
		below, _ := used.([]any)
		for i := range a {
			var counterpart any
			if i < len(below) {
				counterpart = below[i]
			}
			missing(fmt.Sprintf("%s[%d]", path, i), a[i], counterpart, report)
		}
	}
}

// asksNothing reports whether a value equals its absence: empty, false or 0, or an object that is switched off.
func asksNothing(value any) bool {
	switch v := value.(type) {
	case nil:
		return true
	case bool:
		return !v
	case string:
		return v == ""
	case int64:
		return v == 0
	case float64:
		return v == 0
	case map[string]any:
		if switchedOff(v) {
			return true
		}
		for _, field := range v {
			if !asksNothing(field) {
				return false
			}
		}
		return true
	case []any:
		return !slices.ContainsFunc(v, func(element any) bool { return !asksNothing(element) })
	}
	return false
}

// switchedOff reports whether an object has the switch of the network operator's optional parts, and it is off: psp: {enabled: false}.
func switchedOff(object map[string]any) bool {
	return object["enabled"] == false || object["enable"] == false
}

// named lists, for people, the fields of a section that were not used.
func named(section string, paths []string, upgrade *mellanox.UpgradePolicySpec) string {
	var text strings.Builder
	text.WriteString("not served: ")
	for i, path := range paths {
		if i > 0 && text.Len()+len(path) > maxNamed {
			fmt.Fprintf(&text, ", and %d more", len(paths)-i)
			break
		}
		if i > 0 {
			text.WriteString(", ")
		}
		text.WriteString(path[:min(len(path), maxNamed)])
	}
	if len(paths) == 1 && paths[0] == section {
		text.WriteString(", which is the network operator's alone; docs/resources/nicclusterpolicy.md names the replacement")
	}
	if section == "ofedDriver" && len(unservedUpgrade(upgrade)) > 0 {
		text.WriteString("; so pods of the driver are not replaced automatically: drain each node and delete its pod, or leave that out")
	}
	return text.String()
}
