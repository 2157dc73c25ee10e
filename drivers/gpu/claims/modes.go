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

// From Hopper on the MIG mode changes at once, so claims switch it: a MIG device's on, a whole GPU's off. A GPU that an administrator
// brought into MIG mode is left in it: between nvidia-smi -mig 1 and the first instance it is not to be handed out whole. So the driver
// remembers whose mode it is.

// modes are the GPUs that claims brought into MIG mode, by UUID.
type modes struct {
	file *store.File[[]string] // nil: kept in memory alone

	mu  sync.Mutex
	own map[string]bool
}

// modesKind is how modes are kept: as earlier versions kept them, with a checksum added, which is no GPU of theirs.
func modesKind() store.Kind[[]string] {
	return store.Kind[[]string]{Name: "gpufabric-mig-modes", Version: 1, Form: store.Strings}
}

// openModes reads what the last run kept in a file; without a path nothing is kept. GPUs that are out of MIG mode by now are not this
// driver's to bring out of it any more. The modes are good with an error, too.
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

// divided says whether a GPU, whose MIG mode changes at once, is in MIG mode.
func divided(g *inventory.GPU) bool {
	if g.MIG == nil || g.MIG.NeedsReset {
		return false
	}
	current, _, ret := g.Handle.GetMigMode()
	return ret == nvml.SUCCESS && current == nvml.DEVICE_MIG_ENABLE
}

// foreign are the GPUs that are in MIG mode and were not brought there by claims.
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

// set notes whether a GPU's MIG mode is a claim's.
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

// keep writes the file. m.mu is held.
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

// cut brings a GPU into MIG mode for a claim. That it is the claim's mode is kept first: after a crash in between the GPU would never be
// whole again.
func (k *Kind) cut(g *inventory.GPU) error {
	if g.MIG != nil && !g.MIG.NeedsReset && !divided(g) {
		if err := k.modes.set(g.UUID, true); err != nil {
			return err
		}
	}
	return partition.Require(g, true)
}

// OwnMode notes that a GPU's MIG mode is the driver's to switch off: a claim's or a MIGLayout's.
func (k *Kind) OwnMode(uuid string) {
	if err := k.modes.set(uuid, true); err != nil {
		k.options.Events.Report("StateNotKept", err.Error())
	}
}

// AdoptMode takes a GPU's MIG mode, whoever switched it on, for the driver's own to switch off: a MIGLayout decides over the GPU. changed
// says that it was somebody else's.
func (k *Kind) AdoptMode(g *inventory.GPU) (changed bool) {
	if changed = k.modes.foreign([]*inventory.GPU{g})[g.UUID]; changed {
		k.OwnMode(g.UUID)
	}
	return changed
}

// disownMode notes that a GPU is out of MIG mode.
func (k *Kind) disownMode(uuid string) {
	if err := k.modes.set(uuid, false); err != nil {
		k.options.Events.Report("StateNotKept", err.Error())
	}
}
