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
// and coreutils. They stand in for a shell to look around with, not for what else those images hold.
func StandIns() []string { return []string{"ubuntu:22.04", "ubuntu:24.04"} }

// StandIn makes the image that is served under those names; its root file system is kept in the cache directory.
func StandIn(ctx context.Context, cache string) (v1.Image, error) {
	tar, err := rootfs.Base().Tar(ctx, cache)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromFile(tar, tarball.WithCompressedCaching)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", tar, err)
	}
	return New(runtime.GOARCH, v1.Config{Cmd: []string{"bash"}}, layer)
}
