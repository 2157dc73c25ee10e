package filewatch

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// instance is an inotify instance (inotify(7)).
type instance struct {
	fd   int
	file *os.File // closing it ends a read
}

// event is a struct inotify_event.
type event struct {
	descriptor int32
	mask       uint32
	name       string // of an entry; "" for the directory's own events
}

func openInstance() (*instance, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("open an inotify instance: %w", err)
	}
	return &instance{fd: fd, file: os.NewFile(uintptr(fd), "inotify")}, nil
}

// add watches a directory for further events. A directory that is already watched keeps its descriptor.
func (i *instance) add(directory string, events uint32) (int32, error) {
	// The kernel reports events of the directory itself without a mask, except for these two.
	wd, err := unix.InotifyAddWatch(i.fd, directory, events|unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_ONLYDIR|unix.IN_MASK_ADD)
	if err != nil {
		return 0, fmt.Errorf("watch directory %s by inotify: %w", directory, err)
	}
	return int32(wd), nil //nolint:gosec // the kernel's is an int32
}

// remove ends a watch. The watch of a removed directory has ended by itself.
func (i *instance) remove(descriptor int32) {
	_, _ = unix.InotifyRmWatch(i.fd, uint32(descriptor)) //nolint:gosec // the kernel accepts the descriptor that it gave
}

func (i *instance) close() { _ = i.file.Close() }

// read passes on events until the instance is closed or cannot be read. Then it calls ended.
func (i *instance) read(deliver func(event), ended func(error)) {
	buffer := make([]byte, 16<<10) // room for some hundred events; one takes 16 to about 272 bytes
	for {
		n, err := i.file.Read(buffer)
		if err != nil {
			ended(err)
			return
		}
		for rest := buffer[:n]; len(rest) >= unix.SizeofInotifyEvent; {
			length := int(binary.NativeEndian.Uint32(rest[12:]))
			name, _, _ := bytes.Cut(rest[unix.SizeofInotifyEvent:unix.SizeofInotifyEvent+length], []byte{0})
			deliver(event{
				descriptor: int32(binary.NativeEndian.Uint32(rest)), //nolint:gosec // it is one
				mask:       binary.NativeEndian.Uint32(rest[4:]),
				name:       string(name),
			})
			rest = rest[unix.SizeofInotifyEvent+length:]
		}
	}
}
