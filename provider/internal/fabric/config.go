package fabric

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
)

// PoolOfConfig finds the entry of a resource in the RDMA device plugin's config.json and validates it. Unknown keys are errors, every
// mistake of the entry is reported.
func PoolOfConfig(text, resourceName string) (*v1alpha1.RDMAPoolConfig, error) {
	var file struct {
		PeriodicUpdateInterval *int                      `json:"periodicUpdateInterval"`
		ConfigList             []v1alpha1.RDMAPoolConfig `json:"configList"`
	}
	decoder := json.NewDecoder(bytes.NewBufferString(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&file); err != nil {
		return nil, fmt.Errorf("not a config.json of the RDMA device plugin: %w", err)
	}
	at := slices.IndexFunc(file.ConfigList, func(c v1alpha1.RDMAPoolConfig) bool { return c.ResourceName == resourceName })
	if at < 0 {
		var names []string
		for _, c := range file.ConfigList {
			names = append(names, c.ResourceName)
		}
		return nil, fmt.Errorf("configList has no resourceName %q: it has %s", resourceName, strings.Join(names, ", "))
	}
	entry := &file.ConfigList[at]
	if errs := entry.Validate(field.NewPath("configList").Index(at)); len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	return entry, nil
}

// ParseMIGParted reads a configuration file of mig-parted. Unknown keys are errors, every mistake is reported.
func ParseMIGParted(text string) (*v1alpha1.MIGPartedConfig, error) {
	config := &v1alpha1.MIGPartedConfig{}
	if err := yaml.UnmarshalStrict([]byte(text), config); err != nil {
		return nil, fmt.Errorf("not a configuration file of mig-parted: %w", err)
	}
	for name := range config.Layouts {
		// The validation requires a chosen layout; which one does not matter for the others.
		spec := v1alpha1.MIGLayoutSpec{Layout: name, Config: *config}
		if errs := spec.Validate(nil); len(errs) > 0 {
			return nil, errs.ToAggregate()
		}
		return config, nil
	}
	return nil, errors.New("mig-configs has no layout")
}
