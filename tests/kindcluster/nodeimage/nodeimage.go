// Package nodeimage provides the image that kind's nodes run from: kind's published one where it can be pulled, else one made here from
// Debian packages, kind's own base files (from its Go module) and commands that the toolchain builds.
package nodeimage

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"gpufabric.io/build/steps"
	"gpufabric.io/build/toolchain"
	"gpufabric.io/tests/docker"
	"gpufabric.io/tests/rootfs"
)

// Published is kind's own image for the Kubernetes version of these tests.
const Published = toolchain.NodeImage

// A registry may take this long to report whether it has the image. A machine without a registry fails much sooner.
const registryPatience = 20 * time.Second

//go:embed setup.sh
var setup string

// Image is a node image that Docker has.
type Image struct {
	Name      string
	Published bool // kind's own, with its network plugin and storage provisioner; else made here, without them
}

// Ensure returns a node image, in this order: the one made here before, kind's published one, one made now. Progress goes to the printer.
func Ensure(ctx context.Context, printer *steps.Printer) (Image, error) {
	own := Image{Name: OwnName()}
	if docker.HasImage(ctx, own.Name) {
		return own, nil
	}
	published, err := locked()
	if err != nil {
		return Image{}, err
	}
	if docker.HasImage(ctx, published) {
		return Image{Name: published, Published: true}, nil
	}
	if os.Getenv(toolchain.ReleasesVariable) != "off" && reachable(ctx, published) {
		if _, err := printer.Run(ctx, pull{published}); err != nil {
			return Image{}, err
		}
		return Image{Name: published, Published: true}, nil
	}
	fmt.Fprintf(printer, "%s cannot be pulled here; making a node image, which takes up to 15 min on two idle cores and keeps what it "+
		"builds\n", published)
	return own, build(ctx, printer, own.Name)
}

// locked is the published image, by its digest where the toolchain's lock has one.
func locked() (string, error) {
	digest, err := toolchain.LockedImage(Published)
	if err != nil || digest == "" {
		return Published, err
	}
	return Published + "@" + digest, nil
}

func reachable(ctx context.Context, published string) bool {
	ctx, cancel := context.WithTimeout(ctx, registryPatience)
	defer cancel()
	_, err := docker.Run(ctx, "manifest", "inspect", published)
	return err == nil
}

// OwnName is the name of the image made here. Its tag changes whenever anything that the image is made of does.
func OwnName() string {
	hash := sha256.New()
	fmt.Fprintln(hash, toolchain.Kubernetes, toolchain.Etcd, toolchain.CoreDNS, toolchain.Containerd, toolchain.CRITools, toolchain.Kind,
		runtime.GOARCH)
	fmt.Fprint(hash, rootfs.Node().Key(), rootfs.Base().Key(), setup, imageConfig, storageClass)
	return "gpufabric/node:" + toolchain.Kubernetes + "-" + hex.EncodeToString(hash.Sum(nil)[:6])
}

// stopSignal makes systemd power off. SIGTERM would make it start itself again.
const stopSignal = "SIGRTMIN+3"

// imageConfig is the image's configuration, as in kind's Dockerfile.
var imageConfig = strings.Join([]string{
	"ENV container=docker",
	`ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]`,
	"CMD []",
}, "\n")

// pull fetches kind's published image.
type pull struct{ image string }

func (p pull) Name() string { return "Pull " + p.image + " (about 400 MB)" }

func (p pull) Execute(ctx context.Context) error {
	_, err := docker.Run(ctx, "pull", "--quiet", p.image)
	return err
}

// recipe has the data that the steps of a build pass to each other.
type recipe struct {
	image   string // name of the image being made
	printer *steps.Printer
	cache   string

	tools   map[string]string // command name to path
	nodeTar string            // root file systems
	baseTar string
	archive string // the images that kubeadm wants
}

func build(ctx context.Context, printer *steps.Printer, image string) error {
	cache, err := toolchain.CacheRoot()
	if err != nil {
		return err
	}
	r := &recipe{image: image, printer: printer, cache: filepath.Join(cache, "nodeimage")}
	_, err = printer.Run(ctx, commands{r}, rootFileSystems{r}, componentImages{r}, assemble{r})
	return err
}

// commands provides Kubernetes' own commands, containerd, etcd and coredns.
type commands struct{ *recipe }

func (commands) Name() string {
	return "Kubernetes " + toolchain.Kubernetes + ", containerd, etcd, coredns"
}

func (c commands) Execute(ctx context.Context) error {
	tools, err := toolchain.New(c.printer)
	if err != nil {
		return err
	}
	c.tools, err = tools.Ensure(ctx, toolchain.NodeTools()...)
	return err
}

// rootFileSystems makes the Debian trees.
type rootFileSystems struct{ *recipe }

func (rootFileSystems) Name() string { return "Debian root file systems" }

func (r rootFileSystems) Execute(ctx context.Context) error {
	var err error
	if r.nodeTar, err = rootfs.Node().Tar(ctx, r.cache); err != nil {
		return err
	}
	r.baseTar, err = rootfs.Base().Tar(ctx, r.cache)
	return err
}
