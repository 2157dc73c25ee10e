package nodeimage

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"gpufabric.io/build/images"
	"gpufabric.io/build/repository"
	"gpufabric.io/build/toolchain"
	"gpufabric.io/tests/docker"
	"gpufabric.io/tests/rootfs"
)

// storageClass is the default class that kind expects: a class for manually created volumes, because no provisioner is available.
const storageClass = `apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: standard
  annotations: {storageclass.kubernetes.io/is-default-class: "true"}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
`

// assemble puts the parts together in a container and commits it.
type assemble struct{ *recipe }

func (assemble) Name() string { return "Put the node image together" }

func (a assemble) Execute(ctx context.Context) error {
	base := "gpufabric/node-rootfs:" + rootfs.Node().Key()
	if !docker.HasImage(ctx, base) {
		if _, err := docker.Run(ctx, "import", a.nodeTar, base); err != nil {
			return err
		}
	}
	// containerd needs privileges even to store images. A commit can set everything except the stop signal.
	container, err := docker.Run(ctx, "run", "--detach", "--privileged", "--stop-signal", stopSignal, "--network", "none", base, "sleep",
		"infinity")
	if err != nil {
		return err
	}
	defer func() { _, _ = docker.Run(context.WithoutCancel(ctx), "rm", "--force", "--volumes", container) }()

	files, err := a.files(ctx)
	if err != nil {
		return err
	}
	if err := copyInto(ctx, container, files); err != nil {
		return err
	}
	if _, err := docker.Script(ctx, container, setup, "K8S_VERSION="+toolchain.Kubernetes); err != nil {
		return err
	}
	args := []string{"commit"}
	for _, change := range strings.Split(imageConfig, "\n") {
		args = append(args, "--change", change)
	}
	_, err = docker.Run(ctx, append(args, container, a.image)...)
	return err
}

// files lists what the node has in addition to Debian's packages. Paths have no leading slash.
func (a assemble) files(ctx context.Context) ([]images.File, error) {
	list := []images.File{
		{Path: "kind/images.tar", Mode: 0o644, From: a.archive},
		{Path: "kind/manifests/default-storage.yaml", Mode: 0o644, Content: []byte(storageClass)},
	}
	for _, name := range []string{"kubeadm", "kubelet", "kubectl"} {
		list = append(list, images.File{Path: "usr/bin/" + name, Mode: 0o755, From: a.tools[name]})
	}
	for _, name := range []string{"containerd", "ctr", "containerd-shim-runc-v2", "crictl"} {
		list = append(list, images.File{Path: "usr/local/bin/" + name, Mode: 0o755, From: a.tools[name]})
	}
	kind, err := kindBaseFiles(ctx)
	if err != nil {
		return nil, err
	}
	err = filepath.WalkDir(kind, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		relative, err := filepath.Rel(kind, path)
		if err != nil {
			return err
		}
		// As in kind's Dockerfile: scripts may be run, everything else may be read.
		mode := int64(0o644)
		if dir := filepath.Dir(relative); filepath.Base(dir) == "bin" {
			mode = 0o755
		}
		list = append(list, images.File{Path: relative, Mode: mode, From: path})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read kind's base files in %s: %w", kind, err)
	}
	return list, nil
}

// kindBaseFiles returns the directory, in the Go module cache, of the files that kind's base image copies in.
func kindBaseFiles(ctx context.Context) (string, error) {
	root, err := repository.Root()
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "sigs.k8s.io/kind")
	module := filepath.Join(root, "build/toolchain/modules/kind")
	cmd.Dir, cmd.Env = module, append(os.Environ(), "GOWORK=off")
	if said, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("fetch kind's module: %w\n%s", err, said)
	}
	cmd = exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kind")
	cmd.Dir, cmd.Env = module, append(os.Environ(), "GOWORK=off")
	dir, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("find kind's module: %w", err)
	}
	return filepath.Join(strings.TrimSpace(string(dir)), "images/base/files"), nil
}

// copyInto streams the files into the container.
func copyInto(ctx context.Context, container string, files []images.File) error {
	r, w := io.Pipe()
	go func() { w.CloseWithError(writeEntries(w, files)) }()
	_, err := docker.RunWith(ctx, r, "cp", "-", container+":/")
	_ = r.CloseWithError(io.ErrClosedPipe) // ends the writer if docker did not read to the end
	return err
}

func writeEntries(w io.Writer, files []images.File) error {
	archive := tar.NewWriter(w)
	for _, file := range files {
		// docker cp unpacks into existing directories, so an entry has only the file, without its parents.
		if err := images.Write(archive, file.Path, file); err != nil {
			return fmt.Errorf("add %s: %w", file.Path, err)
		}
	}
	return archive.Close()
}
