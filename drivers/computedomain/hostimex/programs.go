package hostimex

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"gpufabric.io/drivers/computedomain"
	"gpufabric.io/drivers/computedomain/driverfiles"
	"gpufabric.io/drivers/hardware/imex"
)

// link lays a driver's programs out below dir as a daemon's container has them, by links to where they lie. They are started from there by
// their own loader with the libraries beside it, since the C library of this container may be another than theirs.
func link(dir string, set *driverfiles.Set) (imex.Programs, error) {
	at := func(path string) string {
		if path == "" {
			return ""
		}
		return filepath.Join(dir, strings.TrimPrefix(path, computedomain.DriverDir))
	}
	for _, file := range set.Files {
		if err := relink(file.Here, at(file.Container)); err != nil {
			return imex.Programs{}, fmt.Errorf("lay out the programs of the driver: %w", err)
		}
	}
	return imex.Programs{Daemon: at(set.Daemon), Control: at(set.Control), Loader: at(set.Loader)}, nil
}

// relink makes path a link to target; no write where it is one.
func relink(target, path string) error {
	if is, err := os.Readlink(path); err == nil && is == target {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Symlink(target, path)
}
