package controlplane

import (
	"context"
	"fmt"

	"gpufabric.io/build/toolchain"
)

// Binaries returns the paths of Programs, building from the module proxy what neither the PATH nor the cache has; progress
// goes to standard error.
func Binaries(ctx context.Context) (map[string]string, error) {
	paths, err := toolchain.Ensure(ctx, programs[:]...)
	if err != nil {
		return nil, fmt.Errorf("have the control plane's programs: %w", err)
	}
	return paths, nil
}
