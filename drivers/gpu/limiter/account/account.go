// Package account reads and makes the file in which the library counts the memory of a container, or of all containers of a claim's
// share (library/ledger.h).
//
// Containers write the file, so nothing in it is trusted: it is read with pread into a buffer of a fixed size, and counts are bounded
// before they index anything. The kernel reports which processes live: each has a lock on its slot's byte.
package account

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"gpufabric.io/drivers/node/tmpfs"
)

// Name is the file's name in a directory on the node that Make made.
const Name = "account"

// The layout of library/ledger.h.
const (
	size       = 459904
	magic      = 0x67706661626c6d32 // gpfablm2
	highOffset = 12
	devices    = 64
	deviceSize = 64
	uuidOffset = 12
	uuidSize   = 41
	most       = 16 // GPUs
	slots      = devices + most*deviceSize
	slotSize   = 320
	hasOffset  = 128
	mostSlots  = 1024
	firstLock  = 4096 // the byte of slot 0
)

// bound is the size of the file system that a file has for itself: the file, in pages.
const bound = 512 << 10

// Make makes a directory on the node with an account's file, which the library begins to use. An existing file stays as it is. With
// alone the directory is a tmpfs, so that a container that makes its file longer does not fill the node's disk.
func Make(directory string, alone bool) error {
	if alone {
		if err := tmpfs.Make(directory, 0o755, tmpfs.Bounds{Bytes: bound, Files: 1}); err != nil {
			return fmt.Errorf("make the directory of an account: %w; --limiter-size=0 makes it without a size limit", err)
		}
	} else if err := os.MkdirAll(directory, 0o755); err != nil {
		return fmt.Errorf("make the directory of an account: %w", err)
	}
	path := filepath.Join(directory, Name)
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return fmt.Errorf("make an account: %w", err)
	}
	defer file.Close() //nolint:errcheck // nothing is buffered
	// Containers' users with any ID write to it.
	if err := file.Chmod(0o666); err != nil {
		return fmt.Errorf("open the account to the container: %w", err)
	}
	if err := unix.Fallocate(int(file.Fd()), 0, 0, size); err != nil {
		return fmt.Errorf("reserve %d bytes for the account %s: %w", size, path, err)
	}
	return nil
}

// Account is the memory and devices of an account's living processes.
type Account struct {
	// Opened means that a process has opened the account since it was made.
	Opened bool
	// Processes is the number of living processes with a slot.
	Processes int
	// GPUs are the GPUs with limits, in the library's order.
	GPUs []GPU

	living map[int]bool // by slot
}

// GPU is the use of a GPU.
type GPU struct {
	UUID string
	// Used is the memory of all living processes in bytes.
	Used uint64
}

// ErrNotAnAccount marks a file that the library of this version did not write.
var ErrNotAnAccount = errors.New("not an account of this version's library")

// Read reads an account. It does not follow a link at path's last element.
func Read(path string) (*Account, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the account: %w", err)
	}
	defer file.Close() //nolint:errcheck // opened for reading only
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() < size {
		return nil, fmt.Errorf("%s: %w", path, errors.Join(ErrNotAnAccount, err))
	}
	content := make([]byte, size)
	if _, err := file.ReadAt(content, 0); err != nil {
		return nil, fmt.Errorf("read the account: %w", err)
	}
	switch binary.NativeEndian.Uint64(content) {
	case 0:
		return &Account{}, nil
	case magic:
	default:
		return nil, fmt.Errorf("%s: %w", path, ErrNotAnAccount)
	}
	out := &Account{Opened: true, living: map[int]bool{}}
	for d := range most {
		text := content[devices+d*deviceSize+uuidOffset:][:uuidSize]
		if end := bytes.IndexByte(text, 0); end > 0 {
			out.GPUs = append(out.GPUs, GPU{UUID: printable(text[:end])})
		} else {
			break
		}
	}
	for i := range min(binary.NativeEndian.Uint32(content[highOffset:]), mostSlots) {
		lives, err := alive(file, int64(i))
		if err != nil {
			return nil, err
		}
		if !lives {
			continue
		}
		out.Processes++
		out.living[int(i)] = true
		slot := content[slots+int(i)*slotSize:]
		for d := range out.GPUs {
			has := binary.NativeEndian.Uint64(slot[hasOffset+8*d:])
			if sum := out.GPUs[d].Used + has; sum >= has {
				out.GPUs[d].Used = sum
			} else { // a tenant's numbers: saturate rather than wrap
				out.GPUs[d].Used = ^uint64(0)
			}
		}
	}
	return out, nil
}

// Lives reports whether the process of a slot lives.
func (a *Account) Lives(slot int) bool { return a.living[slot] }

// UsedOf returns the use of a GPU in bytes; false: the account has no such GPU.
func (a *Account) UsedOf(uuid string) (uint64, bool) {
	for _, gpu := range a.GPUs {
		if gpu.UUID == uuid {
			return gpu.Used, true
		}
	}
	return 0, false
}

// alive reports whether another process has the lock of a slot.
func alive(file *os.File, slot int64) (bool, error) {
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: unix.SEEK_SET, Start: firstLock + slot, Len: 1}
	if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_GETLK, &lock); err != nil {
		return false, fmt.Errorf("list the living processes of an account: %w", err)
	}
	return lock.Type != unix.F_UNLCK, nil
}

// printable is the text up to its first byte that is not printable: a tenant's bytes must not reach a log or a label unchanged.
func printable(text []byte) string {
	for i, b := range text {
		if b < 0x20 || b > 0x7e {
			return string(text[:i])
		}
	}
	return string(text)
}
