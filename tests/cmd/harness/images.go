package main

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/spf13/cobra"

	"gpufabric.io/tests/images"
	"gpufabric.io/tests/kindcluster"
	"gpufabric.io/tests/repository"
	"gpufabric.io/tests/steps"
)

func imagesCommand() *cobra.Command {
	var (
		push          bool
		cluster       string
		architectures []string
	)
	command := &cobra.Command{
		Use:   "images",
		Short: "Pack the project's images for amd64 and arm64 into dist/, or push this machine's into the cluster's registry",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			printer := steps.NewPrinter(os.Stderr)
			if push {
				c, err := kindcluster.Find(cluster)
				if err != nil {
					return err
				}
				return c.Serve(cmd.Context(), printer)
			}
			return archive(cmd.Context(), printer, architectures)
		},
	}
	flags := command.Flags()
	flags.BoolVar(&push, "push", false, "push into the cluster's registry, with stand-ins for what cannot be pulled")
	flags.StringVar(&cluster, "name", kindcluster.DefaultName, "with --push: the cluster's name")
	flags.StringSliceVar(&architectures, "arch", []string{"amd64", "arm64"}, "without --push: architectures to pack, from what make build and make cross built")
	return command
}

// archive writes every product as an archive that `docker load` and `ctr images import` take: dist/NAME-VERSION-ARCHITECTURE.tar.
func archive(ctx context.Context, printer *steps.Printer, architectures []string) error {
	root, err := repository.Root()
	if err != nil {
		return err
	}
	products, err := images.Products(root)
	if err != nil {
		return err
	}
	dist := filepath.Join(root, "dist")
	if err := os.MkdirAll(dist, 0o755); err != nil {
		return err
	}
	var list []steps.Step
	for _, architecture := range architectures {
		for _, product := range products {
			list = append(list, pack{product, root, dist, architecture})
		}
	}
	_, err = printer.Run(ctx, list...)
	return err
}

// pack writes one image into dist.
type pack struct {
	images.Product
	root, dist, architecture string
}

func (p pack) path() string {
	base := strings.ReplaceAll(path.Base(p.Product.Name), ":", "-")
	return filepath.Join(p.dist, fmt.Sprintf("%s-%s.tar", base, p.architecture))
}

func (p pack) Name() string { return fmt.Sprintf("%s for %s", p.Product.Name, p.architecture) }

func (p pack) Execute(context.Context) error {
	image, err := p.Build(p.root, p.architecture)
	if err != nil {
		return err
	}
	tag, err := name.NewTag(p.Product.Name)
	if err != nil {
		return err
	}
	return tarball.WriteToFile(p.path(), tag, image)
}
