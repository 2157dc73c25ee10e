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
// the driver stores whether it switched the mode.

// modes are the GPUs that claims switched to MIG mode, by UUID.
type modes struct {
	file *store.File[[]string] // nil: kept in memory alone
	// before are the GPUs of the file at the start; known: there was a file.
	before []string
	known  bool

	mu  sync.Mutex
	own map[string]bool
}

// modesFormat describes how modes are stored.
func modesFormat() store.Format[[]string] {
	return store.Format[[]string]{Name: "gpufabric-mig-modes", Version: 1}
}

// openModes reads the file that the last run stored; without a path nothing is stored. A GPU that is out of MIG mode by now is
// dropped: the driver must not switch a later mode off. The modes are valid even with an error.
func openModes(path string, writer atomicfile.Writer, gpus []*inventory.GPU) (*modes, error) {
	m := &modes{own: map[string]bool{}}
	if path == "" {
		return m, nil
	}
	const subject = "which GPUs claims brought into MIG mode: %v: those that are in it now count as brought there by an administrator"
	file, unreadable, err := store.OpenFile(path, modesFormat(), 0, writer)
	if err != nil {
		return m, fmt.Errorf(subject, err)
	}
	m.file = file
	var errs []error
	for _, u := range unreadable {
		errs = append(errs, fmt.Errorf(subject, u))
	}
	kept, found := file.Get()
	m.before, m.known = slices.Clone(kept), found
	for _, g := range gpus {
		if slices.Contains(kept, g.UUID) && divided(g) {
			m.own[g.UUID] = true
		}
	}
	return m, errors.Join(append(errs, m.keep())...)
}

// divided reports whether a GPU is in MIG mode and can switch it at once.
func divided(g *inventory.GPU) bool {
	if g.MIG == nil || g.MIG.NeedsReset {
		return false
	}
	current, _, ret := g.Handle.GetMigMode()
	return ret == nvml.SUCCESS && current == nvml.DEVICE_MIG_ENABLE
}

// had reports whether the MIG mode of a GPU on which a claim has an instance may be the claim's: it was at the start, or that is unknown.
// A claim's instance may also be on a GPU that an administrator switched.
func (m *modes) had(uuid string) bool { return !m.known || slices.Contains(m.before, uuid) }

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
	if own {
		m.own[uuid] = true
	} else {
		delete(m.own, uuid)
	}
	return m.keep()
}

// drop forgets a GPU whose mode was not switched.
func (m *modes) drop(uuid string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.own, uuid)
}

// keep writes the file. m.mu must be held.
func (m *modes) keep() error {
	if m.file == nil {
		return nil
	}
	list := slices.AppendSeq([]string{}, maps.Keys(m.own))
	slices.Sort(list)
	if err := m.file.Put(list); err != nil {
		return fmt.Errorf("store the GPUs that claims brought into MIG mode: %w", err)
	}
	return nil
}

// cut switches a GPU to MIG mode for a claim. It first stores that the mode is the claim's: otherwise a crash in between would
// leave the GPU in MIG mode for ever.
func (k *Preparer) cut(g *inventory.GPU) error {
	if g.MIG != nil && !g.MIG.NeedsReset && !divided(g) {
		if err := k.modes.set(g.UUID, true); err != nil {
			k.modes.drop(g.UUID)
			return err
		}
	}
	err := partition.Require(g, true)
	if err != nil {
		k.SettleMode(g)
	}
	return err
}

// SettleMode forgets that the driver may switch off a GPU's MIG mode, which is off: the switch was refused, and a later switch is not the
// driver's.
func (k *Preparer) SettleMode(g *inventory.GPU) {
	if current, pending, ret := g.Handle.GetMigMode(); ret == nvml.SUCCESS && current != nvml.DEVICE_MIG_ENABLE &&
		pending != nvml.DEVICE_MIG_ENABLE {
		k.disownMode(g.UUID)
	}
}

// OwnMode records that the driver may switch a GPU's MIG mode off: it is a claim's or a MIGLayout's.
func (k *Preparer) OwnMode(uuid string) {
	if err := k.modes.set(uuid, true); err != nil {
		k.options.Events.Report("StateNotKept", err.Error())
	}
}

// AdoptMode lets the driver switch off a GPU's MIG mode that another switched on: a MIGLayout decides about the GPU. changed: it was
// another's before.
func (k *Preparer) AdoptMode(g *inventory.GPU) (changed bool) {
	if changed = k.modes.foreign([]*inventory.GPU{g})[g.UUID]; changed {
		k.OwnMode(g.UUID)
	}
	return changed
}

// disownMode records that a GPU has left MIG mode.
func (k *Preparer) disownMode(uuid string) {
	if err := k.modes.set(uuid, false); err != nil {
		k.options.Events.Report("StateNotKept", err.Error())
	}
}
