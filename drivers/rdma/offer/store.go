package offer

import (
	"errors"
	"fmt"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/node/store"
	"gpufabric.io/drivers/rdma/pool"
)

// Kept is a pool's layout with the configuration for which it was made. While that is the same, an absent HCA keeps its units.
type Kept struct {
	// Boot is the node's boot: no pod outlives it, and the addresses of HCAs may change after it.
	Boot string `json:"boot"`
	// Pool is the pool's configuration.
	Pool  v1alpha1.RDMAPoolConfig `json:"pool"`
	Units pool.Layout             `json:"units"`
}

// kind describes how layouts are stored.
func kind() store.Format[Kept] { return store.Format[Kept]{Name: "gpufabric-layout", Version: 1} }

// Store keeps the layouts of a node's pools, one file each.
type Store struct {
	layouts    *store.Store[Kept]
	unreadable []store.Unreadable
	// damaged are the unreadable files whose pool was not requested yet.
	damaged map[string]store.Unreadable
}

// OpenStore makes dir if need be, and reads its files.
func OpenStore(dir string) (*Store, error) {
	layouts, unreadable, err := store.Open(store.Options{Directory: dir, Extension: ".layout", Mode: 0o640}, kind())
	if err != nil {
		return nil, fmt.Errorf("make the directory of unit layouts: %w (it is in --state-dir)", err)
	}
	s := &Store{layouts: layouts, unreadable: unreadable, damaged: map[string]store.Unreadable{}}
	for _, u := range unreadable {
		s.damaged[u.Name] = u
	}
	return s, nil
}

// Unreadable are the files that could not be read at the start.
func (s *Store) Unreadable() []store.Unreadable { return s.unreadable }

// Load returns the layout of a resource; without a file it is empty. A damaged file was set aside, and the error reports that once. The
// layout is then made again; it is right except that units which running pods have may belong to other HCAs.
func (s *Store) Load(resource string) (Kept, error) {
	name := fileName(resource)
	if u, damaged := s.damaged[name]; damaged {
		delete(s.damaged, name)
		return Kept{}, errors.New(u.String())
	}
	kept, _ := s.layouts.Get(name)
	return kept, nil
}

// Save writes the layout of a resource, if it differs from the file.
func (s *Store) Save(resource string, kept Kept) error {
	return s.layouts.Put(fileName(resource), kept)
}

func fileName(resource string) string { return strings.ReplaceAll(resource, "/", "_") }

// Collector is the metric of the layouts that could not be read.
func (s *Store) Collector() prometheus.Collector { return s.layouts }
