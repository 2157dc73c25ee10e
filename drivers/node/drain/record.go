package drain

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"gpufabric.io/drivers/node/atomicfile"
)

const (
	// operatorFile has the label for which the node is drained, and the resource version of the Node that had it; or administrator. A node
	// without it is drained by an administrator, or not at all.
	operatorFile  = "operator"
	administrator = "administrator"

	// operatorLock is locked by the process that decides by operatorFile. Each writes some files at most.
	operatorLock         = "operator.lock"
	operatorLockInterval = 20 * time.Millisecond
	operatorLockPatience = 15 * time.Second
)

// TakeOver makes the drain an administrator's: no label ends it.
func (d Directory) TakeOver(ctx context.Context) error {
	return d.locked(ctx, func() error { return d.write(record{by: administrator}) })
}

// Disown removes the record of the label for which the node is drained.
func (d Directory) Disown(ctx context.Context) error { return d.locked(ctx, d.forget) }

// record is the content of operatorFile.
type record struct{ by, version string }

// read returns the record; the zero value: there is none.
func (d Directory) read() record {
	text, err := os.ReadFile(d.file(operatorFile))
	if err != nil || d.Path == "" {
		return record{}
	}
	by, version, _ := strings.Cut(strings.TrimSpace(string(text[:min(len(text), 1000)])), "\n")
	return record{by: by, version: version}
}

func (d Directory) write(r record) error {
	if err := (atomicfile.Writer{}).Write(d.file(operatorFile), []byte(r.by+"\n"+r.version+"\n"), 0o644); err != nil {
		return fmt.Errorf("record the label for which the node's GPUs are drained: %w", err)
	}
	return nil
}

func (d Directory) forget() error {
	if err := os.Remove(d.file(operatorFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the record of the label for which the node's GPUs are drained: %w", err)
	}
	return nil
}

// locked runs a function while no other role decides by operatorFile. A role that does not take part in drains has no such file.
func (d Directory) locked(ctx context.Context, decide func() error) error {
	if d.Path == "" {
		return nil
	}
	if err := d.make(); err != nil {
		return err
	}
	path := d.file(operatorLock)
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("find the owner of the node's drain: %w", err)
	}
	defer func() { _ = file.Close() }() // this releases the lock, too
	ctx, cancel := context.WithTimeout(ctx, operatorLockPatience)
	defer cancel()
	for {
		err := flock(file, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return decide()
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return fmt.Errorf("find the owner of the node's drain: lock %s: %w", path, err)
		}
		select {
		case <-time.After(operatorLockInterval):
		case <-ctx.Done():
			return fmt.Errorf("find the owner of the node's drain: %s is locked by another role or command of this node for %s: end the one that "+
				"hangs", path, operatorLockPatience)
		}
	}
}

// By is the label of NVIDIA's GPU operator for which the node is drained; empty: none.
func (d Directory) By() string {
	if by := d.read().by; by != administrator {
		return by
	}
	return ""
}

// Until is in words when the drain ends.
func (d Directory) Until() string {
	if by := d.By(); by != "" {
		return "until NVIDIA's GPU operator takes the node's label " + by + " back"
	}
	return "until gpufabric undrain"
}

func flock(file *os.File, how int) error {
	for {
		if err := unix.Flock(int(file.Fd()), how); !errors.Is(err, unix.EINTR) { //nolint:gosec // a descriptor is an int
			return err
		}
	}
}
