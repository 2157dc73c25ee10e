package exclusive

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"gpufabric.io/drivers/node/atomicfile"
)

// entry is what a pod sandbox was given, on disk.
type entry struct {
	Version   int     `json:"version"`
	Sandbox   string  `json:"sandbox"`
	Pod       string  `json:"pod"` // namespace/name, for people
	Namespace string  `json:"namespace"`
	Grants    []Grant `json:"grants"`
	// Interfaces are how the devices' interfaces were set up on the node before they were given. Records of earlier versions have none.
	Interfaces []Interface `json:"interfaces,omitempty"`
}

// bookVersion is the version that this program writes, and the only one there has been.
const bookVersion = 1

// book is a directory with a file for each sandbox that was given something.
type book struct {
	dir    string
	writer atomicfile.Writer
}

// sandboxID is what a container runtime's sandbox IDs look like; they become file names.
var sandboxID = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_-]{0,127}$`)

func openBook(dir string, writer atomicfile.Writer) (*book, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("open the record of RDMA devices given to pods: %w", err)
	}
	if _, err := atomicfile.Sweep(dir, ""); err != nil {
		return nil, fmt.Errorf("open the record of RDMA devices given to pods: %w", err)
	}
	return &book{dir: dir, writer: writer}, nil
}

func (b *book) path(sandbox string) (string, error) {
	if !sandboxID.MatchString(sandbox) {
		return "", fmt.Errorf("the pod sandbox ID %.80q cannot be a file name", sandbox)
	}
	return filepath.Join(b.dir, sandbox+".json"), nil
}

func (b *book) put(e entry) error {
	path, err := b.path(e.Sandbox)
	if err != nil {
		return err
	}
	e.Version = bookVersion
	data, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("encode what pod %s was given: %w", e.Pod, err)
	}
	return b.writer.Write(path, data, 0o600)
}

func (b *book) remove(sandbox string) error {
	path, err := b.path(sandbox)
	if err != nil {
		return err
	}
	return b.writer.Remove(path)
}

// get returns what a sandbox was given; false: nothing.
func (b *book) get(sandbox string) (entry, bool, error) {
	path, err := b.path(sandbox)
	if err != nil {
		return entry{}, false, err
	}
	e, err := read(path)
	if errors.Is(err, os.ErrNotExist) {
		return entry{}, false, nil
	}
	return e, err == nil, err
}

// errDamaged is wrapped by the error of a record that is there and does not say what it should.
var errDamaged = errors.New("the record is damaged")

// list returns every entry that can be read, and an error that names the others. Damaged ones are set aside for a person to look at, so
// that the next list has no error: what they gave stays in its namespace until that ends, and the other pods' devices come and go.
func (b *book) list() ([]entry, error) {
	return b.each(func(path string, err error) error {
		if !errors.Is(err, errDamaged) {
			return err
		}
		aside := path + ".unreadable"
		return errors.Join(fmt.Errorf("%w; it is set aside as %s", err, filepath.Base(aside)), os.Rename(path, aside))
	})
}

// sound returns the entries that can be read, and changes nothing.
func (b *book) sound() []entry {
	entries, _ := b.each(func(string, error) error { return nil })
	return entries
}

// each reads every entry; unread gets those that cannot be read, and returns what to report of them.
func (b *book) each(unread func(path string, err error) error) ([]entry, error) {
	files, err := os.ReadDir(b.dir)
	if err != nil {
		return nil, fmt.Errorf("list what pods were given: %w", err)
	}
	var entries []entry
	var errs []error
	for _, file := range files {
		if !strings.HasSuffix(file.Name(), ".json") || strings.HasPrefix(file.Name(), ".") {
			continue
		}
		path := filepath.Join(b.dir, file.Name())
		e, err := read(path)
		if err != nil {
			errs = append(errs, unread(path, err))
			continue
		}
		entries = append(entries, e)
	}
	return entries, errors.Join(errs...)
}

func read(path string) (entry, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return entry{}, fmt.Errorf("read what a pod was given: %w", err)
	}
	var e entry
	if err := json.Unmarshal(data, &e); err != nil {
		return entry{}, fmt.Errorf("read what a pod was given: %s: %w: %w", path, errDamaged, err)
	}
	if e.Version != bookVersion || e.Sandbox+".json" != filepath.Base(path) || len(e.Grants) == 0 {
		return entry{}, fmt.Errorf("read what a pod was given: %s: %w: version %d, sandbox %.80q, %d grants; wanted version %d, the sandbox "+
			"of its name and a grant",
			path, errDamaged, e.Version, e.Sandbox, len(e.Grants), bookVersion)
	}
	return e, nil
}
