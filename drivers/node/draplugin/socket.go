package draplugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"
)

// socket is a listener whose Close removes the file only while it is this listener's. Another plugin of the driver's name has the same
// paths: without this check the plugin that ends would remove the socket of the one that took over, and the kubelet its registration.
type socket struct {
	net.Listener
	path string
	file os.FileInfo
	once sync.Once
}

// listen serves a socket at path, in the place of one that an earlier run left.
func listen(ctx context.Context, path string) (*socket, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove the socket of an earlier run: %w", err)
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("serve the kubelet: %w", err)
	}
	if l, ok := listener.(*net.UnixListener); ok {
		l.SetUnlinkOnClose(false)
	}
	file, err := os.Lstat(path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("serve the kubelet: %w", err), listener.Close())
	}
	return &socket{Listener: listener, path: path, file: file}, nil
}

// replaced reports whether the path is another socket's by now. The listener keeps its inode, so that no later file has the same one.
func (s *socket) replaced() bool {
	now, err := os.Lstat(s.path)
	return err == nil && !os.SameFile(now, s.file)
}

// Close ends the listener. It may be repeated, as gRPC does.
func (s *socket) Close() error {
	var removed error
	s.once.Do(func() {
		if s.replaced() {
			return
		}
		if err := os.Remove(s.path); !errors.Is(err, fs.ErrNotExist) {
			removed = err
		}
	})
	return errors.Join(removed, s.Listener.Close())
}
