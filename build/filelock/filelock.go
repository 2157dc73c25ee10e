// Package filelock lets one process at a time work on what a file represents: a tool that is being built, a cluster in which tests
// run.
package filelock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// There is no event for a file lock that also works with a context, so the lock is tried at this interval.
const retry = 200 * time.Millisecond

// Lock takes the file's advisory lock, which the kernel releases when the process ends in any way. waiting is called once if
// another process holds it.
func Lock(ctx context.Context, path string, waiting func()) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	reported := false
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = file.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			_ = file.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if !reported {
			waiting()
			reported = true
		}
		select {
		case <-ctx.Done():
			_ = file.Close()
			return nil, fmt.Errorf("lock %s, which another process holds: %w", path, context.Cause(ctx))
		case <-time.After(retry):
		}
	}
}
