package controlplane

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"gpufabric.io/build/toolchain"
)

// Binaries returns the paths of Programs, building from the module proxy what neither the PATH nor the cache has; progress
// goes to standard error.
func Binaries(ctx context.Context) (map[string]string, error) { return BinariesOf(ctx, "") }

// BinariesOf is Binaries for another minor version of Kubernetes, such as 1.35; empty: toolchain.Kubernetes.
func BinariesOf(ctx context.Context, minor string) (map[string]string, error) {
	names := map[string]string{}
	for _, program := range programs {
		names[program] = program
	}
	if usual := toolchain.Kubernetes; minor != "" && !strings.HasPrefix(usual, "v"+minor+".") {
		if _, ok := toolchain.OtherKubernetes[minor]; !ok {
			return nil, fmt.Errorf("run Kubernetes %q: there are programs of %s and %s", minor, usual,
				strings.Join(slices.Sorted(maps.Keys(toolchain.OtherKubernetes)), ", "))
		}
		for _, program := range programs {
			if program != "etcd" {
				names[program] = toolchain.OfKubernetes(program, minor)
			}
		}
	}
	paths, err := toolchain.Ensure(ctx, slices.Collect(maps.Values(names))...)
	if err != nil {
		return nil, fmt.Errorf("have the control plane's programs: %w", err)
	}
	for program, name := range names {
		names[program] = paths[name]
	}
	return names, nil
}
