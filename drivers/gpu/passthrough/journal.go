package passthrough

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/hardware/pci"
	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/store"
)

// Journal keeps on disk which cards were taken from their drivers, and the settings to restore. It is written before each step, so that a
// crash at any of them leaves the next start enough to continue. It is safe for concurrent use.
type Journal struct {
	file *store.File[map[string]Entry]
	// Lost: an earlier journal could not be read, so that the origin of cards may be unknown.
	Lost bool

	mu sync.Mutex
}

// Entry is a card that was taken, or is about to be.
type Entry struct {
	Claim types.UID `json:"claim"`
	Group int       `json:"group"`
	// Functions are the card's, the GPU first, with their state before.
	Functions []Origin `json:"functions"`
	// Persistence: the GPU's persistence mode was switched off.
	Persistence bool `json:"persistence,omitempty"`
	// Step is the last step that was begun, in words.
	Step string `json:"step"`
	Identity
}

// Origin is a function before it was taken.
type Origin struct {
	Address pci.Address `json:"address"`
	// Driver is its driver, Override the driver that it was kept to; empty: none.
	Driver   string `json:"driver,omitempty"`
	Override string `json:"override,omitempty"`
	// VFIO is the driver of VFIO that it gets; empty: Driver.
	VFIO string `json:"vfio,omitempty"`
}

// target is the driver of VFIO that the function gets.
func (o Origin) target() string { return cmp.Or(o.VFIO, Driver) }

// JournalKind describes how a journal is stored.
func JournalKind() store.Format[map[string]Entry] {
	return store.Format[map[string]Entry]{Name: "gpufabric-passthrough", Version: 1, Check: func(_ string, all map[string]Entry) error {
		for name, e := range all {
			if len(e.Functions) == 0 {
				return fmt.Errorf("card %q has no functions", name)
			}
			for _, f := range e.Functions {
				if _, err := pci.ParseAddress(string(f.Address)); err != nil {
					return fmt.Errorf("card %q: %w", name, err)
				}
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
	j := &Journal{file: file, Lost: file.Aside()}
	for _, u := range unreadable {
		err = errors.Join(err, errors.New(u.String()))
	}
	return j, err
}

// Entries are the cards that are taken, by name.
func (j *Journal) Entries() map[string]Entry {
	j.mu.Lock()
	defer j.mu.Unlock()
	all, _ := j.file.Get()
	return maps.Clone(all)
}

func (j *Journal) get(card string) (Entry, bool) {
	e, found := j.Entries()[card]
	return e, found
}

// put stores an entry.
func (j *Journal) put(card string, e *Entry) error {
	return j.change(func(all map[string]Entry) { all[card] = *e }, j.file.Put)
}

// giveBack stores an entry of a card that is given back; nil removes it. An error does not matter to the card, whose way back the entry
// on disk describes too: a full disk must not keep a claim.
func (j *Journal) giveBack(ctx context.Context, card string, e *Entry) {
	err := j.change(func(all map[string]Entry) {
		if e == nil {
			delete(all, card)
		} else {
			all[card] = *e
		}
	}, j.file.Hold)
	if err != nil {
		klog.FromContext(ctx).Error(err, "A GPU is given back without a record of the step", "card", card)
	}
}

// change applies a function to a copy of the entries, and stores the copy.
func (j *Journal) change(change func(map[string]Entry), store func(map[string]Entry) error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	all, _ := j.file.Get()
	all = maps.Clone(all)
	if all == nil {
		all = map[string]Entry{}
	}
	change(all)
	if err := store(all); err != nil {
		return fmt.Errorf("write the journal of GPUs that are passed through: %w", err)
	}
	return nil
}
