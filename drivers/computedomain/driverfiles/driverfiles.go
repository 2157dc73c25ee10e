// Package driverfiles finds the files of a node's driver that an IMEX daemon's container needs: NVIDIA's programs, the driver's
// libraries, and the C library with which both run.
//
// The programs are the node's, and the image that they run in is ours: two C libraries. A program that is started by the image's loader
// with libraries of the node fails wherever the two differ ("undefined symbol: __tunable_is_initialized, version GLIBC_PRIVATE" is one
// way), and an image that happens to be newer helps only until a node is newer still, or the program wants a library that the image
// lacks. So nothing is mixed: the container gets the node's own loader and every library that the programs name, each as a file of
// its own in one directory, and the programs are started by that loader with that directory. No file of the image takes part, and
// the container sees no other file of the node.
package driverfiles

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/symlink"

	"gpufabric.io/drivers/computedomain"
	"gpufabric.io/drivers/hardware/driver"
)

// File is a file of the driver that a container sees at another path.
type File struct {
	// Host is the file's path on the node, without links; Container is where the container has it; Here is where this process sees it.
	Host, Container, Here string
}

// Set is the files and links that a container needs.
type Set struct {
	// Daemon and Control are nvidia-imex and nvidia-imex-ctl, Loader the dynamic loader that starts them; paths of the container.
	// Without a Loader the programs need none, and start as they are.
	Daemon, Control, Loader string
	Files                   []File
	// Problems lists the missing files that a daemon may need.
	Problems []string
}

// ErrNoIMEX marks a driver root without nvidia-imex.
var ErrNoIMEX = errors.New("no nvidia-imex")

// driverLibraries are opened by name while a daemon runs. The first is IMEX's own; public PR #1222 of NVIDIA's DRA driver lists it
// among the files without which the daemon does not work.
func driverLibraries() []string {
	return []string{"libnvidia-imex", "libnvidia-ml", "libnvidia-cfg", "libcuda"}
}

// systemLibraries are opened by the C library itself, by name: for looking up hosts, for ending threads, and by programs made for a C
// library from before 2.34, which had its parts in files of their own.
func systemLibraries() []string {
	return []string{
		"libnss_files.so.2", "libnss_dns.so.2", "libresolv.so.2", "libgcc_s.so.1", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libm.so.6",
	}
}

// Find looks for a daemon's files in a driver's root.
func Find(root driver.Place) (*Set, error) {
	f := &finder{root: root, set: &Set{}, have: map[string]bool{}}
	if err := f.find(); err != nil {
		return nil, err
	}
	return f.set, nil
}

type finder struct {
	root driver.Place
	set  *Set
	// have are the names in the container's library directory.
	have map[string]bool
	// kind is the programs' own: a library of another machine is not theirs (a driver root may hold libraries of 32 bits).
	kind machine
}

type machine struct {
	class elf.Class
	arch  elf.Machine
}

func (f *finder) find() error {
	for _, program := range []struct {
		name string
		path *string
	}{{"nvidia-imex", &f.set.Daemon}, {"nvidia-imex-ctl", &f.set.Control}} {
		found, err := f.root.Program(program.name)
		if err != nil {
			return fmt.Errorf("%w: %w: install the package nvidia-imex of the driver's own version there, or correct the driver root", ErrNoIMEX,
				err)
		}
		*program.path = filepath.Join(computedomain.DriverDir, "bin", program.name)
		f.set.Files = append(f.set.Files, File{Host: f.root.OnHost(found), Container: *program.path, Here: found})
		if err := f.program(found); err != nil {
			return err
		}
	}
	for _, name := range driverLibraries() {
		if !f.driverLibrary(name) {
			f.set.Problems = append(f.set.Problems, fmt.Sprintf("no %s.so.* below %s", name, f.root.Host))
		}
	}
	if f.set.Loader != "" {
		for _, name := range systemLibraries() {
			f.library(name, "the C library")
		}
	}
	slices.SortFunc(f.set.Files, func(a, b File) int { return strings.Compare(a.Container, b.Container) })
	return nil
}

