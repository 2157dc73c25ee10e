package claims

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/sharing"
	"gpufabric.io/drivers/node/draplugin"
	"gpufabric.io/drivers/node/store"
)

// A GPU whose sharing cannot be reset (nvidia-smi fails, or hangs) must not keep a claim or pod from ending. It is reported and
// remembered, and the next claim on it tries again.

// leave stores a GPU that could not be reset. The GPU's lock must be held.
func (k *Preparer) leave(s sharingData, why error) {
	if errors.Is(why, sharing.ErrNotSupported) {
		return // it cannot have been set
	}
	k.options.Events.Report(notReset(s), fmt.Sprintf("%s is released, but still shared by %s: %v; it is tried again with the next claim on it",
		s.GPU, s.share(), why))
	if errors.Is(why, fs.ErrNotExist) {
		return // the program for the change is missing, so nothing was changed
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.left[s.GPU] = s
	k.writeLeft()
}

func (s sharingData) share() share { return share{strategy: s.Strategy, interval: s.Interval} }

// notReset is the reason under which it is reported.
func notReset(s sharingData) string {
	if s.Strategy == v1beta1.MPS {
		return "ComputeModeNotReset"
	}
	return "TimeSliceNotReset"
}

// catchUp resets GPUs that could not be reset when earlier claims ended. A GPU with the wrong time slices is still given out; a GPU that
// allows only one process is not.
func (k *Preparer) catchUp(ctx context.Context, p *preparation) error {
	for i, d := range p.devices {
		if d.Form == devices.MIG || p.claim.Devices[i].Admin() {
			continue
		}
		k.mu.Lock()
		s, ok := k.left[d.GPU.UUID]
		k.mu.Unlock()
		if !ok {
			continue
		}
		if err := k.unset(ctx, s); err != nil && !errors.Is(err, sharing.ErrNotSupported) {
			if s.Strategy == v1beta1.MPS && p.shares[i].strategy != v1beta1.MPS {
				return draplugin.Refuse("SharingNotReset",
					"%s lets one process in alone, since an earlier claim used it with MPS, and cannot be set back: %w", d.GPU.UUID, err)
			}
			k.options.Events.Report(notReset(s), fmt.Sprintf("%s is given out, but still shared by %s: %v", s.GPU, s.share(), err))
			continue
		}
		k.mu.Lock()
		delete(k.left, d.GPU.UUID)
		k.writeLeft()
		k.mu.Unlock()
	}
	return nil
}

// leftFormat describes how left is stored.
func leftFormat() store.Format[[]sharingData] {
	return store.Format[[]sharingData]{Name: "gpufabric-sharing-left", Version: 1}
}

// writeLeft stores left on disk. k.mu must be held.
func (k *Preparer) writeLeft() {
	if k.leftFile == nil {
		return
	}
	list := make([]sharingData, 0, len(k.left))
	for _, gpu := range slices.Sorted(maps.Keys(k.left)) {
		list = append(list, k.left[gpu])
	}
	if err := k.leftFile.Put(list); err != nil {
		k.options.Events.Report("StateNotKept", fmt.Sprintf("which GPUs are still shared in the way of claims that ended is forgotten at the "+
			"next restart: %v", err))
	}
}

// readLeft reads the GPUs that the last run stored. It reports unreadable ones: they keep their settings until an administrator changes
// them.
func (k *Preparer) readLeft() {
	if k.options.LeftFile == "" {
		return
	}
	const subject = "which GPUs are still shared in the way of claims that ended"
	file, unreadable, err := store.OpenFile(k.options.LeftFile, leftFormat(), 0, k.options.Writer)
	if err != nil {
		k.options.Events.Report("StateUnreadable", fmt.Sprintf("%s: %v", subject, err))
		return
	}
	for _, u := range unreadable {
		k.options.Events.Report("StateUnreadable", fmt.Sprintf("%s: %s", subject, u))
	}
	k.leftFile = file
	list, _ := file.Get()
	for _, s := range list {
		k.left[s.GPU] = s
	}
}
