package unixsocket_test

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"gpufabric.io/drivers/node/unixsocket"
)

func TestListenReplacesTheSocketOfAKilledProcess(t *testing.T) {
	t.Parallel()
	directory := filepath.Join(t.TempDir(), strings.Repeat("long", 40)) // more than the 107 bytes of a socket's name
	if err := os.MkdirAll(directory, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(directory, "role.sock")
	for range 2 {
		listener, err := unixsocket.Listen(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("the socket's mode is %v (%v), want 0600", info.Mode(), err)
		}
		go func() {
			conn, err := listener.Accept()
			if err == nil {
				_, _ = io.WriteString(conn, "served")
				_ = conn.Close()
			}
		}()
		conn, err := unixsocket.Dial(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(conn); string(got) != "served" {
			t.Errorf("read %q (%v)", got, err)
		}
		if err := errors.Join(conn.Close(), listener.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := unixsocket.Dial(t.Context(), path); !errors.Is(err, unix.ECONNREFUSED) || !strings.Contains(err.Error(), path) {
		t.Errorf("a socket without a process: %v", err)
	}
	if _, err := unixsocket.Dial(t.Context(), path+"/none"); err == nil {
		t.Error("connected to a path below a socket")
	}
	if _, err := unixsocket.Listen(t.Context(), filepath.Join(directory, "none", "role.sock")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a socket in a directory that does not exist: %v", err)
	}
}
