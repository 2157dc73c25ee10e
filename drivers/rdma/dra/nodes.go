package dra

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// existing makes a function that finds those of several device nodes that are in a directory, and returns their paths.
func existing(directory string) func([]string) ([]string, error) {
	return func(names []string) ([]string, error) {
		var found []string
		for _, name := range names {
			if name == "" {
				continue // The port has no such device.
			}
			path := filepath.Join(directory, name)
			_, err := os.Stat(path)
			switch {
			case err == nil:
				found = append(found, path)
			case !errors.Is(err, os.ErrNotExist):
				return nil, fmt.Errorf("device node: %w", err)
			}
		}
		return found, nil
	}
}
