package rdmakernel

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// buildModule builds testhca from source for the tree's kernel and returns the path of testhca.ko in dir. It is built again when the source
// changed.
func (d debian) buildModule(ctx context.Context, source, dir string) (string, error) {
	for _, name := range []string{"gcc", "make"} {
		if _, err := exec.LookPath(name); err != nil {
			return "", fmt.Errorf("build the kernel module testhca: %s is not on the PATH: apt-get install gcc make", name)
		}
	}
	content, err := os.ReadFile(source)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(append(content, d.kernel...))
	build := filepath.Join(dir, "testhca-"+hex.EncodeToString(sum[:6]))
	module := filepath.Join(build, "testhca.ko")
	if _, err := os.Stat(module); err == nil {
		return module, nil
	}
	if err := os.MkdirAll(build, 0o755); err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(build, "testhca.c"), content, 0o644); err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(build, "Kbuild"), []byte("obj-m := testhca.o\n"), 0o644); err != nil {
		return "", err
	}
	// The package's makefile names the common headers by their installed path.
	headers := d.path("usr/src/linux-headers-" + d.kernel)
	common := d.path("usr/src/linux-headers-" + strings.TrimSuffix(d.kernel, "-amd64") + "-common")
	if err := os.WriteFile(filepath.Join(headers, "Makefile"), []byte("include "+common+"/Makefile\n"), 0o644); err != nil {
		return "", err
	}
	// Kbuild's own programs are also from the package, and need libelf.
	cmd := exec.CommandContext(ctx, "make", "-C", headers, "M="+build, "CC=gcc", "modules")
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Dir(d.library("libelf.so.1")))
	if _, err := output(cmd); err != nil {
		return "", fmt.Errorf("build the kernel module testhca: %w", err)
	}
	return module, nil
}

// library is where a shared library of the tree lies.
func (d debian) library(name string) string {
	for _, dir := range []string{"usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"} {
		if _, err := os.Stat(d.path(dir, name)); err == nil {
			return d.path(dir, name)
		}
	}
	return d.path("usr/lib/x86_64-linux-gnu", name)
}
