package release

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"runtime/debug"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"gpufabric.io/build/images"
)

// component is a file of an artifact, and where it comes from.
type component struct {
	Path    string
	SHA256  string
	Modules []module // of a Go program, its own first
	Library *library // of the C library
}

// module is a Go module in a program.
type module struct {
	Path, Version string
}

// ours are the project's own C libraries; everything else without Go's build information is a stranger's.
var ours = []string{"libvgpu.so", "libnvidia-ml.so.1", "libcuda.so.1"}

// components lists an image's files with their origin. It fails for a file whose origin is not known, such as one of the machine that
// builds.
func components(image v1.Image, locked Lock, architecture string) ([]component, error) {
	stream := mutate.Extract(image)
	defer func() { _ = stream.Close() }()
	archive := tar.NewReader(stream)
	var all []component
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			slices.SortFunc(all, func(a, b component) int { return strings.Compare(a.Path, b.Path) })
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		if header.Typeflag != tar.TypeReg {
			continue
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			return nil, err
		}
		one, err := identify("/"+strings.TrimPrefix(header.Name, "/"), content, locked, architecture)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
}

// fileComponents does the same for an archive's files.
func fileComponents(files []images.File, locked Lock, architecture string) ([]component, error) {
	var all []component
	for _, file := range files {
		content, err := read(file)
		if err != nil {
			return nil, err
		}
		one, err := identify(file.Path, content, locked, architecture)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

func identify(name string, content []byte, locked Lock, architecture string) (component, error) {
	sum := sha256.Sum256(content)
	one := component{Path: name, SHA256: hex.EncodeToString(sum[:])}
	if info, err := buildinfo.Read(bytes.NewReader(content)); err == nil {
		one.Modules = []module{{info.Main.Path, info.Main.Version}}
		for _, dependency := range info.Deps {
			if dependency.Replace != nil && dependency.Replace.Version != "" {
				dependency = dependency.Replace
			}
			one.Modules = append(one.Modules, module{dependency.Path, dependency.Version})
		}
		one.Modules = append(one.Modules, module{"std", info.GoVersion})
		if slices.Contains(info.Settings, debug.BuildSetting{Key: "CGO_ENABLED", Value: "1"}) && unloaded(content) {
			one.Library = locked.find("libc.so.6", architecture)
		}
		return one, nil
	}
	base := path.Base(name)
	switch found := locked.find(base, architecture); {
	case found != nil && found.Files[base] == one.SHA256:
		one.Library = found
	case found != nil:
		return component{}, fmt.Errorf("%s has SHA-256 %s, and %s names %s of Debian's %s %s: install that version, or write the lock again "+
			"(go run ./cmd/release lock) and review it", name, one.SHA256, lockName, found.Files[base], found.Package, found.Version)
	case slices.Contains(ours, base), !bytes.HasPrefix(content, []byte("\x7fELF")) && documented(name):
	default:
		return component{}, fmt.Errorf(
			"%s: nothing of this repository, of a Go module or of %s: a release has no file of the machine that builds it", name, lockName)
	}
	return one, nil
}

// unloaded recognises a program that no loader starts: it contains its part of the C library.
func unloaded(program []byte) bool {
	file, err := elf.NewFile(bytes.NewReader(program))
	return err == nil && !slices.ContainsFunc(file.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
}

// documented are texts of ours: licences, notices and package records, and the metadata beside programs.
func documented(name string) bool {
	return strings.HasPrefix(name, "/usr/share/doc/") || strings.HasPrefix(name, "/var/lib/dpkg/status.d/") || name == "/etc/os-release" ||
		!strings.HasPrefix(name, "/")
}

// programs are the modules of all components, each once, in order.
func programs(all []component) []module {
	var modules []module
	for _, one := range all {
		modules = append(modules, one.Modules...)
	}
	slices.SortFunc(modules, func(a, b module) int {
		return strings.Compare(a.Path+"@"+a.Version, b.Path+"@"+b.Version)
	})
	return slices.Compact(modules)
}

// libraries are the packages of C libraries among components, each once, in order.
func libraries(all []component) []*library {
	var found []*library
	for _, one := range all {
		if one.Library != nil && !slices.Contains(found, one.Library) {
			found = append(found, one.Library)
		}
	}
	return found
}
