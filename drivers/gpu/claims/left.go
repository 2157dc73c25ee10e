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
	"gpufabric.io/drivers/node/draplugin"
	"gpufabric.io/drivers/node/store"
)

// A GPU that cannot be shared in the ordinary way again (nvidia-smi fails, or waits for ever) holds no claim and no pod: it is reported and
// remembered, and the next claim on it tries again.

// leave remembers a GPU that could not be set back. The GPU is locked.
func (k *Kind) leave(s sharingData, why error) {
	k.options.Events.Report(notReset(s), fmt.Sprintf("%s is released, but still shared by %s: %v; it is tried again with the next claim on it",
		s.GPU, s.share(), why))
	if errors.Is(why, fs.ErrNotExist) {
		return // the program that would have changed it is not there, so nothing was changed
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.left[s.GPU] = s
	k.writeLeft()
}

func (s sharingData) share() share { return share{strategy: s.Strategy, interval: s.Interval} }

// notReset is the reason of what is reported.
func notReset(s sharingData) string {
	if s.Strategy == v1beta1.MPS {
		return "ComputeModeNotReset"
	}
	return "TimeSliceNotReset"
}

// catchUp sets back what could not be set back when earlier claims ended. A GPU whose time slices are longer or shorter than the claim
// wants is handed out all the same; one that lets a single process in is not.
func (k *Kind) catchUp(ctx context.Context, p *preparation) error {
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
		if err := k.unset(ctx, s); err != nil {
			if s.Strategy == v1beta1.MPS && p.shares[i].strategy != v1beta1.MPS {
				return draplugin.Refuse("SharingNotReset",
					"%s lets one process in alone, since an earlier claim used it with MPS, and cannot be set back: %w", d.GPU.UUID, err)
			}
			k.options.Events.Report(notReset(s), fmt.Sprintf("%s is handed out, but still shared by %s: %v", s.GPU, s.share(), err))
			continue
		}
		k.mu.Lock()
		delete(k.left, d.GPU.UUID)
		k.writeLeft()
		k.mu.Unlock()
	}
	return nil
}

// leftKind is how left is kept: as earlier versions kept it, with a checksum added. Those write back what they read of that, an entry
// without a GPU.
func leftKind() store.Kind[[]sharingData] {
	return store.Kind[[]sharingData]{Name: "gpufabric-sharing-left", Version: 1, Form: store.Objects}
}

// writeLeft keeps left on disk. k.mu is held.
func (k *Kind) writeLeft() {
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

// readLeft reads what the last run kept. What cannot be read is reported: the GPUs then keep what they have until somebody sets it.
func (k *Kind) readLeft() {
	if k.options.LeftFile == "" {
		return
	}
	const subject = "which GPUs are still shared in the way of claims that ended"
	file, unreadable, err := store.OpenFile(k.options.LeftFile, leftKind(), 0, k.options.Writer)
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
		if s.GPU != "" {
			k.left[s.GPU] = s
		}
	}
}
