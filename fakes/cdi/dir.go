package cdi

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"go.yaml.in/yaml/v3"
)

// Describe writes the specifications of a rendered node to a directory of the container runtime's.
func Describe(directory string, o Options) error {
	specs, err := Specs(o)
	if err != nil {
		return err
	}
	return Write(directory, specs)
}

// Write writes the specifications to a directory of the container runtime's (usually /var/run/cdi), which is made where it is missing,
// and removes those of kinds that the node no longer has. Where a file of others has one of the kinds it writes nothing: the runtime
// would refuse the devices of both.
func Write(directory string, specs []Spec) error {
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return fmt.Errorf("CDI directory: %w", err)
	}
	if err := conflict(directory, specs); err != nil {
		return err
	}
	kept := map[string]bool{}
	for _, s := range specs {
		data, err := json.MarshalIndent(s, "", "  ")
		if err != nil {
			return fmt.Errorf("CDI specification of %s: %w", s.Kind, err)
		}
		name := fileName(s.Kind)
		kept[name] = true
		// Runtimes read files that end in .json or .yaml alone, so they never meet half of one.
		path := filepath.Join(directory, name)
		if err := os.WriteFile(path+".new", append(data, '\n'), 0o644); err != nil {
			return fmt.Errorf("CDI specification of %s: %w", s.Kind, err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			return fmt.Errorf("CDI specification of %s: %w", s.Kind, err)
		}
	}
	return remove(directory, kept)
}

// Remove removes the specifications of a node that has no hardware any more.
func Remove(directory string) error { return remove(directory, nil) }

func remove(directory string, kept map[string]bool) error {
	var errs []error
	for _, kind := range []string{GPUKind, NodeKind} {
		name := fileName(kind)
		for _, path := range []string{name, name + ".new"} {
			if kept[path] {
				continue
			}
			if err := os.Remove(filepath.Join(directory, path)); err != nil && !errors.Is(err, os.ErrNotExist) {
				errs = append(errs, fmt.Errorf("CDI specification of %s: %w", kind, err))
			}
		}
	}
	return errors.Join(errs...)
}

// conflict returns an error where a file that is not ours has one of the kinds. Files that cannot be read as CDI are the runtime's to
// reject.
func conflict(directory string, specs []Spec) error {
	for _, pattern := range []string{"*.json", "*.yaml"} {
		files, err := filepath.Glob(filepath.Join(directory, pattern))
		if err != nil {
			return fmt.Errorf("CDI directory: %w", err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				return fmt.Errorf("CDI directory: %w", err)
			}
			var other struct{ Kind string }
			if yaml.Unmarshal(data, &other) != nil {
				continue
			}
			for _, s := range specs {
				if s.Kind == other.Kind && filepath.Base(file) != fileName(s.Kind) {
					return fmt.Errorf("%s has devices of the kind %s already, so a runtime would refuse both: remove it, or leave the fakes' CDI "+
						"specifications out (agent: --cdi-root \"\", chart: cdiRoot)", file, s.Kind)
				}
			}
		}
	}
	return nil
}
