// Package repository finds the checkout that a test or tool works in.
package repository

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Root returns the checkout's top directory: the nearest one at or above the working directory that holds go.work.
func Root() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		_, err := os.Stat(filepath.Join(dir, "go.work"))
		if err == nil {
			return dir, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("no go.work at or above %s: run this inside the gpufabric checkout", start)
		}
	}
}
