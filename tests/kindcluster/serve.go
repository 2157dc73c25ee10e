package kindcluster

import (
	"context"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"gpufabric.io/tests/docker"
	"gpufabric.io/tests/images"
	"gpufabric.io/tests/repository"
	"gpufabric.io/tests/steps"
	"gpufabric.io/tests/toolchain"
)

// Serve pushes the project's images, as `make build` left them, into the cluster's registry, and, where nothing can be pulled, stand-ins for the
// published images that manifests name.
func (c *Cluster) Serve(ctx context.Context, printer *steps.Printer) error {
	root, err := repository.Root()
	if err != nil {
		return err
	}
	products, err := images.Products(root)
	if err != nil {
		return err
	}
	var list []steps.Step
	for _, product := range products {
		list = append(list, serve{c, product.Name, func(context.Context) (v1.Image, error) { return product.Build(root, runtime.GOARCH) }})
	}
	if !c.Published {
		cache, err := toolchain.CacheRoot()
		if err != nil {
			return err
		}
		standIns := images.StandIns()
		for _, name := range slices.Sorted(maps.Keys(standIns)) {
			list = append(list, serve{c, name, func(ctx context.Context) (v1.Image, error) {
				return images.StandIn(ctx, filepath.Join(cache, "nodeimage"), standIns[name])
			}})
		}
	}
	_, err = printer.Run(ctx, list...)
	return err
}

// serve makes one image and pushes it.
type serve struct {
	cluster   *Cluster
	reference string
	make      func(ctx context.Context) (v1.Image, error)
}

func (s serve) Name() string { return "Serve " + s.reference }

func (s serve) Execute(ctx context.Context) error {
	image, err := s.make(ctx)
	if err != nil {
		return err
	}
	if err := s.cluster.Registry.Push(ctx, s.reference, image); err != nil {
		return err
	}
	return s.cluster.forget(ctx, s.reference)
}

// forget removes the image from every node, so that pods started from now on get the one that was pushed under the same name.
func (c *Cluster) forget(ctx context.Context, reference string) error {
	tag, err := name.NewTag(reference)
	if err != nil {
		return err
	}
	// containerd spells Docker Hub's host docker.io, this library index.docker.io.
	full := strings.Replace(tag.Name(), name.DefaultRegistry, "docker.io", 1)
	for _, node := range c.Nodes {
		if _, err := docker.Run(ctx, "exec", node, "ctr", "--namespace", "k8s.io", "images", "rm", full); err != nil {
			return err
		}
	}
	return nil
}
