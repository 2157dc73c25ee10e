package filewatch

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Removed returns an error when a directory was removed while it is still mounted here, or open: it is empty and takes no files, whatever
// directory has its name on the node by now. Only a new mount shows that one, which a container gets when it starts.
func Removed(directory string) error {
	var stat unix.Stat_t
	// A directory without any name has no links; one that is missing is not mounted.
	if err := unix.Stat(directory, &stat); err != nil || stat.Nlink > 0 {
		return nil //nolint:nilerr // the caller reports a directory that is missing
	}
	return fmt.Errorf("directory %s was removed on the node: what is mounted here takes no files, and the container has to start again",
		directory)
}
