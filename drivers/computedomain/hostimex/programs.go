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

// link makes links to a driver's programs below dir, laid out as in a daemon's container. The programs are started there by their own
// loader with the libraries beside it, since this container may have another C library.
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

// relink makes path a link to target. It writes nothing where it is one already.
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
