package fabricpartition

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/hardware/pci"
	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/store"
)

// Journal keeps on disk which partitions claims have, and which module is at which PCI address. It is written before a partition is
// activated, and after it was deactivated. It is safe for concurrent use.
type Journal struct {
	file *store.File[state]

	mu sync.Mutex
}

type state struct {
	// Claims are their partitions.
	Claims map[types.UID]held `json:"claims,omitempty"`
	// Modules are the module IDs of GPUs: NVIDIA's tools do not show that of a GPU which vfio-pci has.
	Modules map[pci.Address]int `json:"modules,omitempty"`
}

// held is the partition of a claim.
type held struct {
	Partition int `json:"partition"`
	// Active: it was activated; else it is about to be, or is being deactivated.
	Active bool `json:"active,omitempty"`
}

// JournalKind describes how a journal is stored.
func JournalKind() store.Format[state] {
	return store.Format[state]{Name: "gpufabric-fabric-partitions", Version: 1, Check: func(_ string, s state) error {
		for a := range s.Modules {
			if _, err := pci.ParseAddress(string(a)); err != nil {
				return err
			}
		}
		return nil
	}}
}

// OpenJournal reads a journal. The error of one that cannot be read comes with a Journal that can be used all the same.
func OpenJournal(path string, writer atomicfile.Writer) (*Journal, error) {
	file, unreadable, err := store.OpenFile(path, JournalKind(), 0, writer)
	if err != nil {
		return nil, err
	}
	for _, u := range unreadable {
		err = errors.Join(err, errors.New(u.String()))
	}
	return &Journal{file: file}, err
}

func (j *Journal) read() state {
	j.mu.Lock()
	defer j.mu.Unlock()
	s, _ := j.file.Get()
	return s
}

// change applies the function change to a copy, and stores the copy.
func (j *Journal) change(change func(*state)) error { return j.changeBy(j.file.Put, change) }

// release is change for a claim that ends. An error does not matter to its partition, which the journal on disk still has: a full disk
// must not keep a claim.
func (j *Journal) release(ctx context.Context, change func(*state)) {
	if err := j.changeBy(j.file.Hold, change); err != nil {
		klog.FromContext(ctx).Error(err, "A partition is given back without a record")
	}
}

func (j *Journal) changeBy(store func(state) error, change func(*state)) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	s, _ := j.file.Get()
	s = state{Claims: maps.Clone(s.Claims), Modules: maps.Clone(s.Modules)}
	if s.Claims == nil {
		s.Claims = map[types.UID]held{}
	}
	if s.Modules == nil {
		s.Modules = map[pci.Address]int{}
	}
	change(&s)
	if err := store(s); err != nil {
		return fmt.Errorf("write the journal of Fabric Manager's partitions: %w", err)
	}
	return nil
}

// Claims are the claims that have partitions, in order.
func (j *Journal) Claims() []types.UID { return slices.Sorted(maps.Keys(j.read().Claims)) }
