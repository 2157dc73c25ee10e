package claims

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/gpu/partition"
	"gpufabric.io/drivers/node/claimstate"
)

// busyPause is the time between two tries to remove a MIG instance that a process still uses: there is no event for the moment when
// a container's last process closes it.
const busyPause = 100 * time.Millisecond

// Unprepare undoes Prepare. It may be repeated.
func (k *Preparer) Unprepare(ctx context.Context, record claimstate.Record) error {
	kept, err := decode(record)
	if err != nil {
		return err
	}
	// End the daemon first: it uses objects that are removed next.
	if err := k.endSharing(ctx, record.UID, kept); err != nil {
		return err
	}
	if err := k.options.Limits.remove(record.UID); err != nil {
		return err
	}
	for _, made := range kept.Partitions {
		g, p, err := k.partitionOf(made)
		if err != nil {
			// The GPU left the machine together with the instance.
			klog.FromContext(ctx).Info("Nothing to remove for a MIG device", "device", made.Device, "reason", err.Error())
			k.own(made.place(), "")
			continue
		}
		if err := k.destroy(ctx, g, p, made); err != nil {
			return err
		}
		k.own(made.place(), "")
	}
	if len(kept.Partitions) > 0 && k.Hardware().Offer.NoMIG {
		k.LayOut()
	}
	k.release(record.UID)
	return nil
}

func decode(record claimstate.Record) (data, error) {
	return claimstate.Decode[data](record)
}

func (k *Preparer) partitionOf(made partitionData) (*inventory.GPU, inventory.Profile, error) {
	g := k.Hardware().Node.ByUUID(made.GPU)
	if g == nil || g.MIG == nil {
		return nil, inventory.Profile{}, fmt.Errorf("%s is not on this node", made.GPU)
	}
	p, ok := g.MIG.Profile(made.Profile)
	if !ok {
		return nil, p, fmt.Errorf("%s has no MIG profile %d", made.GPU, made.Profile)
	}
	return g, p, nil
}

// destroy removes one instance. While a process still uses it, destroy tries again until ctx ends, and locks the GPU only during
// each try.
func (k *Preparer) destroy(ctx context.Context, g *inventory.GPU, p inventory.Profile, made partitionData) error {
	for {
		err := k.destroyOnce(ctx, g, p, made)
		if !errors.Is(err, partition.ErrBusy) {
			return err
		}
		select {
		case <-time.After(busyPause):
		case <-ctx.Done():
			return err
		}
	}
}

func (k *Preparer) destroyOnce(ctx context.Context, g *inventory.GPU, p inventory.Profile, made partitionData) error {
	unlock, err := k.Lock(ctx, g.UUID)
	if err != nil {
		return err
	}
	defer unlock()
	return unlessLost(ctx, g, partition.Destroy(g, p, made.Start))
}

// unlessLost returns why something could not be undone on a GPU. It returns nil where the GPU no longer answers: the reset that it
// needs undoes everything, and until then an error would keep the claim's pod, which was evicted for the loss.
func unlessLost(ctx context.Context, g *inventory.GPU, err error) error {
	if err == nil || g.Answers() {
		return err
	}
	klog.FromContext(ctx).Info("Skipped a step on a lost GPU", "gpu", g.UUID, "reason", err.Error())
	return nil
}
