package health

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/store"
)

// kept is the form on disk.
type kept struct {
	Faults []Fault `json:"faults"`
}

// kind is how faults are kept: as versions before 0.3 kept them, with a checksum added, which those pass over.
func kind() store.Kind[kept] {
	return store.Kind[kept]{Name: "gpufabric-faults", Version: 1, Plain: true}
}

const extension = ".json"

// record is a node's faults on disk.
type record struct {
	store *store.Store[kept]
	name  string
	// stuck says that a file that cannot be read could not be set aside either.
	stuck bool
}

// open reads the faults that were kept. The error tells of those that cannot be read; the record is good all the same, and unread.
func open(path string, writer atomicfile.Writer) (*record, []Fault, error) {
	r := &record{name: strings.TrimSuffix(filepath.Base(path), extension)}
	s, unreadable, err := store.Open(store.Options{Directory: filepath.Dir(path), Extension: extension, Only: []string{r.name}, Mode: 0o640,
		Writer: writer}, kind())
	if err != nil {
		return nil, nil, err
	}
	r.store = s
	var errs []error
	for _, u := range unreadable {
		errs = append(errs, errors.New(u.String()))
		r.stuck = r.stuck || u.MovedTo == ""
	}
	if r.unread() {
		errs = append(errs, fmt.Errorf("the node's GPUs keep a taint until the files %s in %s are deleted: look at the GPUs first (nvidia-smi "+
			"-q), since any may have had a fault",
			r.name+extension+"*", s.AsideDirectory()))
	}
	value, _ := s.Get(r.name)
	return r, value.Faults, errors.Join(errs...)
}

// unread says whether faults of a file that could not be read may stand: until somebody deletes the file.
func (r *record) unread() bool {
	names, err := r.store.Aside()
	return r.stuck || err != nil || len(names) > 0
}

func (r *record) save(faults []Fault) error {
	if r.stuck {
		return fmt.Errorf("the file of %s that cannot be read could not be set aside, and is not overwritten", r.name)
	}
	return r.store.Put(r.name, kept{Faults: faults})
}
