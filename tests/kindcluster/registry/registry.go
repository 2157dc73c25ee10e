// Package registry runs a small image registry beside a kind cluster's nodes and makes their containerd use it first, whatever host
// an image's name has. So images that cannot be pulled are served under their own names, and `imagePullPolicy: Always` and untagged
// names work.
package registry

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"gpufabric.io/build/images"
	"gpufabric.io/build/repository"
	"gpufabric.io/tests/docker"
)

const (
	port = "5000"
	// startPatience bounds the wait for a registry that was just started, which takes milliseconds on a machine with nothing else to do.
	startPatience = 2 * time.Minute
	startInterval = 50 * time.Millisecond
)

// Registry is a running registry.
type Registry struct {
	Container string // its name, by which the nodes reach it
	Address   string // where this machine reaches it, such as 127.0.0.1:32768
}

// Start runs a registry in a container on the Docker network, or returns the one that runs there already.
func Start(ctx context.Context, container, network string) (Registry, error) {
	if state, err := docker.Run(ctx, "inspect", "--format", "{{.State.Running}}", container); err != nil || state != "true" {
		if err := run(ctx, container, network); err != nil {
			return Registry{}, err
		}
	}
	published, err := docker.Run(ctx, "port", container, port+"/tcp")
	if err != nil {
		return Registry{}, err
	}
	r := Registry{Container: container, Address: strings.Fields(published)[0]}
	return r, r.wait(ctx)
}

func run(ctx context.Context, container, network string) error {
	image, err := makeImage(ctx)
	if err != nil {
		return fmt.Errorf("make the registry's image: %w", err)
	}
	_, _ = docker.Run(ctx, "rm", "--force", "--volumes", container) // one that stopped
	_, err = docker.Run(ctx, "run", "--detach", "--restart", "unless-stopped", "--name", container, "--network", network,
		"--publish", "127.0.0.1::"+port, image)
	return err
}

// makeImage builds the registry's program and gives Docker an image with it alone.
func makeImage(ctx context.Context) (string, error) {
	root, err := repository.Root()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "gpufabric-registry-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary := filepath.Join(dir, "registry")
	cmd := exec.CommandContext(ctx, "go", "build", "-ldflags", "-s -w", "-o", binary, "./cmd/registry")
	cmd.Dir = filepath.Join(root, "tests")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the registry: %w\n%s", err, said)
	}
	layer, err := images.Layer(images.File{Path: "/registry", From: binary})
	if err != nil {
		return "", err
	}
	image, err := images.New(runtime.GOARCH, v1.Config{Entrypoint: []string{"/registry"}}, layer)
	if err != nil {
		return "", err
	}
	tag, err := name.NewTag("gpufabric/registry:latest")
	if err != nil {
		return "", err
	}
	archive := filepath.Join(dir, "image.tar")
	if err := tarball.WriteToFile(archive, tag, image); err != nil {
		return "", err
	}
	_, err = docker.Run(ctx, "load", "--quiet", "--input", archive)
	return "gpufabric/registry:latest", err
}

// wait returns when the registry answers.
func (r Registry) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.Address+"/v2/", http.NoBody)
		if err != nil {
			return err
		}
		answer, err := http.DefaultClient.Do(request)
		if err == nil {
			_ = answer.Body.Close()
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the registry %s does not answer on %s: %w; see: docker logs %s", r.Container, r.Address, err, r.Container)
		case <-time.After(startInterval):
		}
	}
}

// Stop removes the registry and its images. A missing registry is no error.
func Stop(ctx context.Context, container string) error {
	_, err := docker.Run(ctx, "rm", "--force", "--volumes", container)
	if err != nil && strings.Contains(err.Error(), "No such container") {
		return nil
	}
	return err
}

// Push stores the image so that a node that pulls the reference (such as ubuntu:22.04 or ghcr.io/gpufabric/gpufabric:0.1.0) gets it.
func (r Registry) Push(ctx context.Context, reference string, image v1.Image) error {
	served, err := r.serves(reference)
	if err != nil {
		return err
	}
	if err := remote.Write(served, image, remote.WithContext(ctx)); err != nil {
		return fmt.Errorf("push %s to the cluster's registry: %w", reference, err)
	}
	return nil
}

// serves is where the registry keeps an image: containerd requests the repository from a mirror without its host.
func (r Registry) serves(reference string) (name.Reference, error) {
	asked, err := name.NewTag(reference)
	if err != nil {
		return nil, fmt.Errorf("image %q: %w", reference, err)
	}
	return name.NewTag(r.Address+"/"+asked.RepositoryStr()+":"+asked.TagStr(), name.Insecure)
}

// HostsFile is containerd's hosts.toml that makes it use this registry before the host in an image's name. It belongs in
// /etc/containerd/certs.d/_default.
func (r Registry) HostsFile() string {
	return fmt.Sprintf("[host.\"http://%s:%s\"]\n  capabilities = [\"pull\", \"resolve\"]\n", r.Container, port)
}
