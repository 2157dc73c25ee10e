package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"gpufabric.io/tests/simcluster/process"
	"gpufabric.io/tests/simcluster/simnode"
)

// recordFile marks a directory as a simulated cluster's; Remove removes no other.
const recordFile = "simcluster.json"

// stopGrace is how long Remove waits for processes to end before it kills them.
const stopGrace = 3 * time.Second

// Record is what a cluster's directory says about it.
type Record struct {
	// Nodes is how many it has had: the next one gets this number.
	Nodes int `json:"nodes"`
	Machines
	// Block is its share of the loopback addresses.
	Block   int       `json:"block,omitempty"`
	Created time.Time `json:"created"`
}

// Machines are what detached nodes are.
type Machines struct {
	// Profile is a profile's name or file.
	Profile string `json:"profile,omitempty"`
	// Mode is how containers run, passed on to the shards.
	Mode string `json:"containers,omitempty"`
	// Features gives the Node objects labels and capacity by the profile; Slices and Extended are those of fabric.Describe.
	Features bool   `json:"features,omitempty"`
	Slices   string `json:"slices,omitempty"`
	Extended bool   `json:"extended,omitempty"`
	// NVIDIAPlugins is fabric.Setup.WithDriverDevices.
	NVIDIAPlugins bool `json:"nvidiaPlugins,omitempty"`
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
	return record.write(dir)
}

func (r Record) write(dir string) error {
	content, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the cluster's record: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, recordFile), content, 0o644); err != nil {
		return fmt.Errorf("write the cluster's record: %w", err)
	}
	return nil
}

// reserve takes the numbers of count more nodes and returns the record as it was, whose Nodes is the first of them.
func reserve(dir string, count int) (Record, error) {
	lock, err := os.Open(dir)
	if err != nil {
		return Record{}, fmt.Errorf("lock the cluster's record: %w", err)
	}
	defer lock.Close() //nolint:errcheck // it was only locked
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return Record{}, fmt.Errorf("lock the cluster's record: %w", err)
	}
	before, err := ReadRecord(dir)
	if err != nil {
		return before, err
	}
	after := before
	if after.Nodes += count; count > simnode.MostNodes || after.Nodes > simnode.MostNodes { // the sum of a huge count is negative
		return before, fmt.Errorf("%d more nodes: the cluster has had %d, and its addresses are for %d; numbers of deleted nodes are not used "+
			"again", count, before.Nodes, simnode.MostNodes)
	}
	return before, after.write(dir)
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
