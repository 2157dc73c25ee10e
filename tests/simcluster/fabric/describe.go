package fabric

import (
	"context"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"

	"gpufabric.io/fakes/profile"
	"gpufabric.io/tests/objects"
	"gpufabric.io/tests/simcluster/cluster"
)

// Describe describes nodes of a profile (a name or a file) as `fakefabric objects` does: labels of GPU feature discovery and of node
// feature discovery, capacity, and the ResourceSlices of slices (objects.GPUFabric, objects.NVIDIA, or empty: drivers publish them).
// extended puts nvidia.com/gpu into allocatable.
func Describe(profileName, slices string, extended bool) (cluster.Describe, error) {
	if slices != "" && slices != objects.GPUFabric && slices != objects.NVIDIA {
		return nil, fmt.Errorf("slices of driver %q: allowed are %s and %s, or nothing where drivers publish them", slices, objects.GPUFabric,
			objects.NVIDIA)
	}
	p, err := profile.Load(profileName)
	if err != nil {
		return nil, err
	}
	options := objects.Options{Profile: p, Driver: slices, Extended: extended}
	return func(ctx context.Context, index int, dir string) (cluster.Described, error) {
		node := p.Node(index)
		node.Hostname = cluster.NodeName(index)
		described := cluster.Described{Machine: options.Node(node)}
		if slices == "" {
			return described, nil
		}
		published, err := options.Slices(ctx, node, HardwareOf(dir))
		described.Slices = append([]*resourceapi.ResourceSlice{}, published...) // not nil for a machine that has none
		return described, err
	}, nil
}
