package claims

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/gpu/partition"
	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/store"
)

// From Hopper on the MIG mode changes at once, so claims switch it: on for a MIG device, off for a whole GPU. A GPU that an
// administrator switched to MIG mode stays in it: between nvidia-smi -mig 1 and the first instance, no claim may get it whole. So
// the driver remembers who switched the mode.

// modes are the GPUs that claims switched to MIG mode, by UUID.
type modes struct {
	file *store.File[[]string] // nil: kept in memory alone

	mu  sync.Mutex
	own map[string]bool
}

// modesKind describes how modes are stored: as earlier versions stored them, with a checksum added, which matches no GPU there.
func modesKind() store.Kind[[]string] {
	return store.Kind[[]string]{Name: "gpufabric-mig-modes", Version: 1, Form: store.Strings}
}

// openModes reads from a file what the last run stored; without a path nothing is stored. A GPU that is out of MIG mode by now is
// dropped: the driver must not switch a later mode off. The modes are valid even with an error.
func openModes(path string, writer atomicfile.Writer, gpus []*inventory.GPU, adopt bool) (*modes, error) {
	m := &modes{own: map[string]bool{}}
	if path == "" {
		return m, nil
	}
	const subject = "which GPUs claims brought into MIG mode: %v: those that are in it now count as brought there by an administrator"
	file, unreadable, err := store.OpenFile(path, modesKind(), 0, writer)
	if err != nil {
		return m, fmt.Errorf(subject, err)
	}
	m.file = file
	var errs []error
	for _, u := range unreadable {
		errs = append(errs, fmt.Errorf(subject, u))
	}
	kept, found := file.Get()
	if !found && !file.Aside() && adopt {
		for _, g := range gpus {
			kept = append(kept, g.UUID)
		}
	}
	for _, g := range gpus {
		if slices.Contains(kept, g.UUID) && divided(g) {
			m.own[g.UUID] = true
		}
	}
	return m, errors.Join(append(errs, m.keep())...)
}

// divided says whether a GPU is in MIG mode and can switch it at once.
func divided(g *inventory.GPU) bool {
	if g.MIG == nil || g.MIG.NeedsReset {
		return false
	}
	current, _, ret := g.Handle.GetMigMode()
	return ret == nvml.SUCCESS && current == nvml.DEVICE_MIG_ENABLE
}

// foreign returns the GPUs in MIG mode that claims did not switch.
func (m *modes) foreign(gpus []*inventory.GPU) map[string]bool {
	m.mu.Lock()
	own := maps.Clone(m.own)
	m.mu.Unlock()
	out := map[string]bool{}
	for _, g := range gpus {
		if !own[g.UUID] && divided(g) {
			out[g.UUID] = true
		}
	}
	return out
}

// set records whether a GPU's MIG mode belongs to a claim.
func (m *modes) set(uuid string, own bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.own[uuid] == own {
		return nil
	}
	if own {
		m.own[uuid] = true
	} else {
		delete(m.own, uuid)
	}
	return m.keep()
}

// keep writes the file. m.mu must be held.
func (m *modes) keep() error {
	if m.file == nil {
		return nil
	}
	list := slices.AppendSeq([]string{}, maps.Keys(m.own))
	slices.Sort(list)
	if err := m.file.Put(list); err != nil {
		return fmt.Errorf("which GPUs claims brought into MIG mode is not kept: %w", err)
	}
	return nil
}

// cut switches a GPU to MIG mode for a claim. It first stores that the mode is the claim's: otherwise a crash in between would
// leave the GPU in MIG mode for ever.
func (k *Kind) cut(g *inventory.GPU) error {
	if g.MIG != nil && !g.MIG.NeedsReset && !divided(g) {
		if err := k.modes.set(g.UUID, true); err != nil {
			return err
		}
	}
	return partition.Require(g, true)
}

// OwnMode records that the driver may switch a GPU's MIG mode off: it is a claim's or a MIGLayout's.
func (k *Kind) OwnMode(uuid string) {
	if err := k.modes.set(uuid, true); err != nil {
		k.options.Events.Report("StateNotKept", err.Error())
	}
}

// AdoptMode makes a GPU's MIG mode the driver's own to switch off, whoever switched it on: a MIGLayout decides about the GPU.
// changed says that the mode was somebody else's.
func (k *Kind) AdoptMode(g *inventory.GPU) (changed bool) {
	if changed = k.modes.foreign([]*inventory.GPU{g})[g.UUID]; changed {
		k.OwnMode(g.UUID)
	}
	return changed
}

// disownMode records that a GPU has left MIG mode.
func (k *Kind) disownMode(uuid string) {
	if err := k.modes.set(uuid, false); err != nil {
		k.options.Events.Report("StateNotKept", err.Error())
	}
}
