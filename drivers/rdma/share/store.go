package share

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"gpufabric.io/drivers/node/atomicfile"
)

// header is the first line of a layout file; the checksum is over the bytes that follow it.
const header = "gpufabric-layout 1 sha256:"

// Store keeps the layouts of a node's pools, one file each.
type Store struct {
	dir    string
	writer atomicfile.Writer
}

// Open makes dir if need be.
func Open(dir string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("directory of unit layouts: %w (it lies in --state-dir)", err)
	}
	if _, err := atomicfile.Sweep(dir, ""); err != nil {
		return nil, fmt.Errorf("directory of unit layouts: %w", err)
	}
	return &Store{dir: dir}, nil
}

// Load reads the layout of a resource; without a file it is empty. A damaged file is moved aside, and the error says so: the layout is then made
// anew, which is right but for the names of HCAs that running pods hold.
func (s *Store) Load(resource string) (Layout, error) {
	path := s.path(resource)
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("layout of %s: %w", resource, err)
	}
	layout, err := decode(data)
	if err != nil {
		aside := path + ".unreadable"
		return nil, errors.Join(fmt.Errorf("layout of %s: %w; %s is set aside as %s", resource, err, path, filepath.Base(aside)), os.Rename(path, aside))
	}
	return layout, nil
}

// Save writes the layout of a resource, if it differs from the file.
func (s *Store) Save(resource string, layout Layout) error {
	data, err := encode(layout)
	if err != nil {
		return err
	}
	path := s.path(resource)
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, data) {
		return nil
	}
	return s.writer.Write(path, data, 0o640)
}

func (s *Store) path(resource string) string {
	return filepath.Join(s.dir, strings.ReplaceAll(resource, "/", "_")+".layout")
}

func encode(layout Layout) ([]byte, error) {
	body, err := json.Marshal(layout)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, "%s%x\n%s\n", header, sha256.Sum256(body), body), nil
}

func decode(data []byte) (Layout, error) {
	first, body, _ := bytes.Cut(data, []byte("\n"))
	sum, found := strings.CutPrefix(string(first), header)
	if !found {
		return nil, fmt.Errorf("the first line is not %q and a checksum", header)
	}
	body = bytes.TrimSuffix(body, []byte("\n"))
	if sum != fmt.Sprintf("%x", sha256.Sum256(body)) {
		return nil, errors.New("the checksum does not fit the content")
	}
	var layout Layout
	return layout, json.Unmarshal(body, &layout)
}
