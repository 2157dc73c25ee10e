//go:build unix

package object

import (
	"errors"
	"syscall"
)

// Alive reports whether a process of this machine runs.
func Alive(pid int) bool {
	err := syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}
