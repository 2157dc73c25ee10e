// Package ledger knows which claim holds which device of a node, and is the last line against two holding one.
//
// The scheduler keeps claims apart. What slips through is a matter of time (the next pod's prepare comes before the last pod's
// unprepare) or a mistake elsewhere; the first is waited for, the second is refused with the holder's name.
package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// Owner is who holds a device.
type Owner struct {
	// ID is unique: a claim's UID.
	ID string
	// Name is for people: "claim default/train-0".
	Name string
}

// Hold is a hold on one thing: a device, or a part of one that conflicts with other parts.
type Hold struct {
	Key string
	// Shared holds exist beside other shared ones of the same key; all others exclude each other.
	Shared bool
}

// Ledger is safe for concurrent use. The zero value is ready to use.
type Ledger struct {
	mu      sync.Mutex
	holders map[string]map[string]entry // key -> owner ID -> entry
	changed chan struct{}               // closed and replaced whenever something is released
}

type entry struct {
	owner  Owner
	shared bool
}

// ConflictError says who holds what was asked for.
type ConflictError struct {
	Key    string
	Holder Owner
}

func (e *ConflictError) Error() string { return fmt.Sprintf("%s is held by %s", e.Key, e.Holder.Name) }

// Acquire gives owner all of holds, or nothing. While another owner has one of them it waits for the release until ctx ends; the
// error is then a *ConflictError that names the holder. What owner has already, it keeps: Acquire may be repeated.
func (l *Ledger) Acquire(ctx context.Context, owner Owner, holds ...Hold) error {
	for {
		conflict, changed := l.try(owner, holds)
		if conflict == nil {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return conflict
		}
	}
}

// try takes every hold, or returns the first conflict and what to wait for.
func (l *Ledger) try(owner Owner, holds []Hold) (*ConflictError, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.init()
	for _, hold := range holds {
		for id, other := range l.holders[hold.Key] {
			if id != owner.ID && (!hold.Shared || !other.shared) {
				return &ConflictError{Key: hold.Key, Holder: other.owner}, l.changed
			}
		}
	}
	for _, hold := range holds {
		if l.holders[hold.Key] == nil {
			l.holders[hold.Key] = map[string]entry{}
		}
		l.holders[hold.Key][owner.ID] = entry{owner: owner, shared: hold.Shared}
	}
	return nil, nil
}

// Extend gives every holder of key holds too, since it turned out what key is. Holders of one of them stay: the errors say which two now
// hold one thing.
func (l *Ledger) Extend(key string, holds ...Hold) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.init()
	var errs []error
	for id, e := range l.holders[key] {
		for _, hold := range holds {
			for otherID, other := range l.holders[hold.Key] {
				if otherID != id && (!hold.Shared || !other.shared) {
					errs = append(errs, fmt.Errorf("%s holds %s: %w", e.owner.Name, key, &ConflictError{Key: hold.Key, Holder: other.owner}))
				}
			}
			if l.holders[hold.Key] == nil {
				l.holders[hold.Key] = map[string]entry{}
			}
			l.holders[hold.Key][id] = entry{owner: e.owner, shared: hold.Shared}
		}
	}
	return errors.Join(errs...)
}

// Release gives back everything that the owner with this ID holds.
func (l *Ledger) Release(ownerID string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.init()
	released := false
	for key, owners := range l.holders {
		if _, ok := owners[ownerID]; !ok {
			continue
		}
		released = true
		delete(owners, ownerID)
		if len(owners) == 0 {
			delete(l.holders, key)
		}
	}
	if released {
		close(l.changed)
		l.changed = make(chan struct{})
	}
}

// Holders returns who holds key, sorted by name.
func (l *Ledger) Holders(key string) []Owner {
	l.mu.Lock()
	defer l.mu.Unlock()
	var owners []Owner
	for _, e := range l.holders[key] {
		owners = append(owners, e.owner)
	}
	slices.SortFunc(owners, func(a, b Owner) int { return strings.Compare(a.Name+a.ID, b.Name+b.ID) })
	return owners
}

func (l *Ledger) init() {
	if l.changed == nil {
		l.changed = make(chan struct{})
		l.holders = map[string]map[string]entry{}
	}
}
