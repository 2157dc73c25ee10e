package programs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"gpufabric.io/drivers/node/seccomp"
)

// Enclosure is the root directory for a program of the driver.
type Enclosure struct {
	// Driver is the driver's root; Bare means that its programs need this container's C library.
	Driver string `json:"driver"`
	Bare   bool   `json:"bare,omitempty"`
	// Mountpoint, Directories, Shm, Unprivileged and Nodes are as in Share.
	Mountpoint   string   `json:"mountpoint"`
	Directories  []string `json:"directories,omitempty"`
	Shm          string   `json:"shm,omitempty"`
	Unprivileged bool     `json:"unprivileged,omitempty"`
	Nodes        []Node   `json:"nodes,omitempty"`
	Dev          string   `json:"dev"`
}

// Node is a device node of an enclosure.
type Node struct {
	// Name is its path below /dev.
	Name string `json:"name"`
	// Numbered means that Major and Minor are known. The node is then made from them, whether or not it exists below Enclosure.Dev: the
	// kernel does not make a file for nvidia-uvm, nor for the capability nodes of MIG devices.
	Numbered bool   `json:"numbered,omitempty"`
	Major    uint32 `json:"major,omitempty"`
	Minor    uint32 `json:"minor,omitempty"`
}

// ownNodes are the device nodes that every program may have.
func ownNodes() []string { return []string{"null", "zero", "full", "random", "urandom"} }

// Enter replaces this process by a program inside an enclosure (an Enclosure in JSON). It returns only an error. The process must have
// its own mount namespace and PID namespace.
func Enter(enclosure, program string, args ...string) error {
	var e Enclosure
	if err := json.Unmarshal([]byte(enclosure), &e); err != nil {
		return fmt.Errorf("read the program's root directory from its argument: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts to this process: %w (needs CAP_SYS_ADMIN)", err)
	}
	if err := e.build(); err != nil {
		return err
	}
	// The old root is mounted below the new one for a moment, and removed before the program starts.
	if err := unix.Chdir(e.Mountpoint); err != nil {
		return fmt.Errorf("change to directory %s: %w", e.Mountpoint, err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("make %s the root: %w", e.Mountpoint, err)
	}
	if err := errors.Join(unix.Unmount(".", unix.MNT_DETACH), unix.Chdir("/")); err != nil {
		return fmt.Errorf("leave the old root: %w", err)
	}
	// Capabilities belong to a thread, and exec makes this thread the program.
	runtime.LockOSThread()
	if err := e.restrict(); err != nil {
		return err
	}
	return fmt.Errorf("run %s: %w", program, unix.Exec(program, append([]string{program}, args...), os.Environ()))
}

func (e Enclosure) restrict() error {
	if e.Unprivileged {
		return errors.Join(dropPrivileges(), seccomp.Rules{}.Thread())
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("forbid new privileges: %w", err)
	}
	return nil
}

func (e Enclosure) in(path string) string { return filepath.Join(e.Mountpoint, path) }

// build mounts everything.
func (e Enclosure) build() error {
	if err := unix.Mount("tmpfs", e.Mountpoint, "tmpfs", unix.MS_NOSUID, "size=1m,mode=755"); err != nil {
		return fmt.Errorf("mount a root on %s: %w", e.Mountpoint, err)
	}
	if err := os.MkdirAll(e.in("/tmp"), 0o755); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", e.in("/tmp"), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=16m,mode=1777"); err != nil {
		return fmt.Errorf("mount %s: %w", e.in("/tmp"), err)
	}
	if err := e.files(); err != nil {
		return err
	}
	if err := e.proc(); err != nil {
		return err
	}
	if err := e.bind("/sys", "/sys", false); err != nil {
		return err
	}
	if err := e.devices(); err != nil {
		return err
	}
	for _, directory := range e.Directories {
		if err := e.share(directory, directory); err != nil {
			return err
		}
	}
	// The root itself stays read-only.
	if err := unix.Mount("", e.Mountpoint, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID, ""); err != nil {
		return fmt.Errorf("make the root read-only: %w", err)
	}
	return nil
}

