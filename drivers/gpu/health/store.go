package health

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"gpufabric.io/drivers/node/atomicfile"
)

// file is the form on disk.
type file struct {
	Version int     `json:"version"`
	Faults  []Fault `json:"faults"`
}

const version = 1

// load reads the faults that were kept. A file that cannot be read is moved aside and told of: the faults in it may be forgotten, the plugin
// must not be.
func load(path string) ([]Fault, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the faults kept: %w", err)
	}
	var f file
	if err = json.Unmarshal(raw, &f); err == nil && f.Version != version {
		err = fmt.Errorf("version %d; known is %d", f.Version, version)
	}
	if err == nil {
		return f.Faults, nil
	}
	aside := path + ".unreadable"
	if moved := os.Rename(path, aside); moved != nil {
		aside = "its place (" + moved.Error() + ")"
	}
	return nil, fmt.Errorf("%s is not understood (%w), so the faults in it are forgotten; the file lies in %s", path, err, aside)
}

func save(w atomicfile.Writer, path string, faults []Fault) error {
	raw, err := json.Marshal(file{Version: version, Faults: faults})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return fmt.Errorf("keeping faults: %w", err)
	}
	return w.Write(path, raw, 0o640)
}
