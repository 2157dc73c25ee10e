package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"gpufabric.io/drivers/node/atomicfile"
)

// lastFabric is the file with the last known clique of the node, across restarts and reboots. Without a driver nothing else
// distinguishes a node of a rack from one without fabric, and a job without a channel on the former fails with misleading errors.
type lastFabric struct {
	path string
}

type lastFabricFile struct {
	Clique string `json:"clique"`
}

func newLastFabric(stateDir string) lastFabric {
	return lastFabric{path: filepath.Join(stateDir, "fabric.json")}
}

// clique is empty where the node was in none, or no clique was recorded.
func (l lastFabric) clique() (string, error) {
	data, err := os.ReadFile(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	var file lastFabricFile
	if err == nil {
		err = json.Unmarshal(data, &file)
	}
	if err != nil {
		return "", fmt.Errorf("read the node's last NVLink clique (%s; it is written again when its GPUs have joined): %w", l.path, err)
	}
	return file.Clique, nil
}

// remember stores the clique, if it is another; empty: the driver reports that there is no fabric.
func (l lastFabric) remember(clique string) error {
	if before, err := l.clique(); err == nil && before == clique {
		return nil // this is called again and again, and each write waits for the disk
	}
	if clique == "" {
		if err := os.Remove(l.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the record of the node's last NVLink clique: %w", err)
		}
		return nil
	}
	data, err := json.Marshal(lastFabricFile{Clique: clique})
	if err != nil {
		return fmt.Errorf("record the node's NVLink clique: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(l.path), 0o750); err != nil {
		return fmt.Errorf("record the node's NVLink clique: %w", err)
	}
	var writer atomicfile.Writer
	return writer.Write(l.path, append(data, '\n'), 0o600)
}
