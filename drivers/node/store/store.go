package store

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"

	"gpufabric.io/drivers/node/atomicfile"
)

// AsideName is the name of the directory, beside the files, for files that could not be read.
const AsideName = "unreadable"

// Unreadable is a file that could not be read and was set aside.
type Unreadable struct {
	// Kind is the kind of state, Name the value's name.
	Kind, Name string
	// File is where it was, MovedTo where it is now. MovedTo is empty where moving it failed too.
	File, MovedTo string
	// Err is the reason.
	Err error
}

func (u Unreadable) String() string {
	switch {
	case u.MovedTo == "":
		return fmt.Sprintf("state %s (%s) is unreadable and could not be set aside: %v", u.File, u.Kind, u.Err)
	case errors.Is(u.Err, ErrNewer):
		return fmt.Sprintf("state %s (%s) is not for this version of the program (%v); set aside as %s: run the newer version again and move "+
			"the file back before it "+
			"starts, or delete it when nothing uses what it describes any more", u.File, u.Kind, u.Err, u.MovedTo)
	default:
		return fmt.Sprintf("state %s (%s) is unreadable (%v); set aside as %s: look at it, and delete it when nothing uses what it describes "+
			"any more",
			u.File, u.Kind, u.Err, u.MovedTo)
	}
}

// Store is a directory with a file for each value of one kind. It is safe for concurrent use, but the caller must keep two writers
// of one value apart.
type Store[T any] struct {
	kind      Format[T]
	dir       string
	extension string
	only      []string // nil: all
	writer    atomicfile.Writer
	readFile  func(path string) ([]byte, error)
	mode      fs.FileMode
	asideDesc *prometheus.Desc

	mu    sync.RWMutex
	files map[string][]byte // their bytes on disk, by name
	all   map[string]T
	stuck map[string]bool // names of files that can neither be read nor set aside
}

// Options give the place of a store's files.
type Options struct {
	// Directory is made if need be.
	Directory string
	// Extension ends the files' names, such as .claim. The rest of a file's name is the name of its value. An Extension that begins
	// with a slash, such as /settings.json, is the name of a file in a separate directory for each value. The maker of that directory also
	// removes it.
	Extension string
	// Only restricts the store to the files of these names, where the directory has others with the same extension.
	Only []string
	// Mode is the mode of new files; 0: 0600.
	Mode   fs.FileMode
	Writer atomicfile.Writer

	// read is os.ReadFile; tests replace it.
	read func(path string) ([]byte, error)
}

// Open reads every value. It sets files that cannot be read aside and returns them; they are no error. An error means that the
// directory itself cannot be used, or that this process or the kernel lacks memory or file descriptors to read a file at the
// moment. Such a file is intact and stays where it is.
func Open[T any](o Options, kind Format[T]) (*Store[T], []Unreadable, error) {
	fail := func(err error) (*Store[T], []Unreadable, error) {
		return nil, nil, fmt.Errorf("open %s state: %w", kind.Name, err)
	}
	s := &Store[T]{kind: kind, dir: o.Directory, extension: o.Extension, only: o.Only, writer: o.Writer, mode: o.Mode,
		asideDesc: prometheus.NewDesc("gpufabric_state_files_set_aside",
			"State files that could not be read and that nobody has deleted since, by kind of state.", nil, prometheus.Labels{"kind": kind.Name}),
		files: map[string][]byte{}, all: map[string]T{}, stuck: map[string]bool{}}
	if s.mode == 0 {
		s.mode = 0o600
	}
	if s.readFile = o.read; s.readFile == nil {
		s.readFile = os.ReadFile
	}
	if err := os.MkdirAll(s.dir, 0o750); err != nil {
		return fail(err)
	}
	names, err := s.names()
	if err != nil {
		return fail(err)
	}
	var unreadable []Unreadable
	for _, name := range names {
		if err := s.read(name); err != nil {
			if passes(err) {
				return fail(err)
			}
			u := s.setAside(name, err)
			if u.MovedTo == "" {
				s.stuck[name] = true
			}
			unreadable = append(unreadable, u)
		}
	}
	return s, unreadable, nil
}

// nested reports whether each value's file lies in a directory of its own.
func (s *Store[T]) nested() bool { return strings.HasPrefix(s.extension, "/") }

// names returns the values that have a file. It removes the leftovers of interrupted writes.
func (s *Store[T]) names() ([]string, error) {
	prefixes := []string{""}
	if s.only != nil {
		prefixes = s.only
	}
	if s.nested() {
		prefixes = nil // the temporary files are in the values' directories
	}
	for _, prefix := range prefixes {
		if _, err := atomicfile.Sweep(s.dir, prefix); err != nil {
			return nil, err
		}
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, entry := range entries {
		name, found := entry.Name(), entry.IsDir()
		if !s.nested() {
			name, found = strings.CutSuffix(name, s.extension)
		}
		if !found || strings.HasPrefix(name, ".") || !s.has(name) {
			continue
		}
		if info, err := os.Lstat(s.path(name)); errors.Is(err, fs.ErrNotExist) || err == nil && info.IsDir() {
			continue
		}
		if s.nested() {
			if _, err := atomicfile.Sweep(filepath.Dir(s.path(name)), filepath.Base(s.extension)); err != nil {
				return nil, err
			}
		}
		names = append(names, name)
	}
	return names, nil
}

// has reports whether the store is responsible for a name.
func (s *Store[T]) has(name string) bool { return s.only == nil || slices.Contains(s.only, name) }

func (s *Store[T]) path(name string) string { return filepath.Join(s.dir, name+s.extension) }

// passes reports whether an error is no fault of the file: there is no file descriptor or memory left at the moment.
func passes(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOMEM)
}

