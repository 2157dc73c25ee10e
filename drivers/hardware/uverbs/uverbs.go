// Package uverbs receives an RDMA device's asynchronous events: ports that appear and disappear, and other changes of ports.
//
// The kernel sends them only to a process that has the device open, through /dev/infiniband/uverbsN. A command makes a context and
// a file; events are read from that file (the write interface of rdma/ib_user_verbs.h). A context belongs to the driver, and some
// drivers need their own data for it.
package uverbs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// EventType is the kind of event, by the kernel's number (enum ib_event_type).
type EventType uint32

// The kinds of events that concern a device or a port. Others concern objects of a context, which this one does not make.
const (
	DeviceFatal      EventType = 8
	PortActive       EventType = 9
	PortError        EventType = 10
	LIDChange        EventType = 11
	PKeyChange       EventType = 12
	SMChange         EventType = 13
	ClientReregister EventType = 17
	GIDChange        EventType = 18
)

// Event is one asynchronous event.
type Event struct {
	Type EventType
	Port int // from 1; 0 where the event is the device's
}

// Device is an open device whose events can be read.
type Device struct {
	device io.Closer // holds the context
	events *os.File
}

const (
	getContext = 0 // IB_USER_VERBS_CMD_GET_CONTEXT
	// header is struct ib_uverbs_cmd_hdr: the command, and the number of words in and out, of 32, 16 and 16 bits.
	header = 8
	// request is the address of the response; the driver's part follows it.
	request = 8
	// response is struct ib_uverbs_get_context_resp, a file descriptor and a number of vectors, with room for the fields that drivers add;
	// mlx5's is 72 bytes.
	response = 8 + 248
	// event is struct ib_uverbs_async_event_desc: the port in 64 bits, the kind in 32, and 32 reserved.
	event = 16
)

// driverData is a driver's part of the request for a context, in 32-bit words. mlx5 needs the number of doorbell registers, and how many of
// them are for low latency (struct mlx5_ib_alloc_ucontext_req). It accepts no fewer than one; these are the numbers that libmlx5
// requests. Drivers without an entry need none, or refuse.
func driverData(driver string) []uint32 {
	if driver == "mlx5_core" {
		return []uint32{16, 4}
	}
	return nil
}

// Open opens the device node at path, of a device with that kernel driver. It needs write access to the node. The error distinguishes
// missing access from a driver that refuses.
func Open(path, driver string) (*Device, error) {
	// Not os.OpenFile: the runtime would poll the file, for which the kernel has no events.
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	file := os.NewFile(uintptr(fd), path)
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil || stat.Mode&unix.S_IFMT != unix.S_IFCHR {
		_ = file.Close() // A regular file would store the command.
		return nil, fmt.Errorf("%s is not a character device", path)
	}
	d, err := attach(file, driver)
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("request the events of %s (driver %s): %w", path, driver, err)
	}
	return d, nil
}

// attach makes a context on an open device.
func attach(device io.WriteCloser, driver string) (*Device, error) {
	var pin runtime.Pinner // The kernel writes to the response behind Go's back.
	defer pin.Unpin()
	answer := new([response]byte)
	pin.Pin(answer)
	// A kernel that answers with less leaves the rest unchanged.
	none := uint32(1<<32 - 1)
	binary.NativeEndian.PutUint32(answer[:], none)

	data := driverData(driver)
	length := header + request + 4*len(data)
	command := make([]byte, 0, length)
	command = binary.NativeEndian.AppendUint32(command, getContext)
	command = binary.NativeEndian.AppendUint16(command, uint16(length/4))
	command = binary.NativeEndian.AppendUint16(command, response/4)
	command = binary.NativeEndian.AppendUint64(command, uint64(uintptr(unsafe.Pointer(answer))))
	for _, word := range data {
		command = binary.NativeEndian.AppendUint32(command, word)
	}
	if _, err := device.Write(command); err != nil {
		return nil, err
	}
	fd := binary.NativeEndian.Uint32(answer[:])
	if fd == none {
		return nil, errors.New("the kernel made a context without a file of events")
	}
	// Non-blocking, so that the runtime waits for it and Close ends the wait.
	if err := unix.SetNonblock(int(fd), true); err != nil {
		_ = unix.Close(int(fd))
		return nil, fmt.Errorf("the file of events: %w", err)
	}
	return &Device{device: device, events: os.NewFile(uintptr(fd), "uverbs events")}, nil
}

// Next waits for the next event. After an error there are no more: the device is gone, or Close was called.
func (d *Device) Next() (Event, error) {
	var desc [event]byte
	for {
		n, err := d.events.Read(desc[:])
		if err != nil {
			return Event{}, err
		}
		if n != event {
			return Event{}, fmt.Errorf("an event of %d bytes, not %d", n, event)
		}
		switch kind := EventType(binary.NativeEndian.Uint32(desc[8:])); kind {
		case DeviceFatal:
			return Event{Type: kind}, nil
		case PortActive, PortError, LIDChange, PKeyChange, SMChange, ClientReregister, GIDChange:
			return Event{Type: kind, Port: int(uint8(binary.NativeEndian.Uint64(desc[:])))}, nil
		}
	}
}

// Close returns the device to its driver, and ends a waiting Next.
func (d *Device) Close() error { return errors.Join(d.events.Close(), d.device.Close()) }
