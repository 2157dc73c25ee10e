package edits

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/moby/sys/symlink"

	"gpufabric.io/drivers/node/atomicfile"
)

// HookProgram is where our image has nvidia-cdi-hook.
const HookProgram = "/usr/bin/nvidia-cdi-hook"

// NoHook is the setting for containers without hooks.
const NoHook = "none"

// Hook is the program that the container runtime runs in a container before it starts. It writes the container's cache of
// libraries, so that a loader that does not search the mounted directories finds libcuda.so.1 too. It prevents programs from making
// device nodes that the container must not have. It chooses the newer of the driver's CUDA library and the image's (forward
// compatibility).
type Hook struct {
	// Wish is the host's path of an existing hook, NoHook, or empty for our own.
	Wish string
	// Own is nvidia-cdi-hook in this container; it is linked statically, since it runs with whatever the host has.
	Own string
	// Directory is where our hook is installed, at the same path here and on the host.
	Directory string
	Writer    atomicfile.Writer
}

// Install returns the path of the hook on the host, and installs it there if it is ours; empty: containers get no hooks. It may be
// repeated, also while the hook runs.
func (h Hook) Install() (string, error) {
	switch h.Wish {
	case "":
	case NoHook:
		return "", nil
	default:
		return h.Wish, nil
	}
	program, err := os.ReadFile(h.Own)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil // not our image: a program that was built and started by hand
	}
	if err != nil {
		return "", fmt.Errorf("read the container runtime's hook: %w", err)
	}
	path := filepath.Join(h.Directory, "nvidia-cdi-hook")
	err = os.MkdirAll(h.Directory, 0o755)
	if err == nil {
		err = atomicfile.Runnable(h.Directory)
	}
	if err != nil {
		return "", fmt.Errorf("install the container runtime's hook (gpus.cdiHook: none skips it): %w", err)
	}
	if there, err := os.ReadFile(path); err == nil && bytes.Equal(there, program) {
		return path, os.Chmod(path, 0o755)
	}
	if err := h.Writer.Write(path, program, 0o755); err != nil {
		return "", fmt.Errorf("install the container runtime's hook: %w", err)
	}
	return path, nil
}

// ldconfig is the host's ldconfig, which the hook runs on a container's files. It is below the driver root where that has one, else
// empty for the hook's default, /sbin/ldconfig. It is an error where the driver root is the host's own and has none.
func (o Options) ldconfig() (string, error) {
	for _, name := range []string{"sbin/ldconfig", "usr/sbin/ldconfig"} {
		file, err := symlink.FollowSymlinkInScope(filepath.Join(o.DriverRoot, name), o.DriverRoot)
		if err != nil {
			continue
		}
		if _, err := os.Stat(file); err == nil {
			return filepath.Join(o.HostDriverRoot, name), nil
		}
	}
	if o.HostDriverRoot == "/" {
		return "", errors.New("the host has no ldconfig: containers find the driver's libraries only where their own loader looks")
	}
	return "", nil
}
