// Package fabricpartition gives claims partitions of Fabric Manager. On an HGX board in shared NVSwitch mode (FABRIC_MODE=1), GPUs reach
// each other by NVLink only while a partition of exactly these GPUs is active, and a GPU is in at most one active partition. A virtual
// machine whose GPUs have no active partition has no NVLink, and CUDA does not start in it. Source: the Fabric Manager user guide
// (docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide), chapters "Shared NVSwitch Virtualization Model" and "Fabric Manager SDK".
package fabricpartition

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/hardware/nvfm"
	"gpufabric.io/drivers/hardware/pci"
	"gpufabric.io/drivers/node/keylock"
)

// Manager is a fabric manager. nvfm.Client is one. Errors wrap an nvfm.Status.
type Manager interface {
	Partitions(ctx context.Context) ([]nvfm.Partition, error)
	Activate(ctx context.Context, id int) error
	Deactivate(ctx context.Context, id int) error
	SetActivated(ctx context.Context, ids []int) error
}

// ErrNone is wrapped by the error for GPUs that form no partition.
var ErrNone = errors.New("not a partition of Fabric Manager")

// Keeper activates and deactivates the partitions of a node. It is safe for concurrent use.
type Keeper struct {
	Manager Manager
	Journal *Journal
	// Modules returns the module IDs of the GPUs that NVIDIA's driver has.
	Modules func(ctx context.Context) (map[pci.Address]int, error)

	turn keylock.Locks // one change at a time: a list of active partitions replaces the one before

	mu sync.Mutex
	// gpus and partitions are the result of the last Refresh.
	gpus       map[pci.Address]GPU
	partitions map[int][]pci.Address
}

// GPU is a GPU's place in partitions.
type GPU struct {
	// Module is its module ID on the board, from 1.
	Module int
	// Partitions are the IDs of the partitions that it is in, by their number of GPUs.
	Partitions map[int]int
}

// Refresh reads the partitions that there are for these GPUs of the node. It gives a fabric manager that was restarted the partitions
// of claims. lost are partitions of claims that the fabric manager does not have active: their virtual machines are without NVLink.
func (k *Keeper) Refresh(ctx context.Context, gpus []pci.Address) (lost []int, err error) {
	unlock, err := k.turn.Lock(ctx, "")
	if err != nil {
		return nil, err
	}
	defer unlock()
	all, err := k.list(ctx)
	if err != nil {
		return nil, err
	}
	address, err := k.addresses(ctx, gpus, all)
	if err != nil {
		return nil, err
	}
	places, partitions := map[pci.Address]GPU{}, map[int][]pci.Address{}
	for _, p := range all {
		members := make([]pci.Address, len(p.GPUs))
		for i, g := range p.GPUs {
			members[i] = address(g)
		}
		if len(members) == 0 || slices.Contains(members, "") {
			continue // a GPU of it is not on this node's bus, or its module ID is unknown
		}
		for i, a := range members {
			if places[a].Partitions == nil {
				places[a] = GPU{Module: p.GPUs[i].Module, Partitions: map[int]int{}}
			}
			if other, twice := places[a].Partitions[len(members)]; twice {
				return nil, fmt.Errorf("GPU %s is in the partitions %d and %d of %d GPUs each: a GPU must be in one partition of each "+
					"size", a, other, p.ID,
					len(members))
			}
			places[a].Partitions[len(members)] = p.ID
		}
		slices.Sort(members)
		partitions[p.ID] = members
	}
	for _, h := range k.Journal.read().Claims {
		if h.Active && !slices.Contains(active(all), h.Partition) {
			lost = append(lost, h.Partition)
		}
	}
	slices.Sort(lost)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.gpus, k.partitions = places, partitions
	return lost, nil
}

// list returns the partitions. A fabric manager that was restarted in the mode for it (FABRIC_MODE_RESTART=1) has no data until it is
// given the active partitions, also where there are none.
func (k *Keeper) list(ctx context.Context) ([]nvfm.Partition, error) {
	all, err := k.Manager.Partitions(ctx)
	if !errors.Is(err, nvfm.NotConfigured) {
		return all, err
	}
	ids := []int{}
	for _, h := range k.Journal.read().Claims {
		if h.Active {
			ids = append(ids, h.Partition)
		}
	}
	slices.Sort(ids)
	if failed := k.Manager.SetActivated(ctx, slices.Compact(ids)); failed != nil {
		return nil, errors.Join(err, failed) // NotSupported: it is in another mode, and still starting
	}
	return k.Manager.Partitions(ctx)
}

// addresses returns a function from a partition's GPU to its PCI address; empty: it is none of gpus.
func (k *Keeper) addresses(ctx context.Context, gpus []pci.Address, all []nvfm.Partition) (func(nvfm.GPU) pci.Address, error) {
	modules := maps.Clone(k.Journal.read().Modules)
	unknown := func(a pci.Address) bool { return modules[a] == 0 }
	byModule := slices.ContainsFunc(all, func(p nvfm.Partition) bool {
		return slices.ContainsFunc(p.GPUs, func(g nvfm.GPU) bool { return busID(g) == "" })
	})
	if byModule && slices.ContainsFunc(gpus, unknown) {
		found, err := k.Modules(ctx)
		if err != nil {
			return nil, fmt.Errorf("read the module IDs of GPUs: %w", err)
		}
		if err := k.Journal.change(func(s *state) {
			maps.Copy(s.Modules, found)
			modules = maps.Clone(s.Modules)
		}); err != nil {
			return nil, err
		}
	}
	at := map[int]pci.Address{}
	for _, a := range gpus {
		if modules[a] != 0 {
			at[modules[a]] = a
		}
	}
	return func(g nvfm.GPU) pci.Address {
		if a := busID(g); a != "" {
			if slices.Contains(gpus, a) {
				return a
			}
			return ""
		}
		return at[g.Module]
	}, nil
}

