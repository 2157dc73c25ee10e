// Package driver finds NVIDIA's driver on a node: its files, which the host or a driver container has, and its device nodes.
package driver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/symlink"
)

// Library is the file that says where a driver is: NVIDIA's management library by the name that programs load it by.
const Library = "libnvidia-ml.so.1"

// Place is a directory of the node.
type Place struct {
	// Path is where this process sees the directory.
	Path string
	// Host is where the node itself and its container runtime see it.
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

// OnHost turns a path below the place, as this process sees it, into the node's. A path elsewhere stays as it is.
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

// Join is a directory below the place.
func (p Place) Join(name string) Place {
	return Place{Path: filepath.Join(p.Path, name), Host: filepath.Join(p.Host, name)}
}

// LibraryDirs are where distributions put a driver's libraries, below its root.
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
	}
}

// ProgramDirs are where distributions and driver containers put a driver's programs, below its root.
func ProgramDirs() []string {
	return []string{"usr/bin", "usr/sbin", "usr/local/bin", "bin", "sbin", "opt/bin"}
}

// Library is the real file of the driver's management library, links followed inside the root: Debian's goes through /etc/alternatives.
func (p Place) Library() (string, error) { return p.find(Library, LibraryDirs()) }

// Program is the real file of one of the driver's programs, such as nvidia-smi.
func (p Place) Program(name string) (string, error) { return p.find(name, ProgramDirs()) }

// find looks for a file in directories of the root.
func (p Place) find(name string, dirs []string) (string, error) {
	for _, dir := range dirs {
		link := filepath.Join(p.Path, dir, name)
		// A link is absolute in the node's terms, so it must not leave the root.
		file, err := symlink.FollowSymlinkInScope(link, p.Path)
		if err != nil {
			continue // a loop of links is a file that is not there
		}
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() {
			return file, nil
		}
	}
	return "", fmt.Errorf("%s: looked for in %s below %s: %w", name, strings.Join(dirs, ", "), p.Path, os.ErrNotExist)
}
