package images

import (
	"context"
	"fmt"
	"runtime"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"gpufabric.io/tests/rootfs"
)

// StandIns are the names of published images that manifests ask for and that, where nothing can be pulled, are served as a small Debian with bash
// and coreutils. They stand in for a shell to look around with, not for what else those images hold; those whose programs serve or train do nothing, for
// ever, in their place.
func StandIns() map[string][]string {
	shell, idle := []string{"bash"}, []string{"sleep", "infinity"}
	return map[string][]string{
		"ubuntu:22.04": shell,
		"ubuntu:24.04": shell,
		"nvcr.io/nvidia/tensorflow:22.07-tf2-py3": idle,
		"nvidia/cuda:9.0-devel":                   idle,
		"rdma-test:v1":                            idle,
	}
}

// StandIn makes the image that is served under one of those names, with the command that it runs unless told otherwise; its root file system is kept in
// the cache directory.
func StandIn(ctx context.Context, cache string, command []string) (v1.Image, error) {
	tar, err := rootfs.Base().Tar(ctx, cache)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromFile(tar, tarball.WithCompressedCaching)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", tar, err)
	}
	return New(runtime.GOARCH, v1.Config{Cmd: command}, layer)
}
