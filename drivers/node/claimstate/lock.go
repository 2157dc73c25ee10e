package claimstate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	lockFile = "lock"
	// lockPatience is how long a process that is just ending may still hold the directory. lockInterval is how often to try the lock
	// again, since waiting for a file lock cannot be interrupted.
	lockPatience = 5 * time.Second
	lockInterval = 100 * time.Millisecond
)

// Lock keeps every other process out of a role's state directory until Close, or until this process ends in any way. Two plugins of
// one role would undo each other's work. Lock waits briefly for a process that holds it, then names its PID in the error.
func Lock(ctx context.Context, dir string) (io.Closer, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("lock the state directory: %w", err)
	}
	path := filepath.Join(dir, lockFile)
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o640)
	if err != nil {
		return nil, fmt.Errorf("lock the state directory: %w", err)
	}
	if err := acquire(ctx, file); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	// The text is only for people, and for the message below; the kernel's lock decides. A plugin on a full disk must still be able
	// to release its devices.
	_ = errors.Join(file.Truncate(0), writeAt(file, strconv.Itoa(os.Getpid())+"\n"))
	return file, nil
}

func acquire(ctx context.Context, file *os.File) error {
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("lock %s: %w", file.Name(), err)
		}
		select {
		case <-time.After(lockInterval):
		case <-ctx.Done():
			return fmt.Errorf("the state directory %s is used by another process (%s, by %s): one node runs one plugin of a role; end the other, "+
				"or give this one "+
				"a --state-dir of its own", filepath.Dir(file.Name()), holder(file), file.Name())
		}
	}
}

func writeAt(file *os.File, text string) error {
	_, err := file.WriteAt([]byte(text), 0)
	return err
}

// holder returns the PID in the lock file, in words. A PID is only valid in its own container.
func holder(file *os.File) string {
	content := make([]byte, 32)
	n, _ := file.ReadAt(content, 0)
	if pid := strings.TrimSpace(string(content[:n])); pid != "" {
		return "PID " + pid
	}
	return "PID unknown"
}
