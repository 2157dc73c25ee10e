package state

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// FallbackRoot is where the node lies when nothing says otherwise.
const FallbackRoot = "/var/lib/fakefabric"

// FindRoot gives the node that this program belongs to: FAKEFABRIC_ROOT's, else the one whose driver/usr/bin the program was started
// from, else the one at FallbackRoot. The libraries look in the same order.
func FindRoot() (string, error) {
	if root := os.Getenv("FAKEFABRIC_ROOT"); root != "" {
		if _, err := os.Stat(Path(root)); err != nil {
			return "", fmt.Errorf("FAKEFABRIC_ROOT is %s: %w", root, err)
		}
		return root, nil
	}
	candidates := []string{FallbackRoot}
	if exe, err := os.Executable(); err == nil {
		candidates = []string{filepath.Join(filepath.Dir(exe), "../../.."), FallbackRoot}
	}
	for _, root := range candidates {
		if _, err := os.Stat(Path(root)); err == nil {
			return filepath.Clean(root), nil
		}
	}
	return "", fmt.Errorf("no fake node at %s; render one with fakefabric render, or set FAKEFABRIC_ROOT", strings.Join(candidates, " or "))
}
