package atomicfile

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Runnable returns an error where programs in a directory cannot be started, nor libraries in it be mapped, because its file system is
// mounted noexec (statfs(2), ST_NOEXEC), as /var is on Container-Optimized OS. The directory must exist.
func Runnable(directory string) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(directory, &fs); err != nil {
		return fmt.Errorf("read how the file system of %s is mounted: %w", directory, err)
	}
	if fs.Flags&unix.ST_NOEXEC != 0 {
		return fmt.Errorf("%s is on a file system of the node that is mounted noexec, and containers run programs from it: set the chart's "+
			"platform to the kind of the nodes, or stateDir to a directory where programs run", directory)
	}
	return nil
}
