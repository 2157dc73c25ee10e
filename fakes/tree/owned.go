package tree

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// mark is an empty file in a node's directory. With it sys, proc, dev and driver there may be replaced and removed, even if others
// wrote to them: a driver makes device nodes under dev. The mark stays when the hardware is removed, and a rendering that was killed
// half-way leaves it.
const mark = ".fakefabric"

// owned reports whether a rendering was made, or begun, at root.
func owned(root string) (bool, error) {
	for _, path := range []string{filepath.Join(root, mark), renderedPath(root)} {
		_, err := os.Lstat(path)
		if err == nil {
			return true, nil
		}
		if !errors.Is(err, os.ErrNotExist) {
			return false, err
		}
	}
	return false, nil
}

// claim marks root as a fake node's, and waits for other renderings in it: they replace its directories one after the other.
func claim(root string) (release func(), err error) {
	file, err := os.OpenFile(filepath.Join(root, mark), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX)
		if err == nil {
			return func() { _ = file.Close() }, nil // the lock ends with it
		}
		if !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", file.Name(), err), file.Close())
		}
	}
}

// vacant refuses a directory whose sys, proc, dev or driver has files that no rendering made, such as / or a checkout with a
// directory driver: a rendering replaces these directories as a whole.
func vacant(root string) error {
	if ours, err := owned(root); err != nil || ours {
		return err
	}
	for _, part := range parts {
		path := filepath.Join(root, part)
		entries, err := os.ReadDir(path)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if len(entries) > 0 {
			if ours, err := owned(root); err != nil || ours { // another rendering made its mark meanwhile, before these files
				return err
			}
			return fmt.Errorf("%s has files that do not belong to a fake node and would be replaced; give the node its own directory", path)
		}
	}
	return nil
}
