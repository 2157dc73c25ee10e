// Package rootfs makes small Debian root file systems with mmdebstrap, for machines that can reach a Debian mirror but no image registry.
package rootfs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Recipe describes what a root file system holds.
type Recipe struct {
	Name     string   // part of the cached file's name
	Variant  string   // mmdebstrap's: essential (no apt), minbase
	Packages []string // in addition to the variant's
}

// suite is Debian 12: its systemd boots under cgroup v1 and v2, while Debian 13's refuses v1.
const suite = "bookworm"

// Node is the file system of a kind node: the packages kind's own base image has, a runtime, CNI plugins and tools that tests look around
// with.
func Node() Recipe {
	return Recipe{Name: "node", Variant: "minbase", Packages: []string{
		"systemd", "conntrack", "iptables", "nftables", "iproute2", "ethtool", "util-linux", "mount", "kmod", "libseccomp2", "pigz", "e2fsprogs",
		"bash",
		"ca-certificates", "curl", "jq", "procps", "socat", "runc", "containernetworking-plugins", "pciutils",
	}}
}

// Base is the file system of kube-proxy's image and of the stand-ins for distribution images: a shell, coreutils and packet
// filter tools.
func Base() Recipe {
	return Recipe{Name: "base", Variant: "essential", Packages: []string{"bash", "iptables", "nftables", "conntrack", "kmod"}}
}

// MPI is the file system of a stand-in for an image with MPI programs: Open MPI's mpirun, and the SSH server and client through
// which it starts its daemons in other pods.
func MPI() Recipe {
	return Recipe{Name: "mpi", Variant: "essential", Packages: []string{"bash", "openmpi-bin", "openssh-server"}}
}

// Python is the file system of a stand-in for an image with a Python interpreter: Debian's, also under the name python.
func Python() Recipe {
	return Recipe{Name: "python", Variant: "essential", Packages: []string{"python-is-python3"}}
}

// Network is the file system of a stand-in for an image with network tools.
func Network() Recipe {
	return Recipe{Name: "network", Variant: "essential", Packages: []string{"iproute2", "iputils-ping"}}
}

// Key changes whenever the recipe does.
func (r Recipe) Key() string {
	sum := sha256.Sum256([]byte(suite + "\n" + r.Variant + "\n" + strings.Join(r.Packages, "\n")))
	return hex.EncodeToString(sum[:6])
}

// Tar returns the path of the root file system as a tar archive under dir. It makes the archive if it does not exist yet.
func (r Recipe) Tar(ctx context.Context, dir string) (string, error) {
	path := filepath.Join(dir, fmt.Sprintf("%s-%s.tar", r.Name, r.Key()))
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if _, err := exec.LookPath("mmdebstrap"); err != nil {
		return "", fmt.Errorf("make the %s root file system: mmdebstrap is not on the PATH: apt-get install mmdebstrap", r.Name)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	unfinished := fmt.Sprintf("%s.%d.unfinished", path, os.Getpid())
	defer func() { _ = os.Remove(unfinished) }()
	cmd := exec.CommandContext(ctx, "mmdebstrap", "--quiet", "--format=tar", "--variant="+r.Variant,
		"--include="+strings.Join(r.Packages, ","), suite, unfinished)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("make the %s root file system: %s: %w\n%s", r.Name, strings.Join(cmd.Args, " "), err, said.String())
	}
	if err := os.Rename(unfinished, path); err != nil {
		return "", err
	}
	return path, nil
}
