// Package platform has the places and rights that differ between the platforms that the chart's value `platform` names.
package platform

import (
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// Generic is the platform whose values hold where another one has none.
const Generic = "generic"

// table is platforms.yaml; the chart has a copy of it in files/.
//
//go:embed platforms.yaml
var table []byte

// Preset is an entry of platforms.yaml. Paths are those of the node.
type Preset struct {
	DriverRoot        string              `json:"driverRoot"`
	DriverDirectories []string            `json:"driverDirectories"`
	StateDir          string              `json:"stateDir"`
	KubeletRoot       string              `json:"kubeletRoot"`
	CDIRoot           string              `json:"cdiRoot"`
	Runtimes          []string            `json:"runtimes"`
	Tolerations       []corev1.Toleration `json:"tolerations"`
	SCC               bool                `json:"scc"`
	CriticalQuota     bool                `json:"criticalQuota"`
	PodSecurity       string              `json:"podSecurity"`
}

// Table is platforms.yaml as it is embedded.
func Table() []byte { return slices.Clone(table) }

// All returns every platform by its name, each with the values of generic where it has none of its own.
func All() (map[string]Preset, error) {
	entries := map[string]map[string]any{}
	if err := yaml.UnmarshalStrict(table, &entries); err != nil {
		return nil, fmt.Errorf("read the table of platforms: %w", err)
	}
	all := map[string]Preset{}
	for name, own := range entries {
		whole := maps.Clone(entries[Generic])
		maps.Copy(whole, own)
		text, err := yaml.Marshal(whole)
		var preset Preset
		if err == nil {
			err = yaml.UnmarshalStrict(text, &preset)
		}
		if err != nil {
			return nil, fmt.Errorf("read platform %s: %w", name, err)
		}
		all[name] = preset
	}
	return all, nil
}

// Of returns a platform by its name; "" is generic. The error lists the platforms that there are.
func Of(name string) (Preset, error) {
	if name == "" {
		name = Generic
	}
	all, err := All()
	if err != nil {
		return Preset{}, err
	}
	preset, has := all[name]
	if !has {
		return preset, fmt.Errorf("platform: %q is none of %s: set platform: generic, and the values of hardware, kubelet, cdi and stateDir "+
			"that differ on the nodes (docs/platforms.md)", name, strings.Join(slices.Sorted(maps.Keys(all)), ", "))
	}
	return preset, nil
}
