// Package standin makes images that are served under the names of published ones, where nothing can be pulled.
package standin

import (
	"context"
	"fmt"
	"runtime"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"gpufabric.io/build/images"
	"gpufabric.io/tests/rootfs"
)

// Image is served under the name of a published image in manifests, where images cannot be pulled: a small Debian with
// bash and coreutils. It offers a shell, and no other part of the published image.
type Image struct {
	Name    string
	Command []string      // its default program
	Base    rootfs.Recipe // the Debian
	Files   []images.File // laid over it
}

// Images are those that the seed's pods name. Instead of programs that serve or train, they have programs that wait for ever.
func Images() []Image {
	shell, idle, base := []string{"bash"}, []string{"sleep", "infinity"}, rootfs.Base()
	return []Image{
		{"ubuntu:22.04", shell, base, nil},
		{"ubuntu:24.04", shell, base, nil},
		{"nvcr.io/nvidia/tensorflow:22.07-tf2-py3", idle, base, nil},
		{"nvidia/cuda:9.0-devel", idle, base, nil},
		{"rdma-test:v1", idle, base, nil},
		{"python:3.9-slim", []string{"python"}, rootfs.Python(), nil},
		{"network-test:v1", idle, rootfs.Network(), nil},
		{"ghcr.io/nvidia/k8s-samples:nvbandwidth-v0.7-8d103163", shell, rootfs.MPI(), nvbandwidth()},
		{"registry.example/hps-benchmark", []string{"python"}, rootfs.Python(), hps()},
	}
}

// BaseLayer makes the layer of a Debian; its root file system is kept in the cache directory.
func BaseLayer(ctx context.Context, base rootfs.Recipe, cache string) (v1.Layer, error) {
	tar, err := base.Tar(ctx, cache)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromFile(tar, tarball.WithCompressedCaching)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", tar, err)
	}
	return layer, nil
}

// Build makes the stand-in on the layer of its Base.
func (i Image) Build(base v1.Layer) (v1.Image, error) {
	layers := []v1.Layer{base}
	if len(i.Files) > 0 {
		files, err := images.Layer(i.Files...)
		if err != nil {
			return nil, err
		}
		layers = append(layers, files)
	}
	return images.New(runtime.GOARCH, v1.Config{Cmd: i.Command}, layers...)
}
