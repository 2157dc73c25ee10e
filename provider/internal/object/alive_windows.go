package object

import "os"

// Alive reports whether a process of this machine runs.
func Alive(pid int) bool {
	process, err := os.FindProcess(pid)
	if err != nil {
		return false
	}
	_ = process.Release() // closes the handle
	return true
}
