// Package holdings is the node's own record of which container has which share of which GPU. The scheduler decides. This package
// refuses impossible decisions, and reports the use, when a decision was based on outdated data or made by another program.
package holdings

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"

	"gpufabric.io/drivers/vgpu/annotation"
	"gpufabric.io/drivers/vgpu/sharedgpus"
)

// Holder is a container that has shares.
type Holder struct {
	// ID is the container runtime's; each start of a container has a new one.
	ID string
	// Name is for people: "default/train-0, container main".
	Name string
	// Namespace is the pod's. Pods of other namespaces never see its name.
	Namespace string
	// Limits names the mechanism that enforces its shares; empty where that is unknown.
	Limits string

	// Pod is set where all of a pod's containers are booked before the first of them runs, as with the kubelet's allocation without
	// NRI; then their maximum use at one time counts. Step is a container's place in the order in which they start. Ends is set for a
	// container that ends before the next one starts.
	Pod  string
	Step int
	Ends bool
}

// group is the key of holders that count together: a pod, or a single container.
func (h Holder) group() string { return cmp.Or(h.Pod, h.ID) }

// Book is safe for concurrent use. Its zero value is empty and ready to use.
type Book struct {
	mu    sync.Mutex
	holds map[string]booking // by Holder.ID
}

type booking struct {
	holder Holder
	shares []annotation.Share
}

// Use is the used part of one card.
type Use struct {
	Slots int
	Units int64
	Cores int
	// Exclusive is set if a container has all the cores: no other fits then. Crowded is set if another is there anyway.
	Exclusive, Crowded bool
	Holders            []string
}

// Take books shares for a container, all of them or none. A second Take for the same ID replaces the first.
func (b *Book) Take(gpus *sharedgpus.Set, holder Holder, shares []annotation.Share) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, share := range shares {
		card := gpus.ByUUID(share.UUID)
		if card == nil {
			return fmt.Errorf("%s requests a share of %s, which is not among this node's %d shared GPUs", holder.Name, share.UUID, len(gpus.Cards))
		}
		if !card.Healthy {
			return fmt.Errorf("%s requests a share of %s, which is unhealthy: %s", holder.Name, share.UUID, card.Reason)
		}
	}
	mine := booking{holder, slices.Clone(shares)}
	together := []booking{mine}
	for id, entry := range b.holds {
		if id != holder.ID && entry.holder.group() == holder.group() {
			together = append(together, entry)
		}
	}
	for _, share := range shares {
		card := gpus.ByUUID(share.UUID)
		if err := b.fits(card, b.use(card, holder.group()), peak(card, together), gpus.Factor, holder); err != nil {
			return fmt.Errorf("%s: %w", holder.Name, err)
		}
	}
	if b.holds == nil {
		b.holds = map[string]booking{}
	}
	b.holds[holder.ID] = mine
	return nil
}

// Hold books the shares of a running container, which can no longer be refused. The error describes a conflict for people. The shares
// are booked in any case, so that no other container gets them.
func (b *Book) Hold(gpus *sharedgpus.Set, holder Holder, shares []annotation.Share) error {
	err := b.Take(gpus, holder, shares)
	if err == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.holds == nil {
		b.holds = map[string]booking{}
	}
	b.holds[holder.ID] = booking{holder, slices.Clone(shares)}
	return err
}

