package rdmakernel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// suite is the Debian release whose kernel boots. The module is written for its kernel's interfaces.
const suite = "bookworm"

// closure are the packages that are unpacked with all their dependencies, so that QEMU does not need the machine's own
// libraries.
func closure() []string { return []string{"qemu-system-x86/" + suite + "-backports"} }

// single are the packages that are unpacked without their dependencies. The first two are found by the metapackages that name
// the newest kernel.
func single(kernel string) []string {
	common := strings.TrimSuffix(kernel, "-amd64") + "-common"
	series := strings.Join(strings.Split(kernel, ".")[:2], ".")
	return []string{"linux-image-" + kernel, "linux-headers-" + kernel, "linux-headers-" + common, "linux-kbuild-" + series}
}

// apt runs apt with its own state, so that it needs no root and does not change the machine's.
type apt struct{ dir string }

// mirrors reads the machine's Debian mirrors, as apt's list of sources. Their keys are those that the machine trusts
// (/etc/apt/trusted.gpg.d).
func (a apt) mirrors(ctx context.Context) (string, error) {
	said, err := output(exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(REPO_URI)|$(RELEASE)|$(COMPONENT)",
		"Created-By: Packages"))
	if err != nil {
		return "", err
	}
	var sources []string
	for line := range strings.Lines(said) {
		fields := strings.Split(strings.TrimSpace(line), "|")
		if len(fields) != 3 || fields[2] != "main" {
			continue
		}
		switch fields[1] {
		case suite:
			sources = append(sources, fmt.Sprintf("deb %s %s main", fields[0], suite), fmt.Sprintf("deb %s %s-backports main", fields[0], suite))
		case suite + "-security":
			sources = append(sources, fmt.Sprintf("deb %s %s-security main", fields[0], suite))
		}
	}
	if len(sources) == 0 {
		return "", fmt.Errorf("apt of this machine reads no %s main: the RDMA kernel's packages are Debian 12's, so run this there", suite)
	}
	slices.Sort(sources)
	return strings.Join(slices.Compact(sources), "\n") + "\n", nil
}

func (a apt) prepare(ctx context.Context) error {
	if runtime.GOARCH != "amd64" {
		return fmt.Errorf("this machine is %s: the RDMA kernel, its emulator and the guest's programs are amd64's", runtime.GOARCH)
	}
	for _, name := range []string{"apt-get", "dpkg-deb"} {
		if _, err := exec.LookPath(name); err != nil {
			return fmt.Errorf("%s is not on the PATH: the RDMA kernel's packages are Debian's, so run this on Debian 12", name)
		}
	}
	sources, err := a.mirrors(ctx)
	if err != nil {
		return err
	}
	for _, dir := range []string{"lists/partial", "cache/archives/partial", "debs"} {
		if err := os.MkdirAll(filepath.Join(a.dir, dir), 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(a.dir, "sources.list"), []byte(sources), 0o644); err != nil {
		return err
	}
	_, err = a.run(ctx, "apt-get", "update", "-qq")
	return err
}

func (a apt) run(ctx context.Context, program string, args ...string) (string, error) {
	options := []string{
		"-o", "Dir::State::lists=" + filepath.Join(a.dir, "lists"), "-o", "Dir::Cache=" + filepath.Join(a.dir, "cache"),
		"-o", "Dir::Etc::sourcelist=" + filepath.Join(a.dir, "sources.list"), "-o", "Dir::Etc::sourceparts=/dev/null",
		"-o", "Dir::State::status=/dev/null", // apt's state has no installed package, so all dependencies are downloaded.
		"-o", "APT::Sandbox::User=root", "-o", "APT::Install-Recommends=false", "-o", "APT::Get::Assume-Yes=true", "-o",
		"APT::Architecture=amd64",
	}
	cmd := exec.CommandContext(ctx, program, append(options, args...)...)
	cmd.Dir = filepath.Join(a.dir, "debs")
	return output(cmd)
}

// kernel is the release of the newest kernel: 6.1.0-56-amd64.
func (a apt) kernel(ctx context.Context) (string, error) {
	said, err := a.run(ctx, "apt-cache", "depends", "linux-image-amd64/"+suite+"-security", "linux-image-amd64")
	if err != nil {
		return "", err
	}
	for field := range strings.FieldsSeq(said) {
		if release, found := strings.CutPrefix(field, "linux-image-"); found && strings.HasSuffix(release, "-amd64") {
			return release, nil
		}
	}
	return "", fmt.Errorf("linux-image-amd64 of %s depends on no kernel: %s", suite, said)
}

// debian is a tree of unpacked packages.
type debian struct {
	root   string
	kernel string // the kernel's release
}

// complete is written when everything is unpacked; it holds the kernel's release.
const complete = "complete"

// unpack downloads and unpacks everything below dir, once.
func unpack(ctx context.Context, dir string) (debian, error) {
	d := debian{root: filepath.Join(dir, "root")}
	if release, err := os.ReadFile(filepath.Join(dir, complete)); err == nil {
		d.kernel = string(release)
		return d, nil
	}
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(d.root, 0o755)); err != nil {
		return d, err
	}
	a := apt{filepath.Join(dir, "apt")}
	if err := a.prepare(ctx); err != nil {
		return d, err
	}
	var err error
	if d.kernel, err = a.kernel(ctx); err != nil {
		return d, err
	}
	if _, err := a.run(ctx, "apt-get", append([]string{"install", "--download-only", "-qq", "-t", suite + "-backports"},
		closure()...)...); err != nil {
		return d, err
	}
	if _, err := a.run(ctx, "apt-get", append([]string{"download", "-qq"}, single(d.kernel)...)...); err != nil {
		return d, err
	}
	for _, pattern := range []string{"cache/archives/*.deb", "debs/*.deb"} {
		packages, err := filepath.Glob(filepath.Join(a.dir, pattern))
		if err != nil || len(packages) == 0 {
			return d, errors.Join(fmt.Errorf("apt downloaded nothing to %s", pattern), err)
		}
		for _, path := range packages {
			if _, err := output(exec.CommandContext(ctx, "dpkg-deb", "-x", path, d.root)); err != nil {
				return d, err
			}
		}
	}
	if err := os.RemoveAll(a.dir); err != nil {
		return d, err
	}
	return d, os.WriteFile(filepath.Join(dir, complete), []byte(d.kernel), 0o644)
}

// path is where a package's file lies.
func (d debian) path(elements ...string) string {
	return filepath.Join(append([]string{d.root}, elements...)...)
}

// command runs a program of the tree with the tree's loader and libraries.
func (d debian) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	libraries := strings.Join([]string{d.path("usr/lib/x86_64-linux-gnu"), d.path("lib/x86_64-linux-gnu")}, ":")
	return exec.CommandContext(ctx, d.path("lib64/ld-linux-x86-64.so.2"),
		append([]string{"--library-path", libraries, d.path(program)}, args...)...)
}

func output(cmd *exec.Cmd) (string, error) {
	var said, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s%s", strings.Join(cmd.Args, " "), err, said.String(), errs.String())
	}
	return said.String(), nil
}
