package images

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sort"
	"strings"
)

// machine is where an architecture's C library is, in an image and on the machine that builds it.
type machine struct {
	triplet string // Debian's directory name
	loader  string // path that the kernel takes from the binary
}

var machines = map[string]machine{
	"amd64": {"x86_64-linux-gnu", "/lib64/ld-linux-x86-64.so.2"},
	"arm64": {"aarch64-linux-gnu", "/lib/ld-linux-aarch64.so.1"},
}

// loadedLater are the C library's parts that a library opened at run time, such as libnvidia-ml.so.1, may need though the binary does not.
var loadedLater = []string{"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libresolv.so.2"}

// searchPath lists where this machine keeps libraries of an architecture: its own, multi-arch ones, a cross compiler's.
func (m machine) searchPath() []string {
	return []string{"/lib/" + m.triplet, "/usr/lib/" + m.triplet, "/lib64", "/usr/lib64", "/usr/" + m.triplet + "/lib", "/lib", "/usr/lib"}
}

// Libraries returns the files that a binary built on this machine needs in an otherwise empty image: the loader, the shared libraries that
// it names (and those that these name), and the C library's parts that may be loaded later. They are this machine's own, so their version
// always fits.
func Libraries(binary, architecture string) ([]File, error) {
	m, ok := machines[architecture]
	if !ok {
		return nil, fmt.Errorf("images are made for amd64 and arm64, not %q", architecture)
	}
	want, err := imported(binary)
	if err != nil {
		return nil, err
	}
	if len(want) == 0 {
		return nil, nil
	}
	want = append(want, loadedLater...)
	found := map[string]string{}
	for len(want) > 0 {
		name := want[0]
		want = want[1:]
		if found[name] != "" {
			continue
		}
		path, err := m.locate(name, architecture)
		if err != nil {
			return nil, fmt.Errorf("%s needs %s: %w", binary, name, err)
		}
		found[name] = path
		more, err := imported(path)
		if err != nil {
			return nil, err
		}
		want = append(want, more...)
	}
	loader, err := m.locate(filepath.Base(m.loader), architecture)
	if err != nil {
		return nil, err
	}
	files := []File{{Path: m.loader, From: loader}}
	for name, path := range found {
		if name != filepath.Base(m.loader) {
			files = append(files, File{Path: "/lib/" + m.triplet + "/" + name, From: path})
		}
	}
	sort.Slice(files, func(i, j int) bool { return files[i].Path < files[j].Path })
	return files, nil
}

// locate finds a library of the architecture, as a real file.
func (m machine) locate(name, architecture string) (string, error) {
	for _, dir := range m.searchPath() {
		path, err := filepath.EvalSymlinks(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		if is, err := architectureOf(path); err == nil && is == architecture {
			return path, nil
		}
	}
	return "", fmt.Errorf("no %s for %s in %s", name, architecture, strings.Join(m.searchPath(), ", "))
}

func imported(path string) ([]string, error) {
	file, err := elf.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	defer func() { _ = file.Close() }()
	names, err := file.ImportedLibraries()
	if err != nil && !errors.Is(err, elf.ErrNoSymbols) {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return names, nil
}

// architectureOf returns the Go name of an ELF file's architecture.
func architectureOf(path string) (string, error) {
	file, err := elf.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }()
	switch file.Machine {
	case elf.EM_X86_64:
		return "amd64", nil
	case elf.EM_AARCH64:
		return "arm64", nil
	default:
		return "", fmt.Errorf("%s is made for %s", path, file.Machine)
	}
}