func (u Use) with(share annotation.Share, card *sharedgpus.Card) Use {
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

// plus adds two uses at the same time.
func (u Use) plus(v Use) Use {
	return Use{u.Slots + v.Slots, u.Units + v.Units, u.Cores + v.Cores, u.Exclusive || v.Exclusive,
		u.Crowded || v.Crowded || u.Slots > 0 && v.Slots > 0 && (u.Exclusive || v.Exclusive), slices.Concat(u.Holders, v.Holders)}
}

// or returns the maximum of two uses that are not simultaneous.
func (u Use) or(v Use) Use {
	return Use{max(u.Slots, v.Slots), max(u.Units, v.Units), max(u.Cores, v.Cores), u.Exclusive || v.Exclusive, u.Crowded || v.Crowded,
		slices.Compact(slices.Sorted(slices.Values(slices.Concat(u.Holders, v.Holders))))}
}

// peak is the maximum that one group's holders have of a card at one time.
func peak(card *sharedgpus.Card, together []booking) Use {
	slices.SortFunc(together, func(a, b booking) int { return cmp.Compare(a.holder.Step, b.holder.Step) })
	var now, most Use
	for _, entry := range together {
		var mine Use
		for _, share := range entry.shares {
			if share.UUID == card.GPU.UUID {
				mine = mine.with(share, card)
			}
		}
		if mine.Slots == 0 {
			continue
		}
		mine.Holders = []string{entry.holder.Name}
		most = most.or(now.plus(mine))
		if !entry.holder.Ends {
			now = now.plus(mine)
		}
	}
	return most
}

// FullError is the error for a share that does not fit on a GPU. The tenant who requested it reads it on the pod, so its text names only
// holders of the same namespace and counts the others. Holders are for the node's log.
type FullError struct {
	GPU     string // its UUID
	Lacks   []string
	Holders []string
	// Near are the holders in the requester's namespace.
	Near []string
}

func (e *FullError) Error() string {
	held := slices.Clone(e.Near)
	if others := len(e.Holders) - len(e.Near); others > 0 {
		held = append(held, fmt.Sprintf("%d of other namespaces", others))
	}
	if len(held) == 0 {
		held = []string{"nobody"}
	}
	return fmt.Sprintf("%s has no room: %s; held by %s", e.GPU, strings.Join(e.Lacks, "; "), strings.Join(held, ", "))
}

func (b *Book) fits(card *sharedgpus.Card, held, more Use, factor int, asker Holder) error {
	var lacks []string
	if free := card.Slots - held.Slots; more.Slots > free {
		lacks = append(lacks, fmt.Sprintf("%d of its %d slots are free and %d are asked for", free, card.Slots, more.Slots))
	}
	if free := card.Units - held.Units; more.Units > free {
		lacks = append(lacks, fmt.Sprintf("%d of its %d MiB are free and %d are asked for", free*int64(factor), card.Units*int64(factor),
			more.Units*int64(factor)))
	}
	if free := card.Cores - held.Cores; more.Cores > free {
		lacks = append(lacks, fmt.Sprintf("%d of its %d percent of cores are free and %d are asked for", free, card.Cores, more.Cores))
	}
	if more.Crowded || held.Slots > 0 && (held.Exclusive || more.Exclusive) {
		lacks = append(lacks, "100 percent of cores means the card alone, and it is shared")
	}
	if len(lacks) == 0 {
		return nil
	}
	full := &FullError{GPU: card.GPU.UUID, Lacks: lacks, Holders: held.Holders}
	for _, e := range b.holds {
		if e.holder.Namespace == asker.Namespace && slices.Contains(held.Holders, e.holder.Name) {
			full.Near = append(full.Near, e.holder.Name)
		}
	}
	slices.Sort(full.Near)
	full.Near = slices.Compact(full.Near)
	return full
}

// Release releases a container's shares.
func (b *Book) Release(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.holds, id)
}

// Keep drops every holder that is not in live: containers that ended while the plugin was away.
func (b *Book) Keep(live map[string]bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id := range b.holds {
		if !live[id] {
			delete(b.holds, id)
		}
	}
}

// Use is the used part of a card.
func (b *Book) Use(gpus *sharedgpus.Set, uuid string) Use {
	b.mu.Lock()
	defer b.mu.Unlock()
	card := gpus.ByUUID(uuid)
	if card == nil {
		return Use{}
	}
	return b.use(card, "")
}

// use adds up everyone's shares of a card except one group's.
func (b *Book) use(card *sharedgpus.Card, except string) Use {
	groups := map[string][]booking{}
	for _, entry := range b.holds {
		if group := entry.holder.group(); group != except {
			groups[group] = append(groups[group], entry)
		}
	}
	var u Use
	for _, together := range groups {
		u = u.plus(peak(card, together))
	}
	slices.Sort(u.Holders)
	return u
}

// Len is the number of containers that have shares.
func (b *Book) Len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.holds)
}

// Limited counts the containers with shares by the backend of their limits.
func (b *Book) Limited() map[string]int {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := map[string]int{}
	for _, entry := range b.holds {
		out[cmp.Or(entry.holder.Limits, "unknown")]++
	}
	return out
}

// Names returns the names of the containers with shares, in order.
func (b *Book) Names() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	names := make([]string, 0, len(b.holds))
	for _, entry := range b.holds {
		names = append(names, entry.holder.Name)
	}
	slices.Sort(names)
	return names
}

// Holds reports whether the holder of this ID has shares.
func (b *Book) Holds(id string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, holds := b.holds[id]
	return holds
}
