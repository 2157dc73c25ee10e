package kindcluster

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"gpufabric.io/build/images"
	"gpufabric.io/build/steps"
	"gpufabric.io/build/toolchain"
	"gpufabric.io/tests/docker"
	"gpufabric.io/tests/kindcluster/standin"
)

// Serve pushes the project's images, as `make build` left them, into the cluster's registry, and, where nothing can be pulled, stand-ins
// for the published images that manifests name. names are products' names without registry and tag; none means all.
func (c *Cluster) Serve(ctx context.Context, printer *steps.Printer, names ...string) error {
	root, products, err := images.Checkout()
	if err != nil {
		return err
	}
	var list []steps.Step
	for _, product := range products {
		if len(names) == 0 || slices.Contains(names, product.ShortName()) {
			list = append(list, serve{c, product, root})
		}
	}
	if len(names) > 0 && len(list) != len(names) {
		return fmt.Errorf("serve images %q: there are %q", names, images.ShortNames(products))
	}
	if !c.Published {
		list = append(list, serveStandIns{c, standin.Images()})
	}
	_, err = printer.Run(ctx, list...)
	return err
}

// serve makes one of the project's images and pushes it.
type serve struct {
	cluster *Cluster
	product images.Product
	root    string
}

func (s serve) Name() string { return "Serve " + s.product.Name }

func (s serve) Execute(ctx context.Context) error {
	image, err := s.product.Build(s.root, runtime.GOARCH)
	if err != nil {
		return err
	}
	if err := s.cluster.Registry.Push(ctx, s.product.Name, image); err != nil {
		return err
	}
	return s.cluster.forget(ctx, s.product.Name)
}

// ServeStandIns pushes images under the names of published ones, where nothing can be pulled.
func (c *Cluster) ServeStandIns(ctx context.Context, printer *steps.Printer, images ...standin.Image) error {
	if c.Published {
		return nil
	}
	_, err := printer.Run(ctx, serveStandIns{c, images})
	return err
}

// serveStandIns pushes an image under each name in manifests that cannot be pulled.
type serveStandIns struct {
	cluster *Cluster
	images  []standin.Image
}

func (serveStandIns) Name() string { return "Serve stand-ins for images that cannot be pulled" }

func (s serveStandIns) Execute(ctx context.Context) error {
	cache, err := toolchain.CacheRoot()
	if err != nil {
		return err
	}
	layers := map[string]v1.Layer{} // by the key of their recipe
	for _, image := range s.images {
		key := image.Base.Key()
		if layers[key] == nil {
			if layers[key], err = standin.BaseLayer(ctx, image.Base, filepath.Join(cache, "nodeimage")); err != nil {
				return err
			}
		}
		built, err := image.Build(layers[key])
		if err != nil {
			return err
		}
		if err := s.cluster.Registry.Push(ctx, image.Name, built); err != nil {
			return err
		}
	}
	return nil
}

// ServeEarlier pushes the drivers' image as `make build` left it in a checkout of an earlier version, under a tag of its own.
func (c *Cluster) ServeEarlier(ctx context.Context, checkout, tag string) error {
	products, err := images.Products(checkout)
	if err != nil {
		return err
	}
	drivers := products[0]
	image, err := drivers.Build(checkout, runtime.GOARCH)
	if err != nil {
		return err
	}
	repository, _, _ := strings.Cut(drivers.Name, ":")
	return c.Registry.Push(ctx, repository+":"+tag, image)
}

// Program is an image of one static program, under a name in manifests.
type Program struct {
	Reference string // such as docker.io/kueue/kueue:v0.19.1
	From      string // the program on this machine
	Path      string // where manifests look for it in the image, such as /manager
	User      string // as in an image's configuration; empty is root
}

// ServeProgram pushes an image that holds the program and runs it.
func (c *Cluster) ServeProgram(ctx context.Context, program Program) error {
	layer, err := images.Layer(images.File{Path: program.Path, From: program.From})
	if err != nil {
		return err
	}
	image, err := images.New(runtime.GOARCH, v1.Config{Entrypoint: []string{program.Path}, User: program.User}, layer)
	if err != nil {
		return err
	}
	return c.Registry.Push(ctx, program.Reference, image)
}

// forget removes the image from every node, so that new pods get the image that was pushed under the same name.
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
