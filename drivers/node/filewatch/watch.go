package filewatch

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
)

// entryEvents report entries that appear, disappear or are replaced. directoryEvents report that the watched directory no longer
// has its name.
const (
	entryEvents     = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO
	directoryEvents = unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_UNMOUNT | unix.IN_IGNORED
)

// watch is one user's request. The watcher's lock guards it.
type watch struct {
	directory string
	names     []string // nil: every one
	events    uint32
	changed   chan struct{}
	log       logr.Logger

	attached   bool // inotify watches it
	descriptor int32
	identity   identity
	missing    bool   // the directory did not exist at the last attempt
	refused    bool   // a refusal of inotify was logged
	seen       string // the result of look, without inotify
}

func (s *watch) notify() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func (s *watch) matches(name string) bool {
	return s.names == nil || slices.Contains(s.names, name)
}

// look describes the directory by names, inodes and their change times. Two descriptions differ where an entry appeared,
// disappeared, was replaced or was written. Change times are part of it because a file system may reuse the inode of a removed
// file.
func (s *watch) look() string {
	names := s.names
	if names == nil {
		entries, err := os.ReadDir(s.directory)
		if err != nil {
			return err.Error()
		}
		for _, entry := range entries {
			names = append(names, entry.Name())
		}
	}
	var text strings.Builder
	for _, name := range names {
		var stat unix.Stat_t
		if err := unix.Lstat(filepath.Join(s.directory, name), &stat); err == nil {
			fmt.Fprintf(&text, "%q %d %d.%d\n", name, stat.Ino, stat.Ctim.Sec, stat.Ctim.Nsec)
		}
	}
	return text.String()
}

// identity distinguishes two directories of one name.
type identity struct{ device, inode uint64 }

func identify(directory string) (identity, error) {
	var stat unix.Stat_t
	if err := unix.Stat(directory, &stat); err != nil {
		return identity{}, &os.PathError{Op: "stat", Path: directory, Err: err}
	}
	return identity{device: stat.Dev, inode: stat.Ino}, nil
}
