package store

import (
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"gpufabric.io/drivers/node/atomicfile"
)

// File keeps the one value of a kind that a node has, under the same rules as a Store. It is safe for concurrent use.
type File[T any] struct {
	store *Store[T]
	name  string
}

var _ prometheus.Collector = (*File[int])(nil)

// OpenFile reads the value at path, whose directory is made if need be. A file that cannot be read is set aside and returned; it is no
// error. mode is that of a new file; 0: 0600.
func OpenFile[T any](path string, kind Kind[T], mode fs.FileMode, writer atomicfile.Writer) (*File[T], []Unreadable, error) {
	extension := filepath.Ext(path)
	name := strings.TrimSuffix(filepath.Base(path), extension)
	s, unreadable, err := Open(Options{Directory: filepath.Dir(path), Extension: extension, Only: []string{name}, Mode: mode, Writer: writer},
		kind)
	if err != nil {
		return nil, nil, err
	}
	return &File[T]{store: s, name: name}, unreadable, nil
}

// Get returns the value; false: none is kept.
func (f *File[T]) Get() (T, bool) { return f.store.Get(f.name) }

// Put keeps a value durably. One that is kept as it is already costs no write.
func (f *File[T]) Put(value T) error { return f.store.Put(f.name, value) }

// Aside says whether a file that could not be read, at this start or one before, has not been deleted since. It looks at the disk; where it
// cannot, it says yes.
func (f *File[T]) Aside() bool {
	names, err := f.store.Aside()
	return err != nil || len(names) > 0
}

// AsideDirectory is where a file lies that could not be read.
func (f *File[T]) AsideDirectory() string { return f.store.AsideDirectory() }

// Describe implements prometheus.Collector.
func (f *File[T]) Describe(descriptions chan<- *prometheus.Desc) { f.store.Describe(descriptions) }

// Collect implements prometheus.Collector.
func (f *File[T]) Collect(collected chan<- prometheus.Metric) { f.store.Collect(collected) }
