package store

import (
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"gpufabric.io/drivers/node/atomicfile"
)

// File keeps the single value of a kind that a node has, under the same rules as a Store. It is safe for concurrent use.
type File[T any] struct {
	store *Store[T]
	name  string
}

var _ prometheus.Collector = (*File[int])(nil)

// OpenFile reads the value at path. It makes its directory if need be. It sets a file that cannot be read aside and returns it;
// that is no error. mode is the mode of a new file; 0: 0600.
func OpenFile[T any](path string, kind Format[T], mode fs.FileMode, writer atomicfile.Writer) (*File[T], []Unreadable, error) {
	extension := filepath.Ext(path)
	name := strings.TrimSuffix(filepath.Base(path), extension)
	s, unreadable, err := Open(Options{Directory: filepath.Dir(path), Extension: extension, Only: []string{name}, Mode: mode, Writer: writer},
		kind)
	if err != nil {
		return nil, nil, err
	}
	return &File[T]{store: s, name: name}, unreadable, nil
}

// Get returns the value; false where there is none.
func (f *File[T]) Get() (T, bool) { return f.store.Get(f.name) }

// Put stores a value durably. An unchanged value costs no write.
func (f *File[T]) Put(value T) error { return f.store.Put(f.name, value) }

// Hold is Put for what was undone: Get returns the value even where it cannot be written, as on a full disk, and the next call that
// stores one writes it.
func (f *File[T]) Hold(value T) error {
	err := f.Put(value)
	if err != nil {
		f.store.hold(f.name, value)
	}
	return err
}

// Aside reports whether there is a file that could not be read, at this start or an earlier one, and that was not deleted since. It
// looks at the disk. Where that fails it returns true.
func (f *File[T]) Aside() bool {
	names, err := f.store.Aside()
	return err != nil || len(names) > 0
}

// AsideDirectory is where an unreadable file is moved.
func (f *File[T]) AsideDirectory() string { return f.store.AsideDirectory() }

// Describe implements prometheus.Collector.
func (f *File[T]) Describe(descriptions chan<- *prometheus.Desc) { f.store.Describe(descriptions) }

// Collect implements prometheus.Collector.
func (f *File[T]) Collect(collected chan<- prometheus.Metric) { f.store.Collect(collected) }
