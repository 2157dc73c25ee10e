// Package driver finds NVIDIA's driver on a node: its files, installed on the host or in a driver container, and its device nodes.
package driver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/symlink"
)

// Library is the file that marks a driver: NVIDIA's management library, under the name by which programs load it.
const Library = "libnvidia-ml.so.1"

// Place is a directory of the node.
type Place struct {
	// Path is the directory's path in this process.
	Path string
	// Host is the directory's path on the node, where its container runtime sees it.
	Host string
}

// Here is a directory that this process and the node see at the same path.
func Here(path string) Place { return Place{Path: path, Host: path} }

// ParsePlace reads PATH, or PATH=HOST where the node has the directory at another path than this process.
func ParsePlace(text string) (Place, error) {
	path, host, differs := strings.Cut(text, "=")
	if !differs {
		host = path
	}
	if !filepath.IsAbs(path) || !filepath.IsAbs(host) {
		return Place{}, fmt.Errorf("%q is not a directory of the node: give an absolute path, or PATH=HOST with that of this process and that "+
			"of the node", text)
	}
	return Place{Path: filepath.Clean(path), Host: filepath.Clean(host)}, nil
}

// ParsePlaces reads a comma-separated list of places.
func ParsePlaces(text string) ([]Place, error) {
	var places []Place
	var errs []error
	for one := range strings.SplitSeq(text, ",") {
		place, err := ParsePlace(strings.TrimSpace(one))
		places, errs = append(places, place), append(errs, err)
	}
	return places, errors.Join(errs...)
}

// OnHost converts a path below the place from this process's view to the node's. It leaves other paths unchanged.
func (p Place) OnHost(path string) string {
	if p.Path == p.Host {
		return path
	}
	below, err := filepath.Rel(p.Path, path)
	if err != nil || below == ".." || strings.HasPrefix(below, "../") {
		return path
	}
	return filepath.Join(p.Host, below)
}

// Join returns a directory below the place.
func (p Place) Join(name string) Place {
	return Place{Path: filepath.Join(p.Path, name), Host: filepath.Join(p.Host, name)}
}

// LibraryDirs are the directories, below its root, where distributions put a driver's libraries. Ordinary ones come first: where a
// node has a driver in two of them, its loader takes that one.
func LibraryDirs() []string {
	return []string{
		"usr/lib64",
		"usr/lib/x86_64-linux-gnu",
		"usr/lib/aarch64-linux-gnu",
		"usr/lib",
		"lib64",
		"lib/x86_64-linux-gnu",
		"lib/aarch64-linux-gnu",
		"lib",
		"usr/local/lib",           // Talos from 1.13
		"usr/local/glibc/usr/lib", // Talos before 1.13
		"usr/lib/nvidia/tesla",    // Bottlerocket with kernels before 6.18
		"usr/lib/x86_64-linux-gnu/nvidia/current",  // Debian, where its alternatives are not mounted
		"usr/lib/aarch64-linux-gnu/nvidia/current", // the same
	}
}

// ProgramDirs are the directories, below its root, where distributions and driver containers put a driver's programs.
func ProgramDirs() []string {
	return []string{"usr/bin", "usr/sbin", "usr/local/bin", "bin", "sbin", "opt/bin",
		"usr/local/glibc/usr/bin",      // Talos before 1.13
		"usr/libexec/nvidia/tesla/bin", // Bottlerocket with kernels before 6.18
		"usr/lib/nvidia/current",       // Debian, where its alternatives are not mounted
	}
}

// Library returns the real file of the driver's management library. It follows links inside the root: Debian's goes through
// /etc/alternatives.
func (p Place) Library() (string, error) { return p.Shared(Library) }

// Shared returns the real file of one of the driver's libraries, such as libnvfm.so.1.
func (p Place) Shared(name string) (string, error) { return p.find(name, LibraryDirs()) }

// Program returns the real file of one of the driver's programs, such as nvidia-smi.
func (p Place) Program(name string) (string, error) { return p.find(name, ProgramDirs()) }

// find searches directories of the root for a file.
func (p Place) find(name string, dirs []string) (string, error) {
	for _, dir := range dirs {
		link := filepath.Join(p.Path, dir, name)
		// The target of a link is absolute as seen from the node, so it must not leave the root.
		file, err := symlink.FollowSymlinkInScope(link, p.Path)
		if err != nil {
			continue // a loop of links counts as a missing file
		}
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() {
			return file, nil
		}
	}
	return "", fmt.Errorf("look for %s in %s below %s: %w", name, strings.Join(dirs, ", "), p.Path, os.ErrNotExist)
}
