package limiter

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"

	"gpufabric.io/drivers/node/atomicfile"
)

// Program is where our image has the library.
const Program = "/usr/lib/gpufabric/libvgpu.so"

// The library and the loader's list of it, in a directory of the host and of a container.
const (
	Library = "libvgpu.so"
	Preload = "ld.so.preload"
)

// Loaded is the library's path in containers. LoadersList is the path of ld.so.preload, where the dynamic loader reads it.
const (
	Loaded      = "/usr/local/vgpu/" + Library
	LoadersList = "/etc/" + Preload
)

// Install puts the library at own, and the loader's list, into a directory that the host has at the same path. It may be repeated
// while containers use the library: those keep their file.
func Install(own, directory string, writer atomicfile.Writer) error {
	library, err := os.ReadFile(own)
	if err != nil {
		return fmt.Errorf("read the limiter's library: %w", err)
	}
	if _, err := elf.NewFile(bytes.NewReader(library)); err != nil {
		return fmt.Errorf("the limiter's library %s is not readable by all users: %w", own, err)
	}
	err = os.MkdirAll(directory, 0o755)
	if err == nil {
		err = atomicfile.Runnable(directory)
	}
	if err != nil {
		return fmt.Errorf("install the limiter's library: %w", err)
	}
	for name, content := range map[string][]byte{Library: library, Preload: []byte(Loaded + "\n")} {
		path := filepath.Join(directory, name)
		if there, err := os.ReadFile(path); err == nil && bytes.Equal(there, content) {
			continue
		}
		if err := writer.Write(path, content, 0o644); err != nil {
			return fmt.Errorf("install the limiter's library: %w", err)
		}
	}
	return nil
}
