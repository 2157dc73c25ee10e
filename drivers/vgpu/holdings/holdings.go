// Package holdings is the node's own account of which container holds which share of which GPU. The scheduler decides; this refuses what cannot be, with
// the holders named, when a decision was made on stale figures or by somebody else.
package holdings

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"gpufabric.io/drivers/vgpu/annotation"
	"gpufabric.io/drivers/vgpu/cards"
)

// Holder is a container that holds shares.
type Holder struct {
	// ID is the container runtime's; it is unique over restarts of a container.
	ID string
	// Name is for people: "default/train-0, container main".
	Name string
}

// Book is safe for concurrent use. Its zero value is empty and ready to use.
type Book struct {
	mu    sync.Mutex
	holds map[string]entry // by Holder.ID
}

type entry struct {
	holder Holder
	shares []annotation.Share
}

// Use is what is taken of one card.
type Use struct {
	Slots int
	Units int64
	Cores int
	// Exclusive is set where a container has all the cores: nobody else fits then.
	Exclusive bool
	Holders   []string
}

// Take books shares for a container, all of them or none. Taking again for the same ID replaces what it had.
func (b *Book) Take(deck *cards.Deck, holder Holder, shares []annotation.Share) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	wanted := map[string]Use{}
	for _, share := range shares {
		card := deck.ByUUID(share.UUID)
		if card == nil {
			return fmt.Errorf("%s asks for a share of %s, which is not among this node's %d shared GPUs", holder.Name, share.UUID, len(deck.Cards))
		}
		if !card.Healthy {
			return fmt.Errorf("%s asks for a share of %s, which is unhealthy: %s", holder.Name, share.UUID, card.Reason)
		}
		wanted[share.UUID] = wanted[share.UUID].with(share, card)
	}
	for uuid, more := range wanted {
		if err := fits(deck.ByUUID(uuid), b.use(deck, uuid, holder.ID), more, deck.Factor); err != nil {
			return fmt.Errorf("%s: %w", holder.Name, err)
		}
	}
	if b.holds == nil {
		b.holds = map[string]entry{}
	}
	b.holds[holder.ID] = entry{holder, slices.Clone(shares)}
	return nil
}

func (u Use) with(share annotation.Share, card *cards.Card) Use {
	u.Slots++
	if share.Memory == 0 {
		u.Units += card.Units
	} else {
		u.Units += share.Memory
	}
	u.Cores += share.Cores
	u.Exclusive = u.Exclusive || share.Cores == 100
	return u
}

func fits(card *cards.Card, held, more Use, factor int) error {
	var lacks []string
	if free := card.Slots - held.Slots; more.Slots > free {
		lacks = append(lacks, fmt.Sprintf("%d of its %d slots are free and %d are asked for", free, card.Slots, more.Slots))
	}
	if free := card.Units - held.Units; more.Units > free {
		lacks = append(lacks, fmt.Sprintf("%d of its %d MiB are free and %d are asked for", free*int64(factor), card.Units*int64(factor), more.Units*int64(factor)))
	}
	if free := card.Cores - held.Cores; more.Cores > free {
		lacks = append(lacks, fmt.Sprintf("%d of its %d percent of cores are free and %d are asked for", free, card.Cores, more.Cores))
	}
	if held.Slots > 0 && (held.Exclusive || more.Exclusive) {
		lacks = append(lacks, "100 percent of cores means the card alone, and it is shared")
	}
	if len(lacks) == 0 {
		return nil
	}
	return fmt.Errorf("%s has no room: %s; held by %s", card.GPU.UUID, strings.Join(lacks, "; "), names(held.Holders))
}

func names(holders []string) string {
	if len(holders) == 0 {
		return "nobody"
	}
	return strings.Join(holders, ", ")
}

// Release gives back what a container held.
func (b *Book) Release(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.holds, id)
}

// Keep drops every holder that live does not name: containers that ended while nobody watched.
func (b *Book) Keep(live map[string]bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id := range b.holds {
		if !live[id] {
			delete(b.holds, id)
		}
	}
}

// Use is what is taken of a card.
func (b *Book) Use(deck *cards.Deck, uuid string) Use {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.use(deck, uuid, "")
}

// use counts everyone's shares of a card but except's.
func (b *Book) use(deck *cards.Deck, uuid, except string) Use {
	card := deck.ByUUID(uuid)
	var u Use
	for id, entry := range b.holds {
		if id == except {
			continue
		}
		holds := false
		for _, share := range entry.shares {
			if share.UUID == uuid && card != nil {
				u = u.with(share, card)
				holds = true
			}
		}
		if holds {
			u.Holders = append(u.Holders, entry.holder.Name)
		}
	}
	slices.Sort(u.Holders)
	return u
}

// Len is the number of containers that hold shares.
func (b *Book) Len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.holds)
}

// Holds tells whether the holder of this ID holds shares.
func (b *Book) Holds(id string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, holds := b.holds[id]
	return holds
}
