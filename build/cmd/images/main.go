// Command images packs the images that this repository ships into dist/, from what `make build` and `make cross` built.
//
//	images [-arch amd64,arm64]
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"gpufabric.io/build/images"
	"gpufabric.io/build/steps"
)

func main() {
	architectures := flag.String("arch", "amd64,arm64", "architectures to pack, from what make build and make cross built")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := archive(ctx, steps.NewPrinter(os.Stderr), strings.Split(*architectures, ","))
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

// archive writes every product as an archive that `docker load` and `ctr images import` take: dist/NAME-VERSION-ARCHITECTURE.tar.
func archive(ctx context.Context, printer *steps.Printer, architectures []string) error {
	root, products, err := images.Checkout()
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
