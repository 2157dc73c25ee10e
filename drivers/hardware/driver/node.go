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

// copyNode makes target the same character device as source. It leaves a source alone that is no character device.
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
	device := int(want) //nolint:gosec // the kernel gives a device number of 64 bits
	if err := unix.Mknod(target, unix.S_IFCHR|uint32(mode.Perm()), device); err != nil {
		return fmt.Errorf("make device node %s like %s: %w", target, source, err)
	}
	// The umask cuts the mode of Mknod.
	if err := os.Chmod(target, mode.Perm()); err != nil {
		return fmt.Errorf("make device node %s like %s: %w", target, source, err)
	}
	return nil
}

// deviceNumber reports whether a path is a character device, and returns its number.
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
