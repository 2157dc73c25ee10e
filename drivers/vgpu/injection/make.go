package injection

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/klog/v2"

	"gpufabric.io/drivers/gpu/limiter"
	"gpufabric.io/drivers/gpu/limiter/account"
	"gpufabric.io/drivers/node/atomicfile"
)

// empty is an empty file, beside the containers' directories.
func (l Limiter) empty() string { return filepath.Join(filepath.Dir(l.Containers), "empty") }

// limits is the file with the limits of a container with a directory of that name. No container can write there.
func (l Limiter) limits(name string) string {
	return filepath.Join(filepath.Dir(l.Containers), "limits", name)
}

// Make makes the files that a container finds when it starts: directories for its limiter, emptied of earlier runs, and its
// limits. The container may run as any user, so everybody may write to the directories, which are sticky.
func (l Limiter) Make(c Container, limits []Limit) error {
	directory, err := l.Accounting(c)
	if err != nil {
		return err
	}
	name := filepath.Base(directory)
	for _, in := range []string{l.Containers, l.Locks} {
		if err := l.setAside(in, name); err != nil {
			return fmt.Errorf("empty the directory of the container's limiter: %w", err)
		}
		if err := limiter.MakeDirectory(filepath.Join(in, name), l.Bytes); err != nil {
			return err
		}
	}
	switch {
	case l.Of(limits) == HAMiCore:
		if err := os.WriteFile(l.empty(), nil, 0o444); err != nil { //nolint:gosec // every container's user reads it
			return fmt.Errorf("make the empty file that covers %s in containers: %w", override, err)
		}
	case l.ours(limits):
		if err := l.setAside(l.Accounts, name); err != nil {
			return fmt.Errorf("empty the directory of the container's account: %w", err)
		}
		if err := account.Make(filepath.Join(l.Accounts, name), l.Bytes > 0); err != nil {
			return err
		}
		return l.write(name, limits)
	}
	return nil
}

// write writes the file of a container's limits.
func (l Limiter) write(name string, limits []Limit) error {
	said := l.converted(limits)
	text, err := limiter.Text(said, l.Closed)
	if err != nil {
		return err
	}
	path := l.limits(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make the directory of containers' limits: %w", err)
	}
	if err := (atomicfile.Writer{}).Write(path, text, 0o444); err != nil {
		return err
	}
	if l.Seats != nil {
		return l.Seats.Open(name, said)
	}
	return nil
}

// converted are a container's limits as the library has them.
func (l Limiter) converted(limits []Limit) []limiter.Limit {
	out := make([]limiter.Limit, 0, len(limits))
	for _, limit := range limits {
		one := limiter.Limit{UUID: limit.UUID, Bytes: limit.MemoryMiB << 20, Cores: limit.Cores}
		if l.Backend == Native {
			one.Bytes, one.Elsewhere = 0, true
		}
		out = append(out, one)
	}
	return out
}

// Resume gives the containers that run already their seats again, after a restart of this program.
func (l Limiter) Resume(ctx context.Context) {
	var names []string
	entries, err := os.ReadDir(filepath.Dir(l.limits("any")))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		klog.FromContext(ctx).Error(err, "Could not list the limits of containers; each container enforces its limit of cores by itself")
		return
	}
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	l.Seats.Resume(ctx, names, func(name string) ([]limiter.Limit, error) {
		text, err := os.ReadFile(l.limits(name))
		if err != nil {
			return nil, err
		}
		return limiter.Parse(text)
	})
}

// forget removes a container's limits.
func (l Limiter) forget(name string) error {
	if l.Seats != nil {
		if err := l.Seats.Close(name); err != nil {
			return err
		}
	}
	if err := os.Remove(l.limits(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
