// Package atomicfile writes files that are there whole or not at all, whatever moment the process or the machine dies.
package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// tempPrefix marks files that were being written. Readers of a directory skip them by their leading dot; Sweep removes them.
const tempPrefix = ".tmp-"

// Step is a moment in a write at which a crash must leave either the old file or the new one.
type Step string

// The steps of Write, in order.
const (
	StepCreate  Step = "create the temporary file"
	StepWrite   Step = "write the temporary file"
	StepSync    Step = "sync the temporary file"
	StepRename  Step = "rename the temporary file"
	StepSyncDir Step = "sync the directory"
)

// Steps lists the steps of Write in order.
func Steps() []Step { return []Step{StepCreate, StepWrite, StepSync, StepRename, StepSyncDir} }

// Writer writes files whole. The zero value is ready to use.
type Writer struct {
	// Before, where set, is called before each step on path; its error ends the write there, as a crash would. Tests set it.
	Before func(step Step, path string) error
}

// Write replaces path by data with the given mode, durably: when it returns nil the new content survives a power cut, and when
// it returns an error path holds either its old content or the new one, whole. The directory must exist.
func (w Writer) Write(path string, data []byte, mode fs.FileMode) error {
	if err := w.write(path, data, mode); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

func (w Writer) write(path string, data []byte, mode fs.FileMode) (err error) {
	dir, name := filepath.Split(path)
	if err := w.before(StepCreate, path); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(dir, tempPrefix+name+"-")
	if err != nil {
		return err
	}
	open, renamed := true, false
	defer func() {
		if open {
			err = errors.Join(err, tmp.Close())
		}
		// A write that fails in a living process cleans up after itself; after a crash Sweep does.
		if err != nil && !renamed && !errors.Is(err, errCrash) {
			err = errors.Join(err, os.Remove(tmp.Name()))
		}
	}()
	if err := w.before(StepWrite, path); err != nil {
		return err
	}
	if err := tmp.Chmod(mode); err != nil {
		return err
	}
	if _, err := tmp.Write(data); err != nil {
		return err
	}
	if err := w.before(StepSync, path); err != nil {
		return err
	}
	if err := os.Chtimes(tmp.Name(), never, time.Time{}); err != nil {
		return err
	}
	if err := tmp.Sync(); err != nil {
		return err
	}
	open = false
	if err := tmp.Close(); err != nil {
		return err
	}
	if err := w.before(StepRename, path); err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return err
	}
	renamed = true
	if err := w.before(StepSyncDir, path); err != nil {
		return err
	}
	return syncDir(dir)
}

// never is the access time of a file from Write until its first read. It is before the time of the last write, so a file system mounted
// relatime (the usual case) updates it at the first read. One mounted noatime does not.
var never = time.Unix(0, 0)

// IsUnread reports whether a file has not been read since Write made it. It is valid only on a file system that keeps access times.
func IsUnread(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && time.Unix(stat.Atim.Unix()).Equal(never)
}

// errCrash makes a write end as if the process had died: it cleans nothing up.
var errCrash = errors.New("crash")

// Crash returns an error for Before. The write then leaves its files as a kill -9 at that step would.
func Crash() error { return errCrash }

func (w Writer) before(step Step, path string) error {
	if w.Before == nil {
		return nil
	}
	if err := w.Before(step, path); err != nil {
		return fmt.Errorf("%s: %w", step, err)
	}
	return nil
}

// Remove removes path durably. A path that is not there is no error.
func (Writer) Remove(path string) error {
	if err := os.Remove(path); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("remove %s: %w", path, err)
	}
	return syncDir(filepath.Dir(path))
}

// syncDir makes the names in a directory durable.
func syncDir(dir string) error {
	if dir == "" {
		dir = "."
	}
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	return errors.Join(d.Sync(), d.Close())
}

// Sweep removes the files that crashed writes left in dir under names that start with prefix, and returns their names. No writer of those
// names may run at the same time. Other files stay, since directories are shared (/var/run/cdi).
func Sweep(dir, prefix string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("sweep unfinished files: %w", err)
	}
	var swept []string
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), tempPrefix+prefix) {
			continue
		}
		if err := os.Remove(filepath.Join(dir, entry.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return swept, fmt.Errorf("sweep unfinished files: %w", err)
		}
		swept = append(swept, entry.Name())
	}
	return swept, nil
}
