// Package accounttest plays the library's processes in tests of the readers of their accounts.
package accounttest

import (
	"encoding/binary"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// Count writes an account in which one process uses this many bytes of a GPU. The process ends with the test. It may be repeated.
func Count(t testing.TB, path, uuid string, used uint64) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	lock := unix.Flock_t{Type: unix.F_RDLCK, Whence: unix.SEEK_SET, Start: 4096, Len: 1}
	if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
		t.Fatal(err)
	}
	// The offsets are those of library/ledger.h.
	for at, content := range map[int64][]byte{
		0:                      binary.NativeEndian.AppendUint64(nil, 0x67706661626c6d32),
		12:                     binary.NativeEndian.AppendUint32(nil, 1), // slots that were taken
		64 + 12:                append([]byte(uuid), 0),
		64 + 16*64 + 128:       binary.NativeEndian.AppendUint64(nil, used),
		64 + 16*64 + 320 + 128: binary.NativeEndian.AppendUint64(nil, 1<<40), // behind them
	} {
		if _, err := file.WriteAt(content, at); err != nil {
			t.Fatal(err)
		}
	}
}
