package state

import (
	"errors"
	"io"

	"golang.org/x/sys/unix"
)

// PIDNamespace is the PID namespace of this process: the low bits of its inode, 0 where that is unknown.
func PIDNamespace() uint32 {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &st); err != nil {
		return 0
	}
	return uint32(st.Ino)
}

// Alive reports whether the entry is in use by a process that may still live. A process of another PID namespace is recognised by
// its lock on the file.
func (b *Body) Alive(p *Process) bool {
	switch {
	case p.PID == 0:
		return false
	case b.file == nil || p.Namespace == 0:
		return true
	case p.Namespace == b.file.namespace:
		return !errors.Is(unix.Kill(int(p.PID), 0), unix.ESRCH)
	}
	return b.file.held(p.place())
}

// place is the byte of the file, far behind its end, that a process with entries keeps locked for as long as it lives (see nvml/process.c).
func (p *Process) place() int64 { return int64(p.Namespace&0x3fffffff)<<32 | int64(p.PID) }

// held reports whether another process holds the lock on that byte, or where that is unknown.
func (f *File) held(place int64) bool {
	asked := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: place, Len: 1}
	err := unix.FcntlFlock(f.file.Fd(), unix.F_OFD_GETLK, &asked)
	return err != nil || asked.Type != unix.F_UNLCK
}

// clientPlace is the byte of the file that every NVML client keeps locked for reading (see nvml/state.c).
const clientPlace = 1 << 61

// HoldAsClient records that an NVML client has the node's GPUs open through this opening of the file, until ReleaseAsClient or
// Close.
func (f *File) HoldAsClient() error { return f.lockClient(unix.F_RDLCK) }

// ReleaseAsClient ends HoldAsClient.
func (f *File) ReleaseAsClient() error { return f.lockClient(unix.F_UNLCK) }

func (f *File) lockClient(how int16) error {
	return unix.FcntlFlock(f.file.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: how, Whence: io.SeekStart, Start: clientPlace, Len: 1})
}

// OtherClients reports whether an NVML client other than this opening of the file has the node's GPUs open, or where that is
// unknown.
func (f *File) OtherClients() bool { return f.held(clientPlace) }

// OtherClients is File.OtherClients of the body's file.
func (b *Body) OtherClients() bool { return b.file != nil && b.file.OtherClients() }

// Sweep frees the entries of processes that have ended, on a GPU of the body.
func (b *Body) Sweep(g *GPU) {
	for i := range g.Processes {
		if p := &g.Processes[i]; p.PID != 0 && !b.Alive(p) {
			*p = Process{}
		}
	}
}
