// Package programs runs programs of the NVIDIA driver (nvidia-smi, nvidia-cuda-mps-control) with the driver root's own loader and C
// library.
//
// A driver's libraries are linked against the C library beside them. A loader of another version cannot start them: the parts of
// glibc use each other through symbols of the version GLIBC_PRIVATE, which change with every release. So a program of the driver
// never uses the C library of this process's container. It runs in a root directory that is assembled from the driver root, in its
// own mount namespace and PID namespace, with only the device nodes that it needs.
//
// Some driver roots have no C library: those of Google's Container-Optimized OS and Talos, which are made for use with another one,
// and those of fake hardware. Their programs run with this container's.
package programs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/moby/sys/symlink"

	"gpufabric.io/drivers/hardware/driver"
)

// Runner runs a driver's programs.
type Runner struct {
	// Driver returns where the driver is; it may be installed later than this process, and move.
	Driver func() driver.Location
	// Enter makes the command that runs a program inside an enclosure (an Enclosure in JSON); see Reexec.
	Enter func(enclosure, program string, args ...string) *exec.Cmd
}

// Share is the part of the machine that a program has besides the driver's files (read-only), /sys, and a /proc of its own.
type Share struct {
	// Mountpoint is an empty directory on which the program's root is mounted, visible to the program alone.
	Mountpoint string
	// Nodes are names below /dev, such as nvidia0; nil: all of the driver's that exist. A named node need not exist where the kernel's
	// table of devices has its number.
	Nodes []string
	// Directories are writable, and have the same path inside as outside. The program does not follow a symbolic link in them, nor in Shm.
	Directories []string
	// Shm replaces /dev/shm where it is set.
	Shm string
	// Unprivileged removes the program's rights over the node.
	Unprivileged bool
	// Apart gives the program its own root even where the driver root is this process's.
	Apart bool
}

// Command makes the command that runs a program of the driver. Its environment is complete; the caller may add to it.
func (r Runner) Command(ctx context.Context, s Share, name string, args ...string) (*exec.Cmd, error) {
	at := r.Driver()
	path, err := at.Root.Program(name)
	if err != nil {
		return nil, fmt.Errorf("%w (install the part of the driver that has it, or set the driver's path: hardware.driverRoot)", err)
	}
	alone, err := bare(at.Root, path)
	if err != nil {
		return nil, err
	}
	if !s.Apart && (alone || at.Root.Path == "/") {
		cmd := exec.CommandContext(ctx, path, args...)
		cmd.Env = environment(at.Root.Path, alone)
		return cmd, nil
	}
	if err := os.MkdirAll(s.Mountpoint, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory to mount a root for %s on: %w", name, err)
	}
	e := Enclosure{
		Driver: at.Root.Path, Bare: alone, Mountpoint: s.Mountpoint, Directories: s.Directories, Shm: s.Shm, Unprivileged: s.Unprivileged,
		Dev: at.Dev.Path,
	}
	names := s.Nodes
	if names == nil {
		if names, err = nodes(at.Dev.Path); err != nil {
			return nil, err
		}
	}
	e.Nodes = numbered(names, driver.ReadNumbers(at.ProcDevices))
	text, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	if !alone {
		path = driver.Place{Path: at.Root.Path, Host: "/"}.OnHost(path)
	}
	cmd := bind(ctx, r.Enter(string(text), path, args...))
	cmd.Env = environment(at.Root.Path, alone)
	return cmd, nil
}

// bind ends a command with ctx.
func bind(ctx context.Context, cmd *exec.Cmd) *exec.Cmd {
	bound := exec.CommandContext(ctx, cmd.Path, cmd.Args[1:]...)
	bound.Args, bound.SysProcAttr = cmd.Args, cmd.SysProcAttr
	return bound
}

