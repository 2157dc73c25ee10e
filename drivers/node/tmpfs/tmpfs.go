// Package tmpfs makes directories of bounded size that tenants write into. A tenant that fills its directory fills no other, and
// not the node's disk. The files count as memory of the container that writes them.
//
// The directories are mounted on the node. In a pod this needs privilege, and a volume whose mounts propagate to the node
// (Bidirectional).
package tmpfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Bounds are how much may be written to a directory.
type Bounds struct {
	// Bytes is the size of all files, rounded up to pages.
	Bytes int64
	// Files is the number of files, directories and links.
	Files int64
}

// Below is the mode of the directory below a file system that Make mounts. Without the mount, as after a boot, only root can enter.
const Below fs.FileMode = 0o700

// Make mounts a file system of these bounds on the directory at path, and makes the directory if need be. An existing mount stays
// as it is, with its content. mode is that of the new file system's root.
func Make(path string, mode fs.FileMode, b Bounds) error {
	if err := os.MkdirAll(path, Below); err != nil {
		return fmt.Errorf("make a directory with a size limit: %w", err)
	}
	stands, err := mounted(path)
	if err != nil || stands {
		return err
	}
	data := fmt.Sprintf("size=%d,nr_inodes=%d,mode=%o", b.Bytes, b.Files+1, unixMode(mode)) // the root is a file, too
	if err := unix.Mount("gpufabric", path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, data); err != nil {
		return fmt.Errorf("mount a file system of %d bytes on %s: %w (needs CAP_SYS_ADMIN)", b.Bytes, path, err)
	}
	return nil
}

// Remove unmounts the tmpfs of Make, with all its content, and removes the directory. It does not follow a link. A missing directory is no
// error.
func Remove(path string) error {
	if err := Release(path); err != nil {
		return err
	}
	return os.RemoveAll(path)
}

// Release unmounts the tmpfs of Make, with all its content. It leaves any other directory alone.
func Release(path string) error {
	stands, err := mounted(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !stands {
		return nil
	}
	if err != nil {
		return err
	}
	// Detached: a container that still has it open keeps it until the container ends.
	if err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		return fmt.Errorf("unmount %s: %w (needs CAP_SYS_ADMIN)", path, err)
	}
	return nil
}

// mounted reports whether a file system is mounted at path.
func mounted(path string) (bool, error) {
	var here, above unix.Stat_t
	if err := unix.Lstat(path, &here); err != nil {
		return false, &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	if here.Mode&unix.S_IFMT != unix.S_IFDIR {
		return false, fmt.Errorf("%s is not a directory", path)
	}
	if err := unix.Lstat(filepath.Dir(path), &above); err != nil {
		return false, &fs.PathError{Op: "lstat", Path: filepath.Dir(path), Err: err}
	}
	return here.Dev != above.Dev, nil
}

// unixMode converts a mode to the form of mount(8).
func unixMode(mode fs.FileMode) uint32 {
	bits := uint32(mode.Perm())
	if mode&fs.ModeSticky != 0 {
		bits |= unix.S_ISVTX
	}
	return bits
}
