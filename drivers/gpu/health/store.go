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

// kind describes how faults are stored.
func kind() store.Format[kept] {
	return store.Format[kept]{Name: "gpufabric-faults", Version: 1}
}

// open reads the stored faults. The error names the files that cannot be read; the store can be used all the same, and Aside reports
// it.
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