// environment is the environment of the driver's programs. It names the driver's directories to the loader: the loader's cache in
// the root may be missing, or be older than the driver.
func environment(root string, bare bool) []string {
	env := slices.DeleteFunc(os.Environ(), func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return strings.HasPrefix(name, "CUDA_") || strings.HasPrefix(name, "LD_") || strings.HasPrefix(name, "NVIDIA_") || name == "PATH"
	})
	var programs, libraries []string
	if bare {
		programs = append(programs, os.Getenv("PATH"))
	} else {
		root = "/"
	}
	for _, directory := range driver.ProgramDirs() {
		programs = append(programs, filepath.Join(root, directory))
	}
	for _, directory := range driver.LibraryDirs() {
		libraries = append(libraries, filepath.Join(root, directory))
	}
	return append(env, "PATH="+strings.Join(programs, ":"), "LD_LIBRARY_PATH="+strings.Join(libraries, ":"))
}

// bare reports whether a program needs this container's C library, because the driver root has none.
func bare(root driver.Place, program string) (bool, error) {
	loader, err := interpreter(program)
	if err != nil {
		return false, fmt.Errorf("read the interpreter of %s: %w", program, err)
	}
	if !hasLibraryC(root) {
		if _, err := os.Stat(loader); loader != "" && err != nil {
			return false, fmt.Errorf("%s is run by %s, which is neither below the driver root %s nor in this container: %w", program, loader,
				root.Path, err)
		}
		return true, nil
	}
	if loader == "" || there(root, loader) || there(root, "usr"+loader) {
		return false, nil
	}
	return false, fmt.Errorf("%s is run by %s, which is not below the driver root %s, though its C library is: where a host keeps /lib and "+
		"/lib64 apart from /usr, "+
		"all three belong below the driver root (hardware.driverDirectories)", program, loader, root.Path)
}

// hasLibraryC reports whether the root has a C library of its own. One below usr/local is for the driver's libraries alone (Talos).
func hasLibraryC(root driver.Place) bool {
	return slices.ContainsFunc(driver.LibraryDirs(), func(directory string) bool {
		return !strings.HasPrefix(directory, "usr/local/") && there(root, filepath.Join(directory, "libc.so.6"))
	})
}

// there reports whether a file is below a root. It follows links inside the root.
func there(root driver.Place, path string) bool {
	file, err := symlink.FollowSymlinkInScope(filepath.Join(root.Path, path), root.Path)
	if err != nil {
		return false
	}
	_, err = os.Stat(file)
	return err == nil
}

// numbered adds the numbers to device nodes, as far as they are known.
func numbered(names []string, known driver.Numbers) []Node {
	out := make([]Node, 0, len(names))
	for _, name := range names {
		major, minor, ok := known.Node(name)
		node := Node{Name: name, Numbered: ok, Major: uint32(major), Minor: uint32(minor)} //nolint:gosec // 32 bits together
		out = append(out, node)
	}
	return out
}

// nodes are the driver's device nodes in a /dev.
func nodes(dev string) ([]string, error) {
	var found []string
	for _, pattern := range []string{"nvidia*", "nvidia-caps/*"} {
		paths, err := filepath.Glob(filepath.Join(dev, pattern))
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			if info, err := os.Stat(path); err != nil || info.IsDir() {
				continue
			}
			name, err := filepath.Rel(dev, path)
			if err != nil {
				return nil, err
			}
			found = append(found, name)
		}
	}
	return found, nil
}

// Reexec makes Runner.Enter from this program's own subcommand words, which must call Enter.
func Reexec(words ...string) func(enclosure, program string, args ...string) *exec.Cmd {
	return func(enclosure, program string, args ...string) *exec.Cmd {
		cmd := exec.Command("/proc/self/exe", append(append(slices.Clone(words), enclosure, program), args...)...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID}
		return cmd
	}
}

// Explain adds the remedy to an error from starting a command.
func Explain(err error) error {
	if errors.Is(err, syscall.EPERM) {
		return fmt.Errorf("%w: a program of the driver runs in namespaces of its own, which needs CAP_SYS_ADMIN (hardware.privileged)", err)
	}
	return err
}
