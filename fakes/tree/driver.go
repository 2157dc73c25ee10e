package tree

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"gpufabric.io/fakes/imex"
	"gpufabric.io/fakes/profile"
)

// Tools are the commands that a driver root has, each the fakefabric program under another name.
var Tools = []string{"nvidia-smi", "nvidia-imex", "nvidia-imex-ctl", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"}

// Libraries are the C libraries that Options.LibraryDir must hold, under their sonames.
var Libraries = []string{nvmlLibrary, "libcuda.so.1"}

const nvmlLibrary = "libnvidia-ml.so.1"

func writeDriver(w *writer, n *profile.Node, o Options) {
	w.dir("driver/usr/lib64")
	w.dir("driver/usr/bin")
	if len(n.GPUs) == 0 {
		return
	}
	if o.LibraryDir != "" {
		for _, so := range Libraries {
			writeLibrary(w, filepath.Join(o.LibraryDir, so), so, n.Profile.Driver.Version)
		}
	}
	if n.Profile.IMEX != nil {
		writeIMEXLibrary(w, n.Profile.Driver.Version)
	}
	if o.Tools == "" || w.err != nil {
		return
	}
	source := o.Tools
	for _, tool := range Tools {
		target := filepath.Join(w.root, "driver/usr/bin", tool)
		if err := linkOrCopy(source, target); err != nil {
			w.keep(fmt.Errorf("tool %s: %w", tool, err))
			return
		}
		source = target // after one copy the other names are links to it
	}
}

// writeLibrary copies a library under its full version and links its soname to it, as the driver's installer does. It removes the
// functions from NVML that a driver of that version lacks. It makes a copy, not a hard link, so that a process can load the
// libraries of two nodes: the loader distinguishes files by inode.
func writeLibrary(w *writer, source, soname, version string) {
	if w.err != nil {
		return
	}
	data, err := os.ReadFile(source)
	if err != nil {
		w.keep(fmt.Errorf("library: %w; build it with make -C fakes, or name its directory with --library-dir", err))
		return
	}
	if soname == nvmlLibrary {
		newer, err := newerThan(version)
		if err == nil {
			data, err = hideNames(data, newer)
		}
		if err != nil {
			w.keep(fmt.Errorf("library %s: %w", source, err))
			return
		}
	}
	full := filepath.Join("driver/usr/lib64", soname[:len(soname)-1]+version)
	w.bytes(full, data, 0o755)
	w.link(filepath.Join("driver/usr/lib64", soname), full)
	w.link(filepath.Join("driver/usr/lib64", soname[:len(soname)-2]), filepath.Join("driver/usr/lib64", soname))
}

// writeIMEXLibrary makes IMEX's own library; the fake daemon only checks that it exists.
func writeIMEXLibrary(w *writer, version string) {
	full := "driver/usr/lib64/libnvidia-imex.so." + version
	w.file(full, "")
	w.link("driver/usr/lib64/"+imex.Library, full)
}

// linkOrCopy makes target a hard link to source, or a copy where the two are on different file systems.
func linkOrCopy(source, target string) error {
	err := os.Link(source, target)
	if err == nil {
		return nil
	}
	return copyFile(source, target)
}

func copyFile(source, target string) (err error) {
	in, err := os.Open(source)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }() // only read from
	out, err := os.OpenFile(target, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	_, err = io.Copy(out, in)
	return err
}

// FindLibraries gives the first directory that holds the libraries: the one named, else FAKEFABRIC_LIBRARY_DIR's, else lib beside the
// program, else ../lib/fakefabric.
func FindLibraries(named string) (string, error) {
	candidates := []string{named}
	if named == "" {
		candidates = []string{os.Getenv("FAKEFABRIC_LIBRARY_DIR")}
	}
	if exe, err := os.Executable(); err == nil && named == "" {
		candidates = append(candidates, filepath.Join(filepath.Dir(exe), "lib"), filepath.Join(filepath.Dir(exe), "../lib/fakefabric"))
	}
	candidates = slices.DeleteFunc(candidates, func(d string) bool { return d == "" })
	for _, d := range candidates {
		if _, err := os.Stat(filepath.Join(d, Libraries[0])); err == nil {
			return d, nil
		}
	}
	return "", fmt.Errorf("%s is in none of %v; build it with make -C fakes, or name its directory with --library-dir", Libraries[0],
		candidates)
}
