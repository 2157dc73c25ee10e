package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"gpufabric.io/tests/simcluster/process"
)

// recordFile marks a directory as a simulated cluster's; Remove removes no other.
const recordFile = "simcluster.json"

// stopGrace is how long Remove waits for processes to end before it kills them.
const stopGrace = 3 * time.Second

// Record is what a cluster's directory says about it.
type Record struct {
	Nodes   int       `json:"nodes"`
	Profile string    `json:"profile,omitempty"`
	Created time.Time `json:"created"`
}

// ErrNone means that a directory holds no simulated cluster.
var ErrNone = errors.New("no simulated cluster")

// ReadRecord reads the record of the cluster in dir; ErrNone if there is none.
func ReadRecord(dir string) (Record, error) {
	var record Record
	content, err := os.ReadFile(filepath.Join(dir, recordFile))
	if errors.Is(err, fs.ErrNotExist) {
		return record, fmt.Errorf("%w in %s", ErrNone, dir)
	}
	if err != nil {
		return record, fmt.Errorf("read the cluster's record: %w", err)
	}
	if err := json.Unmarshal(content, &record); err != nil {
		return record, fmt.Errorf("read the cluster's record %s: %w", filepath.Join(dir, recordFile), err)
	}
	return record, nil
}

// occupy marks dir as this cluster's. Otherwise the error shows what is there and what to do.
func occupy(dir string, record Record) error {
	running, err := process.Find(dir)
	if err != nil {
		return err
	}
	if len(running) > 0 {
		return fmt.Errorf("a simulated cluster is up in %s: %s; use it, end it with `simcluster down --dir %s`, or choose another --dir", dir,
			process.List(running), dir)
	}
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return fmt.Errorf("look at the cluster's directory: %w", err)
	case len(entries) > 0:
		if _, err := ReadRecord(dir); errors.Is(err, ErrNone) {
			return fmt.Errorf("%s is not empty and is not a simulated cluster: choose another --dir", dir)
		}
		return fmt.Errorf("%s has remains of a cluster that ended without `down`; remove it with `simcluster down --dir %s`", dir, dir)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the cluster's directory: %w", err)
	}
	record.Created = time.Now().UTC()
	content, err := json.MarshalIndent(record, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the cluster's record: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, recordFile), content, 0o644); err != nil {
		return fmt.Errorf("write the cluster's record: %w", err)
	}
	return nil
}

// Remove ends every process of the cluster in dir, also of other starters, removes the directory, and returns what it ended. A missing
// cluster is no error.
func Remove(dir string) ([]process.Found, error) {
	ended, err := process.End(dir, stopGrace)
	if err != nil {
		return ended, err
	}
	if _, err := ReadRecord(dir); errors.Is(err, ErrNone) {
		return ended, nil
	}
	if err := os.RemoveAll(dir); err != nil {
		return ended, fmt.Errorf("remove the cluster's directory: %w", err)
	}
	return ended, nil
}
