package driver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// copyNode makes target the same character device as source. What source is besides a character device is left alone.
func copyNode(source, target string) error {
	want, mode, isDevice, err := deviceNumber(source)
	if err != nil || !isDevice {
		return err
	}
	has, _, isDevice, err := deviceNumber(target)
	if err == nil && isDevice && has == want {
		return nil
	}
	if err == nil {
		// Another driver, or another load of this one, gave the node another number.
		if err := os.Remove(target); err != nil {
			return fmt.Errorf("make device node %s like %s: %w", target, source, err)
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return fmt.Errorf("make device node %s like %s: %w", target, source, err)
	}
	device := int(want) //nolint:gosec // a device number has 64 bits as the kernel gives it
	if err := unix.Mknod(target, unix.S_IFCHR|uint32(mode.Perm()), device); err != nil {
		return fmt.Errorf("make device node %s like %s: %w", target, source, err)
	}
	// Mknod's mode is cut by the umask.
	if err := os.Chmod(target, mode.Perm()); err != nil {
		return fmt.Errorf("make device node %s like %s: %w", target, source, err)
	}
	return nil
}

// deviceNumber tells whether a path is a character device, and which.
func deviceNumber(path string) (number uint64, mode fs.FileMode, isDevice bool, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, 0, false, fmt.Errorf("read device node: %w", err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || info.Mode()&fs.ModeCharDevice == 0 {
		return 0, info.Mode(), false, nil
	}
	return stat.Rdev, info.Mode(), true, nil
}
