package region

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// accountFile and firstLock are this project's library's (library/account.c): each of its processes has a write lock, of an open file
// description, on the byte of that file that stands for its slot. The kernel drops it when the process ends in any way.
const (
	accountFile = "gpufabric.account"
	firstLock   = 4096
)

// KeepLiving removes the processes that have ended, where this project's library counts in the directory that the region lies in. It clears
// their slots only when somebody asks for more than is left. Another limiter has no such file, and all processes stay.
func (r *Region) KeepLiving(directory string) error {
	file, err := os.OpenFile(filepath.Join(directory, accountFile), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("see which processes of a container live: %w", err)
	}
	defer file.Close() //nolint:errcheck // opened for reading only
	r.Processes = slices.DeleteFunc(r.Processes, func(p Process) bool {
		lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: unix.SEEK_SET, Start: firstLock + int64(p.Slot), Len: 1}
		err := unix.FcntlFlock(file.Fd(), unix.F_OFD_GETLK, &lock)
		return err == nil && lock.Type == unix.F_UNLCK
	})
	return nil
}
