package programs

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Enclosure is the root directory of a program of the driver.
type Enclosure struct {
	// Driver is the driver's root; Bare says that its programs need this container's C library.
	Driver string `json:"driver"`
	Bare   bool   `json:"bare,omitempty"`
	// Mountpoint, Directories, Shm, Unprivileged and Nodes are as in Share.
	Mountpoint   string   `json:"mountpoint"`
	Directories  []string `json:"directories,omitempty"`
	Shm          string   `json:"shm,omitempty"`
	Unprivileged bool     `json:"unprivileged,omitempty"`
	Nodes        []string `json:"nodes,omitempty"`
	Dev          string   `json:"dev"`
}

// ownNodes are the device nodes that every program may have.
func ownNodes() []string { return []string{"null", "zero", "full", "random", "urandom"} }

// Enter becomes a program inside an enclosure, which is Enclosure in JSON. It returns only to say why it could not. The process must have a mount namespace of
// its own.
func Enter(enclosure, program string, args ...string) error {
	var e Enclosure
	if err := json.Unmarshal([]byte(enclosure), &e); err != nil {
		return fmt.Errorf("reading an enclosure: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keeping mounts to this process: %w (needs CAP_SYS_ADMIN)", err)
	}
	if err := e.build(); err != nil {
		return err
	}
	// The old root is mounted below the new one for a moment, and gone before the program starts.
	if err := unix.Chdir(e.Mountpoint); err != nil {
		return fmt.Errorf("going to %s: %w", e.Mountpoint, err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("making %s the root: %w", e.Mountpoint, err)
	}
	if err := errors.Join(unix.Unmount(".", unix.MNT_DETACH), unix.Chdir("/")); err != nil {
		return fmt.Errorf("leaving the old root: %w", err)
	}
	// Capabilities are a thread's, and exec makes this one the program.
	runtime.LockOSThread()
	if err := e.restrict(); err != nil {
		return err
	}
	return fmt.Errorf("running %s: %w", program, unix.Exec(program, append([]string{program}, args...), os.Environ()))
}

func (e Enclosure) restrict() error {
	if e.Unprivileged {
		return dropPrivileges()
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("forbidding new privileges: %w", err)
	}
	return nil
}

func (e Enclosure) in(path string) string { return filepath.Join(e.Mountpoint, path) }

// build mounts everything.
func (e Enclosure) build() error {
	if err := unix.Mount("tmpfs", e.Mountpoint, "tmpfs", unix.MS_NOSUID, "size=1m,mode=755"); err != nil {
		return fmt.Errorf("mounting a root on %s: %w", e.Mountpoint, err)
	}
	if err := os.MkdirAll(e.in("/tmp"), 0o755); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", e.in("/tmp"), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=16m,mode=1777"); err != nil {
		return fmt.Errorf("mounting %s: %w", e.in("/tmp"), err)
	}
	if err := e.files(); err != nil {
		return err
	}
	for _, name := range []string{"/proc", "/sys"} {
		if err := e.bind(name, name, false); err != nil {
			return err
		}
	}
	if err := e.devices(); err != nil {
		return err
	}
	for _, directory := range e.Directories {
		if err := e.bind(directory, directory, true); err != nil {
			return err
		}
	}
	// Nothing is written in the root itself.
	if err := unix.Mount("", e.Mountpoint, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID, ""); err != nil {
		return fmt.Errorf("making the root read-only: %w", err)
	}
	return nil
}

// files gives the root the driver's files: programs, libraries, the loader and its configuration. Homes, secrets and state of the host are none of them.
func (e Enclosure) files() error {
	from := e.Driver
	if e.Bare {
		from = "/"
	}
	for _, name := range []string{"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "opt", "nix", "run/current-system", "run/opengl-driver"} {
		source := filepath.Join(from, name)
		info, err := os.Lstat(source)
		switch {
		case err == nil && info.Mode()&os.ModeSymlink != 0 && !strings.Contains(name, "/"):
			target, err := os.Readlink(source)
			if err != nil {
				return err
			}
			if err := os.Symlink(target, e.in(name)); err != nil {
				return err
			}
		case err == nil:
			if err := e.bind(source, name, false); err != nil {
				return err
			}
		default:
			// A host whose /lib is a link to /usr/lib, of which only /usr is to be had here.
			if _, err := os.Lstat(filepath.Join(from, "usr", name)); err == nil && !strings.Contains(name, "/") {
				if err := os.Symlink("usr/"+name, e.in(name)); err != nil {
					return err
				}
			}
		}
	}
	if err := os.MkdirAll(e.in("/etc"), 0o755); err != nil {
		return err
	}
	for _, name := range []string{"etc/ld.so.cache", "etc/ld.so.conf", "etc/ld.so.conf.d", "etc/alternatives"} {
		source := filepath.Join(from, name)
		if _, err := os.Stat(source); err != nil {
			continue
		}
		if err := e.bind(source, name, false); err != nil {
			return err
		}
	}
	if !e.Bare {
		return nil
	}
	if _, err := os.Stat(e.in(e.Driver)); err == nil {
		return nil // below one of those
	}
	return e.bind(e.Driver, e.Driver, false)
}

// devices gives the root a /dev with the nodes that were named.
func (e Enclosure) devices() error {
	if err := os.MkdirAll(e.in("/dev/shm"), 0o755); err != nil {
		return err
	}
	for _, name := range slices.Concat(ownNodes(), e.Nodes) {
		dev := e.Dev
		if slices.Contains(ownNodes(), name) {
			dev = "/dev"
		}
		if err := e.bind(filepath.Join(dev, name), filepath.Join("/dev", name), true); err != nil {
			return fmt.Errorf("device node %s: %w", name, err)
		}
	}
	if e.Shm == "" {
		return nil
	}
	return e.bind(e.Shm, "/dev/shm", true)
}

// bind shows a file or directory at a path of the new root.
func (e Enclosure) bind(source, path string, writable bool) error {
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	target := e.in(path)
	if info.IsDir() {
		err = os.MkdirAll(target, 0o755)
	} else if err = os.MkdirAll(filepath.Dir(target), 0o755); err == nil {
		var f *os.File
		if f, err = os.OpenFile(target, os.O_CREATE|os.O_RDONLY, 0o644); err == nil {
			err = f.Close()
		}
	}
	if err != nil {
		return fmt.Errorf("making a place for %s: %w", source, err)
	}
	flags := uintptr(unix.MS_BIND)
	if info.IsDir() {
		flags |= unix.MS_REC
	}
	if err := unix.Mount(source, target, "", flags, ""); err != nil {
		return fmt.Errorf("showing %s at %s: %w", source, path, err)
	}
	if writable {
		return nil
	}
	return readOnly(target)
}

// readOnly makes a mount and all that is mounted below it read-only. Kernels before 5.12 do so for the mount alone.
func readOnly(target string) error {
	attributes := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID}
	err := unix.MountSetattr(unix.AT_FDCWD, target, unix.AT_RECURSIVE, attributes)
	if errors.Is(err, unix.ENOSYS) {
		err = unix.Mount("", target, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID, "")
	}
	if err != nil {
		return fmt.Errorf("making %s read-only: %w", target, err)
	}
	return nil
}