func (s *Store[T]) read(name string) error {
	data, err := s.readFile(s.path(name))
	if err != nil {
		return err
	}
	value, err := s.kind.Read(name, data)
	if err != nil {
		return err
	}
	s.files[name], s.all[name] = data, value
	return nil
}

// setAside moves a file away. It never overwrites one that was set aside before.
func (s *Store[T]) setAside(name string, why error) Unreadable {
	result := Unreadable{Kind: s.kind.Name, Name: name, File: s.path(name), Err: why}
	dir := filepath.Join(s.dir, AsideName)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		result.Err = errors.Join(why, err)
		return result
	}
	for i := 0; ; i++ {
		to := filepath.Join(dir, s.asideName(name))
		if i > 0 {
			to = fmt.Sprintf("%s.%d", to, i)
		}
		if _, err := os.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := os.Rename(result.File, to); err != nil {
			result.Err = errors.Join(why, err)
			return result
		}
		result.MovedTo = to
		return result
	}
}

// asideName is the name of a value's file in the directory of unreadable files.
func (s *Store[T]) asideName(name string) string {
	if s.nested() {
		return name + "." + filepath.Base(s.extension)
	}
	return name + s.extension
}

// Aside returns the names of the values whose files could not be read, at this start or an earlier one, and were not deleted since. It
// looks at the disk. It includes files that could not be set aside.
func (s *Store[T]) Aside() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(s.dir, AsideName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s state was set aside: %w", s.kind.Name, err)
	}
	s.mu.RLock()
	names := slices.Collect(maps.Keys(s.stuck))
	s.mu.RUnlock()
	for _, entry := range entries {
		if name, _, ours := strings.Cut(entry.Name(), s.asideName("")); ours && s.has(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// AsideDirectory is where unreadable files are moved.
func (s *Store[T]) AsideDirectory() string { return filepath.Join(s.dir, AsideName) }

// Put stores a value durably, under a name that is valid for a file. An unchanged value costs no write. Put never overwrites a file
// that could neither be read nor set aside.
func (s *Store[T]) Put(name string, value T) error {
	if err := s.checkName(name); err != nil {
		return err
	}
	data, err := s.kind.Encode(value)
	if err != nil {
		return err
	}
	s.mu.RLock()
	same, stuck := bytes.Equal(s.files[name], data), s.stuck[name]
	s.mu.RUnlock()
	if stuck {
		return fmt.Errorf("store %s %s: the file %s could not be read and could not be set aside, and is not overwritten: move it away, or "+
			"delete it, and start this program again", s.kind.Name, name, s.path(name))
	}
	if !same {
		if s.nested() {
			if err := os.MkdirAll(filepath.Dir(s.path(name)), 0o755); err != nil {
				return fmt.Errorf("store %s %s: %w", s.kind.Name, name, err)
			}
		}
		err := s.writer.Write(s.path(name), data, s.mode)
		if errors.Is(err, fs.ErrNotExist) { // somebody removed the directory
			if err = os.MkdirAll(s.dir, 0o750); err == nil {
				err = s.writer.Write(s.path(name), data, s.mode)
			}
		}
		if err != nil {
			return fmt.Errorf("store %s %s: %w", s.kind.Name, name, err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files[name], s.all[name] = data, value
	return nil
}

// hold makes Get return a value that could not be written.
func (s *Store[T]) hold(name string, value T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.files, name)
	s.all[name] = value
}

// Delete removes a value durably. A missing value is no error.
func (s *Store[T]) Delete(name string) error {
	if err := s.checkName(name); err != nil {
		return err
	}
	if err := s.writer.Remove(s.path(name)); err != nil {
		return fmt.Errorf("delete %s %s: %w", s.kind.Name, name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.files, name)
	delete(s.all, name)
	return nil
}

// Get returns the value of a name.
func (s *Store[T]) Get(name string) (T, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	value, ok := s.all[name]
	return value, ok
}

// All returns every value, sorted by name.
func (s *Store[T]) All() []T {
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := make([]T, 0, len(s.all))
	for _, name := range slices.Sorted(maps.Keys(s.all)) {
		out = append(out, s.all[name])
	}
	return out
}

// Names returns the names of all values, sorted.
func (s *Store[T]) Names() []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Sorted(maps.Keys(s.all))
}

// Len returns the number of values.
func (s *Store[T]) Len() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.all)
}

// checkName keeps a name that becomes a file name from leaving the directory.
func (s *Store[T]) checkName(name string) error {
	if name == "" || strings.ContainsAny(name, "/\\\x00") || strings.HasPrefix(name, ".") {
		return fmt.Errorf("%s %.80q cannot be a file name", s.kind.Name, name)
	}
	return nil
}

// Describe implements prometheus.Collector.
func (s *Store[T]) Describe(descriptions chan<- *prometheus.Desc) { descriptions <- s.asideDesc }

// Collect implements prometheus.Collector. A directory that cannot be read counts as one file.
func (s *Store[T]) Collect(collected chan<- prometheus.Metric) {
	names, err := s.Aside()
	count := len(names)
	if err != nil {
		count = 1
	}
	collected <- prometheus.MustNewConstMetric(s.asideDesc, prometheus.GaugeValue, float64(count))
}
