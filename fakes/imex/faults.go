package imex

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
)

// FaultsName is the file in a node's state directory that holds its daemon's faults.
const FaultsName = "imex-faults.json"

// FaultsFile reads faults from a file that may not exist. It reads the file again whenever it is another file or its
// modification time differs. The time alone is not enough: a file and its replacement can have the same time.
func FaultsFile(path string) func() Faults {
	var mu sync.Mutex
	var read os.FileInfo
	var faults Faults
	return func() Faults {
		mu.Lock()
		defer mu.Unlock()
		info, err := os.Stat(path)
		if err != nil {
			read, faults = nil, Faults{}
			return faults
		}
		if read != nil && os.SameFile(info, read) && info.ModTime().Equal(read.ModTime()) {
			return faults
		}
		if f, err := ReadFaults(path); err == nil {
			read, faults = info, f
		}
		return faults
	}
}

// ReadFaults reads a faults file; a missing one holds none.
func ReadFaults(path string) (Faults, error) {
	var f Faults
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return f, nil
	}
	if err != nil {
		return f, err
	}
	if err := json.Unmarshal(data, &f); err != nil {
		return f, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

// WriteFaults atomically replaces a faults file.
func WriteFaults(path string, f Faults) error {
	data, err := json.Marshal(f)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", data, 0o666); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
