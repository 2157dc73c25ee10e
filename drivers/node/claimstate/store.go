package claimstate

import (
	"fmt"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/store"
)

// Unreadable is a file that could not be read and was set aside.
type Unreadable = store.Unreadable

// Store is a directory of claim files, cached in memory. It is safe for concurrent use, but the caller must keep two writers of one
// claim apart.
type Store struct {
	records *store.Store[Record]
	// aside are the claims whose records were set aside.
	aside []types.UID
}

// Open makes dir if need be and reads every claim in it. It moves files that cannot be read to dir/unreadable and returns them;
// they are no error. An error means that the directory itself cannot be used.
func Open(dir string, writer atomicfile.Writer) (*Store, []Unreadable, error) {
	records, unreadable, err := store.Open(store.Options{Directory: dir, Extension: ".claim", Writer: writer}, kind())
	if err != nil {
		return nil, nil, err
	}
	names, err := records.Aside()
	if err != nil {
		return nil, nil, err
	}
	for _, u := range unreadable {
		names = append(names, u.Name) // a file that could not be moved is not among those set aside
	}
	s := &Store{records: records}
	for _, name := range names {
		s.aside = append(s.aside, types.UID(name))
	}
	slices.Sort(s.aside)
	s.aside = slices.Compact(s.aside)
	return s, unreadable, nil
}

// SetAside returns the claims whose records were unreadable, at this start or an earlier one, and whose files still exist. They may hold
// unknown devices.
func (s *Store) SetAside() []types.UID { return s.aside }

// Put writes a record durably.
func (s *Store) Put(record Record) error {
	if err := s.records.Put(string(record.UID), record); err != nil {
		return fmt.Errorf("store claim %s/%s: %w", record.Namespace, record.Name, err)
	}
	return nil
}

// Get returns the record of a claim.
func (s *Store) Get(uid types.UID) (Record, bool) { return s.records.Get(string(uid)) }

// Delete removes the record of a claim durably. A missing record is no error.
func (s *Store) Delete(uid types.UID) error { return s.records.Delete(string(uid)) }

// List returns every record, sorted by UID.
func (s *Store) List() []Record { return s.records.All() }

// Len returns how many claims are held.
func (s *Store) Len() int { return s.records.Len() }

// Collector is the metric of the records that could not be read.
func (s *Store) Collector() prometheus.Collector { return s.records }
