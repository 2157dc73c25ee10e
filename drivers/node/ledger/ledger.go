// Package ledger records which claim has which device of a node. It is the last defence against two claims that hold one device.
//
// The scheduler keeps claims apart, except in two cases. The next pod's prepare may come before the last pod's unprepare: Acquire
// waits for that. And there may be a mistake elsewhere: Acquire refuses it and names the holder.
package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// Owner is the holder of a device.
type Owner struct {
	// ID is unique: a claim's UID.
	ID string
	// Name is for people: "claim default/train-0".
	Name string
	// Namespace is the tenant's. It is empty for an owner without a tenant, such as a MIGLayout.
	Namespace string
}

// Reservation is a hold on one thing: a device, or a part of one that conflicts with other parts.
type Reservation struct {
	Key string
	// Shared holds can exist beside other shared holds of the same key. All others exclude each other.
	Shared bool
}

// Ledger is safe for concurrent use. The zero value is ready to use.
type Ledger struct {
	mu      sync.Mutex
	holders map[string]map[string]reservedBy // key -> owner ID -> entry
	changed chan struct{}                    // closed and replaced whenever something is released
}

type reservedBy struct {
	owner  Owner
	shared bool
}

// Conflict is a requested hold, and another owner's hold on its key.
type Conflict struct {
	Key    string
	Holder Owner
}

func (c Conflict) String() string { return fmt.Sprintf("%s is held by %s", c.Key, c.Holder.Name) }

// ConflictError lists the present holders of a request. It has at least one conflict; they are sorted by hold, then by the holders'
// names.
type ConflictError struct {
	Conflicts []Conflict
	// Requester is the owner that requested it.
	Requester Owner
}

// Error names the first conflict only: a whole GPU is as many holds as it has memory slices, and one of them is enough. The
// tenant reads this error in an Event or on the pod, so it does not name an owner of another namespace. Detail is for the node's log.
func (e *ConflictError) Error() string {
	c, namespace := e.Conflicts[0], e.Requester.Namespace
	if namespace != "" && c.Holder.Namespace != "" && c.Holder.Namespace != namespace {
		return c.Key + " is held by a claim of another namespace (the log of this node's plugin names it)"
	}
	return e.Detail()
}

// Detail names the first conflict's holder, in any namespace.
func (e *ConflictError) Detail() string { return e.Conflicts[0].String() }

// Holders returns the owners in the way, each once, in the order of the conflicts.
func (e *ConflictError) Holders() []Owner {
	var owners []Owner
	for _, c := range e.Conflicts {
		if !slices.Contains(owners, c.Holder) {
			owners = append(owners, c.Holder)
		}
	}
	return owners
}

// TryAcquire gives owner all of holds, or none, and does not wait. The error is a *ConflictError with every conflicting holder. The
// owner keeps its holds, so TryAcquire may be repeated.
func (l *Ledger) TryAcquire(owner Owner, holds ...Reservation) error {
	conflict, _ := l.try(owner, holds)
	if conflict == nil {
		return nil // a nil *ConflictError would be an error that is not nil
	}
	return conflict
}

// Acquire is a TryAcquire that waits. While another owner has one of holds, it waits for the release until ctx ends. The error is
// the last conflict.
func (l *Ledger) Acquire(ctx context.Context, owner Owner, holds ...Reservation) error {
	for {
		conflict, released := l.try(owner, holds)
		if conflict == nil {
			return nil
		}
		select {
		case <-released:
		case <-ctx.Done():
			return conflict
		}
	}
}

// try takes every hold, or returns all conflicts and a channel to wait for.
func (l *Ledger) try(owner Owner, holds []Reservation) (*ConflictError, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.init()
	var conflicts []Conflict
	for _, hold := range holds {
		conflicts = append(conflicts, l.conflicts(owner.ID, hold)...)
	}
	if len(conflicts) > 0 {
		return &ConflictError{Conflicts: conflicts, Requester: owner}, l.changed
	}
	for _, hold := range holds {
		l.put(owner, hold)
	}
	return nil, nil
}

// conflicts returns the holds of others that exclude hold, sorted by the holders' names. l.mu must be held.
func (l *Ledger) conflicts(ownerID string, hold Reservation) []Conflict {
	var conflicts []Conflict
	for id, other := range l.holders[hold.Key] {
		if id != ownerID && (!hold.Shared || !other.shared) {
			conflicts = append(conflicts, Conflict{Key: hold.Key, Holder: other.owner})
		}
	}
	slices.SortFunc(conflicts, func(a, b Conflict) int { return byName(a.Holder, b.Holder) })
	return conflicts
}

// Conflicts returns the holds of others that exclude a hold which has no owner yet, sorted by the holders' names.
func (l *Ledger) Conflicts(hold Reservation) []Conflict {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conflicts("", hold)
}

// put stores a hold. l.mu must be held.
func (l *Ledger) put(owner Owner, hold Reservation) {
	if l.holders[hold.Key] == nil {
		l.holders[hold.Key] = map[string]reservedBy{}
	}
	l.holders[hold.Key][owner.ID] = reservedBy{owner: owner, shared: hold.Shared}
}

// Extend adds holds to every holder of key, once the holds that key represents are found. Other holders keep theirs: the errors
// name two owners that now hold the same thing.
func (l *Ledger) Extend(key string, holds ...Reservation) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.init()
	var errs []error
	for id, e := range l.holders[key] {
		for _, hold := range holds {
			for _, c := range l.conflicts(id, hold) {
				errs = append(errs, fmt.Errorf("%s has %s: %s", e.owner.Name, key, c))
			}
			l.put(e.owner, hold)
		}
	}
	return errors.Join(errs...)
}

// Release releases everything that the owner with this ID holds.
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

// Holders returns the owners that hold key, sorted by name.
func (l *Ledger) Holders(key string) []Owner {
	l.mu.Lock()
	defer l.mu.Unlock()
	var owners []Owner
	for _, e := range l.holders[key] {
		owners = append(owners, e.owner)
	}
	slices.SortFunc(owners, byName)
	return owners
}

func byName(a, b Owner) int {
	return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.ID, b.ID))
}

func (l *Ledger) init() {
	if l.changed == nil {
		l.changed = make(chan struct{})
		l.holders = map[string]map[string]reservedBy{}
	}
}
