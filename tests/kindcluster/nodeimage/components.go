package nodeimage

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"gpufabric.io/build/images"
	"gpufabric.io/build/repository"
	"gpufabric.io/build/toolchain"
)

// sandboxImage is the pause image in kind's containerd configuration; kubeadm's list names a newer one.
const sandboxImage = "registry.k8s.io/pause:3.10"

// componentImages packs the images that kubeadm and containerd will pull, under the names they use, into one archive.
type componentImages struct{ *recipe }

func (componentImages) Name() string { return "Images of the control plane" }

func (c componentImages) Execute(ctx context.Context) error {
	said, err := exec.CommandContext(ctx, c.tools["kubeadm"], "config", "images", "list", "--kubernetes-version",
		toolchain.Kubernetes).Output()
	if err != nil {
		return fmt.Errorf("ask kubeadm for its images: %w", err)
	}
	named := map[name.Reference]v1.Image{}
	for _, ref := range append(strings.Fields(string(said)), sandboxImage) {
		tag, err := name.NewTag(ref)
		if err != nil {
			return fmt.Errorf("kubeadm's image %q: %w", ref, err)
		}
		image, err := c.image(ctx, path.Base(tag.RepositoryStr()))
		if err != nil {
			return err
		}
		named[tag] = image
	}
	if err := os.MkdirAll(c.cache, 0o755); err != nil {
		return err
	}
	c.archive = filepath.Join(c.cache, "images.tar")
	if err := tarball.MultiRefWriteToFile(c.archive+".unfinished", named); err != nil {
		return fmt.Errorf("write %s: %w", c.archive, err)
	}
	return os.Rename(c.archive+".unfinished", c.archive)
}

// image makes the image of one component. It has only the static binary, except where that calls other commands.
func (c componentImages) image(ctx context.Context, component string) (v1.Image, error) {
	file := images.File{Path: "/usr/local/bin/" + component, From: c.tools[component]}
	config := v1.Config{Entrypoint: []string{file.Path}}
	var layers []v1.Layer
	switch component {
	case "pause":
		pause, err := c.buildPause(ctx)
		if err != nil {
			return nil, err
		}
		file = images.File{Path: "/pause", From: pause}
		config.Entrypoint = []string{"/pause"}
	case "coredns":
		file.Path = "/coredns"
		config.Entrypoint = []string{"/coredns"}
	case "kube-proxy":
		// kube-proxy runs iptables, nft and conntrack.
		base, err := tarball.LayerFromFile(c.baseTar, tarball.WithCompressedCaching)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", c.baseTar, err)
		}
		layers = append(layers, base)
	}
	if file.From == "" {
		return nil, fmt.Errorf("kubeadm wants an image of %q, which the toolchain does not build", component)
	}
	layer, err := images.Layer(file)
	if err != nil {
		return nil, fmt.Errorf("image of %s: %w", component, err)
	}
	return images.New(runtime.GOARCH, config, append(layers, layer)...)
}

func (c componentImages) buildPause(ctx context.Context) (string, error) {
	root, err := repository.Root()
	if err != nil {
		return "", err
	}
	path := filepath.Join(c.cache, "pause")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, "./kindcluster/nodeimage/pause")
	cmd.Dir = filepath.Join(root, "tests")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build pause: %w\n%s", err, said)
	}
	return path, nil
}
