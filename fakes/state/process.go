package state

import (
	"errors"

	"golang.org/x/sys/unix"
)

// PIDNamespace is the PID namespace of this process: the low bits of its inode, 0 where that cannot be told.
func PIDNamespace() uint32 {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &st); err != nil {
		return 0
	}
	return uint32(st.Ino)
}

// Alive reports whether the entry is in use by a process that may still live; only a process of the same PID namespace can tell, and
// namespace is the caller's own (see PIDNamespace).
func (p *Process) Alive(namespace uint32) bool {
	if p.PID == 0 {
		return false
	}
	return p.Namespace != namespace || !errors.Is(unix.Kill(int(p.PID), 0), unix.ESRCH)
}

// Sweep frees the entries of processes that have ended.
func (g *GPU) Sweep() {
	namespace := PIDNamespace()
	for i := range g.Processes {
		if p := &g.Processes[i]; p.PID != 0 && !p.Alive(namespace) {
			*p = Process{}
		}
	}
}