// busID is a GPU's PCI address as sysfs writes it; empty where the fabric manager does not report it.
func busID(g nvfm.GPU) pci.Address {
	text := g.BusID
	if len(text) == len("00000000:1B:00.0") {
		text = strings.TrimPrefix(text, "0000")
	}
	a, err := pci.ParseAddress(text)
	if err != nil || strings.Trim(string(a), "0:.") == "" {
		return ""
	}
	return a
}

// GPU returns the place of a GPU; false: it is in no partition.
func (k *Keeper) GPU(a pci.Address) (GPU, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	g, found := k.gpus[a]
	return g, found
}

// Match returns the partition of exactly these GPUs, or an error that wraps ErrNone and names the partitions that there are.
func (k *Keeper) Match(gpus []pci.Address) (id int, err error) {
	want := slices.Sorted(slices.Values(gpus))
	k.mu.Lock()
	defer k.mu.Unlock()
	var ofSize []string
	for _, id := range slices.Sorted(maps.Keys(k.partitions)) {
		members := k.partitions[id]
		if slices.Equal(members, want) {
			return id, nil
		}
		if len(members) == len(want) {
			ofSize = append(ofSize, fmt.Sprintf("%d (%s)", id, join(members)))
		}
	}
	if len(ofSize) == 0 {
		var sizes []int
		for _, members := range k.partitions {
			sizes = append(sizes, len(members))
		}
		slices.Sort(sizes)
		return 0, fmt.Errorf("%s are %w: it has none of %d GPUs on this node, only of %v", join(want), ErrNone, len(want), slices.Compact(sizes))
	}
	return 0, fmt.Errorf("%s are %w; those of %d GPUs are %s: add matchAttribute: gpu.nvidia.com/partition%d to the claim's constraints",
		join(want), ErrNone, len(want), strings.Join(ofSize, ", "), len(want))
}

func join(all []pci.Address) string {
	words := make([]string, len(all))
	for i, a := range all {
		words[i] = string(a)
	}
	return strings.Join(words, " ")
}

// Activate activates a partition for a claim. It may be repeated, and after a crash at any point. A partition that is active already
// is taken over: it is left of a claim whose journal was lost, or of one that was killed between the activation and its record.
func (k *Keeper) Activate(ctx context.Context, claim types.UID, id int) error {
	unlock, err := k.turn.Lock(ctx, "")
	if err != nil {
		return err
	}
	defer unlock()
	claims := k.Journal.read().Claims
	for other, h := range claims {
		if h.Partition == id && other != claim {
			return fmt.Errorf("partition %d belongs to claim %s, which has not been released", id, other)
		}
	}
	if h, has := claims[claim]; has && h.Partition != id { // the board's partitions have changed
		if err := k.deactivate(ctx, claim, h.Partition); err != nil {
			return err
		}
	}
	if !claims[claim].Active {
		if err := k.Journal.change(func(s *state) { s.Claims[claim] = held{Partition: id} }); err != nil {
			return err
		}
	}
	all, err := k.list(ctx)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(all, func(p nvfm.Partition) bool { return p.ID == id }) {
		return fmt.Errorf("partition %d is gone: Fabric Manager no longer has it", id)
	}
	if !slices.Contains(active(all), id) {
		err := k.Manager.Activate(ctx, id)
		if errors.Is(err, nvfm.InUse) {
			return fmt.Errorf("%w; active are the partitions %v: one without a claim was activated by another program (fmpm -d ID deactivates it)",
				err, active(all))
		}
		if err != nil {
			return err
		}
	}
	return k.Journal.change(func(s *state) { s.Claims[claim] = held{Partition: id, Active: true} })
}

func active(all []nvfm.Partition) []int {
	var out []int
	for _, p := range all {
		if p.Active {
			out = append(out, p.ID)
		}
	}
	return out
}

// Deactivate deactivates the partition of a claim, whose virtual machine has ended; it does nothing where the claim has none. It may be
// repeated.
func (k *Keeper) Deactivate(ctx context.Context, claim types.UID) error {
	unlock, err := k.turn.Lock(ctx, "")
	if err != nil {
		return err
	}
	defer unlock()
	h, has := k.Journal.read().Claims[claim]
	if !has {
		return nil
	}
	return k.deactivate(ctx, claim, h.Partition)
}

func (k *Keeper) deactivate(ctx context.Context, claim types.UID, id int) error {
	if _, err := k.list(ctx); err != nil { // gives a restarted fabric manager its partitions
		return err
	}
	k.Journal.release(ctx, func(s *state) { s.Claims[claim] = held{Partition: id} })
	if err := k.Manager.Deactivate(ctx, id); err != nil && !errors.Is(err, nvfm.Uninitialized) {
		return err
	}
	k.Journal.release(ctx, func(s *state) { delete(s.Claims, claim) })
	return nil
}

// Restore adds the partition of a claim to the journal where it lacks the claim: an earlier journal could not be read.
func (k *Keeper) Restore(claim types.UID, id int) error {
	if _, has := k.Journal.read().Claims[claim]; has {
		return nil
	}
	return k.Journal.change(func(s *state) { s.Claims[claim] = held{Partition: id, Active: true} })
}