// files gives the root the driver's files: programs, libraries, the loader and its configuration. It omits the host's homes,
// secrets and state.
func (e Enclosure) files() error {
	from := e.Driver
	if e.Bare {
		from = "/"
	}
	for _, name := range []string{"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "opt", "nix", "run/current-system",
		"run/opengl-driver"} {
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
			// A host whose /lib is a link to /usr/lib, of which only /usr is available here.
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

// proc gives the root a /proc of this process's PID namespace. It contains only the program and its children, so no path leads
// through /proc/PID/root or /proc/PID/fd into what other processes see. Only the directories of these processes are writable: the MPS
// server writes its threads' names there, and ends where it cannot (driver 580.159.04). Mounts over parts of /proc that a driver's
// programs read are kept.
func (e Enclosure) proc() error {
	if err := os.MkdirAll(e.in("/proc"), 0o555); err != nil {
		return err
	}
	if err := unix.Mount("proc", e.in("/proc"), "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount a /proc of its own: %w", err)
	}
	if err := e.protectProc(); err != nil {
		return err
	}
	whole, err := device("/proc")
	if err != nil {
		return err
	}
	for _, name := range []string{"/proc/devices", "/proc/driver", "/proc/driver/nvidia", "/proc/driver/nvidia-caps"} {
		part, err := device(name)
		if errors.Is(err, fs.ErrNotExist) || part == whole {
			continue
		}
		if err != nil {
			return err
		}
		if err := e.bind(name, name, false); err != nil {
			return err
		}
	}
	return nil
}

// protectProc makes everything in the root's /proc read-only that belongs to no process.
func (e Enclosure) protectProc() error {
	entries, err := os.ReadDir(e.in("/proc"))
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if _, err := strconv.Atoi(entry.Name()); err == nil || entry.Type()&fs.ModeSymlink != 0 { // of a process, or a link to one's
			continue
		}
		path := filepath.Join("/proc", entry.Name())
		err := e.bind(e.in(path), path, false)
		if errors.Is(err, fs.ErrNotExist) { // of a kernel module that was unloaded
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// device is the number of the file system that a path is on.
func device(path string) (uint64, error) {
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return 0, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return stat.Dev, nil
}

// devices gives the root a /dev with the nodes that were named.
func (e Enclosure) devices() error {
	if err := os.MkdirAll(e.in("/dev/shm"), 0o755); err != nil {
		return err
	}
	for _, name := range ownNodes() {
		if err := e.bind(filepath.Join("/dev", name), filepath.Join("/dev", name), true); err != nil {
			return fmt.Errorf("device node %s: %w", name, err)
		}
	}
	for _, node := range e.Nodes {
		if err := e.node(node); err != nil {
			return fmt.Errorf("device node %s: %w", node.Name, err)
		}
	}
	if e.Shm == "" {
		return nil
	}
	return e.share(e.Shm, "/dev/shm")
}

// node makes a device node in the root: from its numbers where they are known, with the permissions of the node's file. On a
// machine that allows no device nodes there are other files in their place, which are bound as they are.
func (e Enclosure) node(n Node) error {
	path := filepath.Join("/dev", n.Name)
	source := filepath.Join(e.Dev, n.Name)
	info, missing := os.Stat(source)
	if !n.Numbered {
		if missing != nil {
			return fmt.Errorf("%w, and the kernel's table of devices has no number for it: is the part of the driver that serves it loaded?",
				missing)
		}
		return e.bind(source, path, true)
	}
	if missing == nil && info.Mode()&fs.ModeCharDevice == 0 {
		return e.bind(source, path, true)
	}
	mode := fs.FileMode(0o666) // the driver's mode, unless its module has another setting
	if missing == nil {
		mode = info.Mode().Perm()
	}
	if err := os.MkdirAll(filepath.Dir(e.in(path)), 0o755); err != nil {
		return err
	}
	number := int(unix.Mkdev(n.Major, n.Minor)) //nolint:gosec // as the kernel takes it
	if err := unix.Mknod(e.in(path), unix.S_IFCHR|uint32(mode), number); err != nil {
		return fmt.Errorf("make it by its number %d:%d: %w (needs CAP_MKNOD)", n.Major, n.Minor, err)
	}
	return os.Chmod(e.in(path), mode) // the umask cut the mode
}

// share binds a directory that others write, too. The program does not follow a link there, and can use no device and no set-user-ID file
// there. Kernels before 5.10 follow links: they do not lead out of the enclosure.
func (e Enclosure) share(source, path string) error {
	if err := e.bind(source, path, true); err != nil {
		return err
	}
	const safe = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOSYMFOLLOW
	if err := unix.Mount("", e.in(path), "", unix.MS_REMOUNT|unix.MS_BIND|safe, ""); err != nil {
		return fmt.Errorf("open %s without following links: %w", path, err)
	}
	return nil
}

// bind binds a file or directory to a path of the new root.
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
		return fmt.Errorf("make a mount point for %s: %w", source, err)
	}
	flags := uintptr(unix.MS_BIND)
	if info.IsDir() {
		flags |= unix.MS_REC
	}
	if err := unix.Mount(source, target, "", flags, ""); err != nil {
		return fmt.Errorf("mount %s at %s: %w", source, path, err)
	}
	if writable {
		return nil
	}
	return readOnly(target)
}

// readOnly makes a mount and all mounts below it read-only. Kernels before 5.12 do so only for the mount itself.
func readOnly(target string) error {
	attributes := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID}
	err := unix.MountSetattr(unix.AT_FDCWD, target, unix.AT_RECURSIVE, attributes)
	if errors.Is(err, unix.ENOSYS) {
		err = unix.Mount("", target, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID, "")
	}
	if err != nil {
		return fmt.Errorf("make %s read-only: %w", target, err)
	}
	return nil
}
