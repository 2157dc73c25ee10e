package images

import (
	"context"
	"fmt"
	"runtime"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"gpufabric.io/tests/rootfs"
)

// StandIn is served under the name of a published image that manifests ask for, where nothing can be pulled: a small Debian with bash and coreutils. It
// stands in for a shell to look around with, not for what else the published image holds.
type StandIn struct {
	Name    string
	Command []string // what it runs unless told otherwise
}

// StandIns are the images that the seed's pods name. Those whose programs serve or train do nothing, for ever, in their place.
func StandIns() []StandIn {
	shell, idle := []string{"bash"}, []string{"sleep", "infinity"}
	return []StandIn{
		{"ubuntu:22.04", shell},
		{"ubuntu:24.04", shell},
		{"nvcr.io/nvidia/tensorflow:22.07-tf2-py3", idle},
		{"nvidia/cuda:9.0-devel", idle},
		{"rdma-test:v1", idle},
	}
}

// StandInLayer is what all stand-ins hold; its root file system is kept in the cache directory.
func StandInLayer(ctx context.Context, cache string) (v1.Layer, error) {
	tar, err := rootfs.Base().Tar(ctx, cache)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromFile(tar, tarball.WithCompressedCaching)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", tar, err)
	}
	return layer, nil
}

// Build makes the stand-in of the shared layer.
func (s StandIn) Build(layer v1.Layer) (v1.Image, error) {
	return New(runtime.GOARCH, v1.Config{Cmd: s.Command}, layer)
}
