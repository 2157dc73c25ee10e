package drain

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Blocker is a role that has not closed NVML.
type Blocker struct {
	Role string
	// Why is the reason why the role has not closed NVML.
	Why string
	// Ended is set for a role that does not run.
	Ended bool
	// file is the role's member file.
	file string
}

func (h Blocker) String() string {
	if h.Ended {
		return fmt.Sprintf("%s ended while %s: start it again, and it closes NVML; if it is uninstalled, remove %s", h.Role, h.Why, h.file)
	}
	return h.Role + ": " + h.Why
}

// Blockers returns the roles that have not closed NVML, sorted by name.
func (d Directory) Blockers() ([]Blocker, error) {
	entries, err := os.ReadDir(d.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for roles that have NVML open: %w", err)
	}
	var out []Blocker
	for _, entry := range entries {
		role, is := strings.CutSuffix(entry.Name(), memberSuffix)
		if !is {
			continue
		}
		why, ended, err := examine(d.file(entry.Name()))
		if err != nil {
			return nil, fmt.Errorf("check whether %s has NVML open: %w", role, err)
		}
		if why != "" {
			out = append(out, Blocker{Role: role, Why: why, Ended: ended, file: d.file(entry.Name())})
		}
	}
	slices.SortFunc(out, func(a, b Blocker) int { return strings.Compare(a.Role, b.Role) })
	return out, nil
}

// TakesPart reports whether a role of this name has taken part in drains on this node, and so closes NVML by itself.
func (d Directory) TakesPart(role string) bool {
	_, err := os.Lstat(d.file(role + memberSuffix))
	return d.Path != "" && err == nil
}

// examine reads a role's member file. ended: the role no longer runs.
func examine(path string) (why string, ended bool, err error) {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", false, nil
	}
	if err != nil {
		return "", false, err
	}
	defer func() { _ = file.Close() }() // this releases the lock, too
	text := make([]byte, 1024)
	n, err := file.Read(text)
	if errors.Is(err, io.EOF) {
		return "", false, nil
	}
	if err != nil {
		return "", false, fmt.Errorf("read %s: %w", path, err)
	}
	err = flock(file, unix.LOCK_EX|unix.LOCK_NB)
	if err != nil && !errors.Is(err, unix.EWOULDBLOCK) {
		return "", false, fmt.Errorf("lock %s: %w", path, err)
	}
	return strings.TrimSpace(string(text[:n])), err == nil, nil
}
