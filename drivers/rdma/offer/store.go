package offer

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/rdma/pool"
)

// header is the first line of a layout file; the checksum is over the bytes that follow it. A file of version 1 holds the units alone.
const (
	header  = "gpufabric-layout 2 sha256:"
	header1 = "gpufabric-layout 1 sha256:"
)

// Kept is a pool's layout with what it was made for. While that is the same, an HCA that is away keeps its units.
type Kept struct {
	// Boot is the node's boot: no pod outlives it, and the addresses of HCAs may be others after it.
	Boot string `json:"boot"`
	// Pool is the pool's configuration; of a file of version 1 it is not known, and empty.
	Pool  v1alpha1.RDMAPoolConfig `json:"pool"`
	Units pool.Layout             `json:"units"`
}

// Store keeps the layouts of a node's pools, one file each.
type Store struct {
	dir    string
	writer atomicfile.Writer
}

// OpenStore opens the store in dir if need be.
func OpenStore(dir string) (*Store, error) {
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
func (s *Store) Load(resource string) (Kept, error) {
	path := s.path(resource)
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return Kept{}, nil
	}
	if err != nil {
		return Kept{}, fmt.Errorf("layout of %s: %w", resource, err)
	}
	kept, err := decode(data)
	if err != nil {
		aside := path + ".unreadable"
		return Kept{}, errors.Join(fmt.Errorf("layout of %s: %w; %s is set aside as %s", resource, err, path, filepath.Base(aside)), os.Rename(path, aside))
	}
	return kept, nil
}

// Save writes the layout of a resource, if it differs from the file.
func (s *Store) Save(resource string, kept Kept) error {
	data, err := encode(kept)
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

func encode(kept Kept) ([]byte, error) {
	body, err := json.Marshal(kept)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, "%s%x\n%s\n", header, sha256.Sum256(body), body), nil
}

func decode(data []byte) (kept Kept, err error) {
	first, body, _ := bytes.Cut(data, []byte("\n"))
	sum, found := strings.CutPrefix(string(first), header)
	into := any(&kept)
	if !found {
		sum, found = strings.CutPrefix(string(first), header1)
		into = &kept.Units
	}
	if !found {
		return Kept{}, fmt.Errorf("the first line is not %q and a checksum", header)
	}
	body = bytes.TrimSuffix(body, []byte("\n"))
	if sum != fmt.Sprintf("%x", sha256.Sum256(body)) {
		return Kept{}, errors.New("the checksum does not fit the content")
	}
	if err := json.Unmarshal(body, into); err != nil {
		return Kept{}, err
	}
	return kept, nil
}
