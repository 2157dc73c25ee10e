package state

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrNoCgroup marks a path that is no directory of cgroup v2.
var ErrNoCgroup = errors.New("no directory of cgroup v2")

// CgroupOf is the inode of a cgroup's directory, which is unique among cgroups.
func CgroupOf(path string) (uint64, error) {
	var in unix.Statfs_t
	var directory unix.Stat_t
	if err := errors.Join(unix.Statfs(path, &in), unix.Stat(path, &directory)); err != nil {
		return 0, fmt.Errorf("%s: %w: %w", path, ErrNoCgroup, err)
	}
	if in.Type != unix.CGROUP2_SUPER_MAGIC || directory.Mode&unix.S_IFMT != unix.S_IFDIR {
		return 0, fmt.Errorf("%s: %w", path, ErrNoCgroup)
	}
	return directory.Ino, nil
}

// Cgroups are this process's cgroup and then those above it, as far as it sees them; the rest is 0. nvml/cgroup.c has the same for C.
func Cgroups() (ids [MaxCgroups]uint64) {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return ids
	}
	for line := range strings.Lines(string(text)) {
		below, found := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !found || strings.HasPrefix(below, "/..") {
			continue
		}
		for _, mount := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
			if _, err := CgroupOf(mount); err != nil {
				continue
			}
			path := filepath.Join(mount, below)
			for i := 0; i < len(ids) && len(path) >= len(mount); i++ {
				if ids[i], err = CgroupOf(path); err != nil {
					return ids
				}
				path = filepath.Dir(path)
			}
			return ids
		}
	}
	return ids
}

// In reports whether a process is in a cgroup, or in one below it.
func (p *Process) In(cgroup uint64) bool {
	return p.PID != 0 && cgroup != 0 && slices.Contains(p.Cgroups[:], cgroup)
}
