package edits

import (
	"fmt"
	"os"

	"sigs.k8s.io/yaml"
	cdilib "tags.cncf.io/container-device-interface/pkg/cdi"
	specs "tags.cncf.io/container-device-interface/specs-go"
)

// ReadExtra reads a site's own container edits: a YAML or JSON file in the form of a CDI spec's containerEdits. An empty path is none.
func ReadExtra(path string) (specs.ContainerEdits, error) {
	var e specs.ContainerEdits
	if path == "" {
		return e, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return e, fmt.Errorf("read extra container edits: %w", err)
	}
	if err := yaml.UnmarshalStrict(data, &e); err != nil {
		return e, fmt.Errorf("read extra container edits %s: %w (allowed are the fields of a CDI spec's containerEdits)", path, err)
	}
	if err := (&cdilib.ContainerEdits{ContainerEdits: &e}).Validate(); err != nil {
		return e, fmt.Errorf("extra container edits %s: %w", path, err)
	}
	return e, nil
}
