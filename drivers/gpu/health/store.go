package health

import (
	"errors"
	"fmt"
	"path/filepath"

	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/store"
)

// kept is the form on disk.
type kept struct {
	Faults []Fault `json:"faults"`
}

// kind is how faults are kept: as earlier versions kept them, with a checksum added, which those pass over.
func kind() store.Kind[kept] {
	return store.Kind[kept]{Name: "gpufabric-faults", Version: 1, Form: store.Object}
}

// open reads the faults that were kept. The error names the files that cannot be read; the record is good all the same, and Aside.
func open(path string, writer atomicfile.Writer) (*store.File[kept], []Fault, error) {
	record, unreadable, err := store.OpenFile(path, kind(), 0o640, writer)
	if err != nil {
		return nil, nil, err
	}
	var errs []error
	for _, u := range unreadable {
		errs = append(errs, errors.New(u.String()))
	}
	if record.Aside() {
		errs = append(errs, fmt.Errorf("the node's GPUs keep a taint until the files %s in %s are deleted: look at the GPUs first (nvidia-smi "+
			"-q), since any may have had a fault",
			filepath.Base(path)+"*", record.AsideDirectory()))
	}
	value, _ := record.Get()
	return record, value.Faults, errors.Join(errs...)
}