// program adds a program's loader and libraries. A file that is not ELF, or that does not need a loader, is complete by itself.
func (f *finder) program(path string) error {
	if is, err := isELF(path); err != nil || !is {
		return err
	}
	binary, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	defer binary.Close() //nolint:errcheck // read only
	f.kind = machine{binary.Class, binary.Machine}
	loader := interpreter(binary)
	if loader == "" {
		return nil
	}
	found, ok := f.file(loader)
	if !ok {
		return fmt.Errorf("%s needs the loader %s, which is not below %s: is the driver root complete?", path, loader, f.root.Host)
	}
	f.set.Loader = f.add(filepath.Base(loader), found)
	return f.needed(binary, path)
}

// needed adds the libraries that a file names, and those that these name.
func (f *finder) needed(file *elf.File, path string) error {
	names, err := file.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("read which libraries %s needs: %w", path, err)
	}
	for _, name := range names {
		if !f.library(name, path) {
			f.set.Problems = append(f.set.Problems, fmt.Sprintf("%s needs %s, which is in none of %s below %s", path, name,
				strings.Join(driver.LibraryDirs(), ", "), f.root.Host))
		}
	}
	return nil
}

// library adds a library by name, and reports whether it is there. from is the file that names it.
func (f *finder) library(name, from string) bool {
	if f.have[name] {
		return true
	}
	for _, dir := range driver.LibraryDirs() {
		found, ok := f.file(filepath.Join(dir, name))
		if ok && f.open(name, found, from) {
			return true
		}
	}
	return false
}

// open adds a file under a name, with its dependencies, if it is a library of the programs' architecture.
func (f *finder) open(name, found, from string) bool {
	if f.set.Loader == "" {
		f.add(name, found)
		return true
	}
	file, err := elf.Open(found)
	if err != nil {
		return false
	}
	defer file.Close() //nolint:errcheck // read only
	if f.kind != (machine{file.Class, file.Machine}) {
		return false
	}
	f.add(name, found)
	if err := f.needed(file, found); err != nil {
		f.set.Problems = append(f.set.Problems, fmt.Sprintf("%v (%s names it)", err, from))
	}
	return true
}

// driverLibrary adds a library of the driver under all its names: the version's and those that are links to it.
func (f *finder) driverLibrary(stem string) bool {
	for _, dir := range driver.LibraryDirs() {
		names, err := filepath.Glob(filepath.Join(f.root.Path, dir, stem+".so.*"))
		if err != nil {
			continue
		}
		added := false
		for _, path := range names {
			name := filepath.Base(path)
			found, ok := f.file(filepath.Join(dir, name))
			added = ok && (f.have[name] || f.open(name, found, "the driver")) || added
		}
		if added {
			return true
		}
	}
	return false
}

// file is the real file at a path of the root. A link is absolute in the root's terms, so it must not leave the root.
func (f *finder) file(path string) (string, bool) {
	found, err := symlink.FollowSymlinkInScope(filepath.Join(f.root.Path, path), f.root.Path)
	if err != nil {
		return "", false
	}
	info, err := os.Stat(found)
	return found, err == nil && info.Mode().IsRegular()
}

// add gives the container a library under a name, and returns where it has it.
func (f *finder) add(name, found string) string {
	path := filepath.Join(computedomain.DriverDir, "lib", name)
	if !f.have[name] {
		f.have[name] = true
		f.set.Files = append(f.set.Files, File{Host: f.root.OnHost(found), Container: path, Here: found})
	}
	return path
}

func isELF(path string) (bool, error) {
	file, err := os.Open(path)
	if err != nil {
		return false, fmt.Errorf("read a program of the driver: %w", err)
	}
	defer file.Close() //nolint:errcheck // read only
	magic := make([]byte, len(elf.ELFMAG))
	n, err := io.ReadFull(file, magic)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return false, fmt.Errorf("read %s: %w", path, err)
	}
	return string(magic[:n]) == elf.ELFMAG, nil
}

// interpreter returns a program's ELF interpreter (PT_INTERP); empty for a static program.
func interpreter(file *elf.File) string {
	for _, segment := range file.Progs {
		if segment.Type != elf.PT_INTERP {
			continue
		}
		text := make([]byte, segment.Filesz)
		if _, err := segment.ReadAt(text, 0); err != nil {
			return ""
		}
		return strings.TrimRight(string(text), "\x00")
	}
	return ""
}
