package imex

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// SessionName is the file in a node's state directory that represents the driver's IMEX session.
const SessionName = "imex-session"

// ErrInUse is the driver's answer to a second daemon: NV_ERR_IN_USE.
var ErrInUse = errors.New("the driver has an IMEX session already (NV_ERR_IN_USE); a node has one at a time")

// Session is the node's IMEX session, which makes importing memory of other nodes possible.
//
// The rules are those of the driver (open-gpu-kernel-modules, src/nvidia/src/kernel/rmapi/imex_session_api.c). A node has one
// session. The opener holds it until it is closed or the process is gone. When it ends, every client on the node that has
// imported memory is disabled for good: a later session does not enable it again. The holder locks the file, so that the kernel
// ends a session as the driver does. The file holds the number of the session.
type Session struct {
	file *os.File
}

// OpenSession opens the session of the node whose state directory this is.
func OpenSession(dir string) (*Session, error) {
	file, err := os.OpenFile(filepath.Join(dir, SessionName), os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, fmt.Errorf("IMEX session: %w", err)
	}
	lock := wholeFile(unix.F_WRLCK)
	if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
		_ = file.Close() // it was only read
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
			return nil, ErrInUse
		}
		return nil, fmt.Errorf("IMEX session: %w", err)
	}
	s := &Session{file: file}
	number, err := sessionNumber(file)
	if err == nil {
		_, err = file.WriteAt([]byte(fmt.Sprintf("%d\n", number+1)), 0)
	}
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("IMEX session: %w", err)
	}
	return s, nil
}

// Close ends the session.
func (s *Session) Close() { _ = s.file.Close() } // its state is in the lock

// Import is memory of another node that a client of this node has imported.
type Import struct {
	dir    string
	number int
}

// ImportMemory imports memory of another node, as cuMemImportFromShareableHandle does. It needs a session.
func ImportMemory(dir string) (*Import, error) {
	number, open, err := session(dir)
	if err != nil {
		return nil, err
	}
	if !open {
		return nil, errors.New("no IMEX session on this node: memory of other nodes cannot be imported")
	}
	return &Import{dir: dir, number: number}, nil
}

// Alive reports whether the client can still use the memory: the session of its import has not ended since.
func (i *Import) Alive() bool {
	number, open, err := session(i.dir)
	return err == nil && open && number == i.number
}

// session returns the number of a node's session, and whether it is open.
func session(dir string) (number int, open bool, err error) {
	file, err := os.Open(filepath.Join(dir, SessionName))
	if errors.Is(err, os.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("IMEX session: %w", err)
	}
	defer func() { _ = file.Close() }() // only read from
	held := wholeFile(unix.F_RDLCK)
	if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_GETLK, &held); err != nil {
		return 0, false, fmt.Errorf("IMEX session: %w", err)
	}
	number, err = sessionNumber(file)
	return number, held.Type != unix.F_UNLCK, err
}

// wholeFile is a lock of that kind on a whole file. It belongs to an open file and not to a process, since the daemons of a
// simulation share one process.
func wholeFile(kind int16) unix.Flock_t { return unix.Flock_t{Type: kind, Whence: io.SeekStart} }

func sessionNumber(file *os.File) (int, error) {
	data, err := io.ReadAll(io.NewSectionReader(file, 0, 64))
	if err != nil || len(data) == 0 {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(data)))
}
