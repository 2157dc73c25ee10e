// Package tmpfs makes directories that tenants write into, each of a bounded size: whoever fills one fills nobody else's, and not the
// node's disk. What is written there counts as memory of the container that writes it.
//
// The directories are mounted on the node. In a pod that takes privilege, and a volume whose mounts propagate to the node (Bidirectional).
package tmpfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Bounds are how much may be put into a directory.
type Bounds struct {
	// Bytes is the size of all files, rounded up to pages.
	Bytes int64
	// Files is the number of files, directories and links.
	Files int64
}

// Below is the mode of the directory below a file system that Make mounts: without it, as after a boot, nobody but root gets in.
const Below fs.FileMode = 0o700

// Make mounts a file system of these bounds on the directory at path, which it makes if need be. One that is mounted there already stays as
// it is, with what is in it. mode is that of the new file system's root.
func Make(path string, mode fs.FileMode, b Bounds) error {
	if err := os.MkdirAll(path, Below); err != nil {
		return fmt.Errorf("make a directory of bounded size: %w", err)
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

// Remove unmounts what Make mounted, with all that is in it, and removes the directory. It follows no link. One that is not there is no
// error.
func Remove(path string) error {
	if err := Release(path); err != nil {
		return err
	}
	return os.RemoveAll(path)
}

// Release unmounts what Make mounted, with all that is in it. A directory of another kind is left alone.
func Release(path string) error {
	stands, err := mounted(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !stands {
		return nil
	}
	if err != nil {
		return err
	}
	// Detached: a container that still has it open keeps it until it ends.
	if err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		return fmt.Errorf("unmount %s: %w (needs CAP_SYS_ADMIN)", path, err)
	}
	return nil
}

// mounted says whether a file system of its own begins at path.
func mounted(path string) (bool, error) {
	var here, above unix.Stat_t
	if err := unix.Lstat(path, &here); err != nil {
		return false, &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	if here.Mode&unix.S_IFMT != unix.S_IFDIR {
		return false, fmt.Errorf("%s is no directory", path)
	}
	if err := unix.Lstat(filepath.Dir(path), &above); err != nil {
		return false, &fs.PathError{Op: "lstat", Path: filepath.Dir(path), Err: err}
	}
	return here.Dev != above.Dev, nil
}

// unixMode is a mode as mount(8) takes it.
func unixMode(mode fs.FileMode) uint32 {
	bits := uint32(mode.Perm())
	if mode&fs.ModeSticky != 0 {
		bits |= unix.S_ISVTX
	}
	return bits
}
