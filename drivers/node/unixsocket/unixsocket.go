// Package unixsocket connects processes of a node by sockets that only root can use.
package unixsocket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
)

// Listen serves a socket at path, in the place of one that an earlier run left. The socket appears there when it takes connections, and
// stays when the listener is closed. The caller makes sure that no other process serves it.
func Listen(ctx context.Context, path string) (net.Listener, error) {
	unready := path + ".new"
	if err := os.Remove(unready); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove the socket of an earlier run: %w", err)
	}
	near, done, err := short(unready)
	if err != nil {
		return nil, err
	}
	defer done()
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "unix", near)
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", unready, err)
	}
	if l, ok := listener.(*net.UnixListener); ok {
		l.SetUnlinkOnClose(false) // the short name may be another file's by then
	}
	if err := errors.Join(os.Chmod(unready, 0o600), os.Rename(unready, path)); err != nil {
		return nil, errors.Join(fmt.Errorf("serve a socket that only root can use: %w", err), listener.Close())
	}
	return listener, nil
}

// Dial connects to the socket at path.
func Dial(ctx context.Context, path string) (net.Conn, error) {
	near, done, err := short(path)
	if err != nil {
		return nil, err
	}
	defer done()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", near)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", path, err)
	}
	return conn, nil
}

// short returns a name for a path that fits the kernel's limit of 107 bytes for a socket (unix(7)), valid until done is called.
func short(path string) (near string, done func(), err error) {
	directory, err := os.Open(filepath.Dir(path))
	if err != nil {
		return "", nil, fmt.Errorf("open the directory of the socket: %w", err)
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", directory.Fd(), filepath.Base(path)), func() { _ = directory.Close() }, nil
}
