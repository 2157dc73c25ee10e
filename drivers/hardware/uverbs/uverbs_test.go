package uverbs

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// kernel handles commands as the kernel's uverbs device does. It checks them as strictly, and writes its answer to the address
// in the command.
type kernel struct {
	t      *testing.T
	driver string
	events *os.File // the file to which the test writes events; nil: no context yet
	closed bool
}

func (k *kernel) Write(command []byte) (int, error) {
	k.t.Helper()
	if len(command) < 8 {
		return 0, unix.EINVAL
	}
	inWords, outWords := binary.NativeEndian.Uint16(command[4:]), binary.NativeEndian.Uint16(command[6:])
	switch {
	case binary.NativeEndian.Uint32(command) != 0:
		return 0, unix.EOPNOTSUPP
	case int(inWords)*4 != len(command) || len(command) < 16:
		return 0, unix.EINVAL
	case int(outWords)*4 < 8:
		return 0, unix.ENOSPC
	}
	own := command[16:]
	if k.driver == "mlx5_core" && (len(own) != 8 || binary.NativeEndian.Uint32(own) == 0 ||
		binary.NativeEndian.Uint32(own[4:]) >= binary.NativeEndian.Uint32(own)) {
		return 0, unix.EINVAL
	}
	if k.driver == "irdma" { // requires its own version
		return 0, unix.EINVAL
	}
	if k.driver == "silent" {
		return len(command), nil
	}
	pipe := make([]int, 2)
	if err := unix.Pipe2(pipe, unix.O_CLOEXEC); err != nil {
		k.t.Fatal(err)
	}
	k.events = os.NewFile(uintptr(pipe[1]), "events")
	answer := make([]byte, int(outWords)*4) // all of the space, as a driver may
	binary.NativeEndian.PutUint32(answer, uint32(pipe[0]))
	binary.NativeEndian.PutUint32(answer[4:], 63)
	memory, err := os.OpenFile("/proc/self/mem", os.O_WRONLY, 0)
	if err != nil {
		k.t.Fatal(err)
	}
	defer func() { _ = memory.Close() }()
	if _, err := memory.WriteAt(answer, int64(binary.NativeEndian.Uint64(command[8:]))); err != nil {
		return 0, unix.EFAULT
	}
	return len(command), nil
}

func (k *kernel) Close() error { k.closed = true; return nil }

func (k *kernel) happen(element uint64, kind EventType) {
	k.t.Helper()
	desc := binary.NativeEndian.AppendUint64(nil, element)
	desc = binary.NativeEndian.AppendUint32(desc, uint32(kind))
	desc = binary.NativeEndian.AppendUint32(desc, 0)
	if _, err := k.events.Write(desc); err != nil {
		k.t.Fatal(err)
	}
}

func TestEventsOfPortsAreReceived(t *testing.T) {
	for _, driver := range []string{"mlx5_core", "mlx4_core", "bnxt_re"} {
		t.Run(driver, func(t *testing.T) {
			k := &kernel{t: t, driver: driver}
			d, err := attach(k, driver)
			if err != nil {
				t.Fatal(err)
			}
			k.happen(1, PortError)
			k.happen(0xdead, 4) // of a queue pair
			k.happen(2, PortActive)
			k.happen(1, GIDChange)
			k.happen(0, DeviceFatal)
			for _, want := range []Event{{PortError, 1}, {PortActive, 2}, {GIDChange, 1}, {DeviceFatal, 0}} {
				if got, err := d.Next(); err != nil || got != want {
					t.Errorf("got %+v, %v; want %+v", got, err, want)
				}
			}
			_ = k.events.Close() // The device was removed.
			if _, err := d.Next(); !errors.Is(err, io.EOF) {
				t.Errorf("got %v after the device went", err)
			}
			if err := d.Close(); err != nil || !k.closed {
				t.Errorf("closed: %v, %v", k.closed, err)
			}
		})
	}
}

func TestCloseEndsTheWaitForAnEvent(t *testing.T) {
	k := &kernel{t: t}
	d, err := attach(k, "mlx4_core")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() {
		_, err := d.Next()
		ended <- err
	}()
	k.happen(1, 4) // an event without a port: Next waits on, which shows that the wait has begun
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, os.ErrClosed) {
		t.Errorf("got %v", err)
	}
	_ = k.events.Close()
}

func TestOpenReportsDriverThatRefuses(t *testing.T) {
	if _, err := attach(&kernel{t: t, driver: "irdma"}, "irdma"); !errors.Is(err, unix.EINVAL) {
		t.Errorf("got %v", err)
	}
	if _, err := attach(&kernel{t: t, driver: "mlx5_core"}, "another"); !errors.Is(err, unix.EINVAL) {
		t.Errorf("mlx5 without its data: got %v", err)
	}
	if _, err := attach(&kernel{t: t, driver: "silent"}, "silent"); err == nil {
		t.Error("a context without events is no error")
	}
}

func TestReceiveEndsOnTruncatedEvent(t *testing.T) {
	k := &kernel{t: t}
	d, err := attach(k, "mlx4_core")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	if _, err := k.events.Write([]byte{1, 2, 3}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Next(); err == nil || !strings.Contains(err.Error(), "3 bytes") {
		t.Errorf("got %v", err)
	}
}

func TestOpenRefusesOtherFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "uverbs0")
	if _, err := Open(file, "mlx5_core"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("nothing there: got %v", err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	// As in the /dev of a machine without the hardware: the command must not be written to a plain file.
	if _, err := Open(file, "mlx5_core"); err == nil || !strings.Contains(err.Error(), file+" is not a character device") {
		t.Errorf("a plain file: got %v", err)
	}
	if content, err := os.ReadFile(file); err != nil || len(content) > 0 {
		t.Errorf("the plain file has %q, %v", content, err)
	}
	if _, err := Open("/dev/full", "mlx5_core"); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a device that refuses: got %v", err)
	}
	if _, err := Open("/dev/null", "mlx5_core"); err == nil || !strings.Contains(err.Error(), "without a file of events") {
		t.Errorf("a device that takes everything: got %v", err)
	}
}
