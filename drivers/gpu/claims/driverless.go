package claims

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/klog/v2"

	"gpufabric.io/drivers/gpu/partition"
	"gpufabric.io/drivers/node/claimstate"
	"gpufabric.io/drivers/node/draplugin"
	"gpufabric.io/drivers/node/store"
)

// Driverless serves the kubelet while the node has no usable driver: it prepares nothing, and releases claims from their records.
// Effects that cannot be undone without a driver are stored, and undone by the Preparer that starts when the driver is there. So pods that
// hold GPUs end, and a node can be drained to install or mend its driver.
type Driverless struct {
	// Options are the options of the Preparer. Only MPS, Limits, LeftFile, PartitionsFile, Writer and Events are used.
	Options Options
	// Why returns the reason of the role's wait.
	Why func() string
}

// Prepare refuses every claim, with the reason of the wait.
func (d Driverless) Prepare(ctx context.Context, _ *draplugin.Claim, progress draplugin.Progress) (*draplugin.Prepared, error) {
	message := d.Why()
	progress.Waiting(waitingForDriver, message)
	<-ctx.Done() // the driver may come within the call
	message = d.Why()
	return nil, draplugin.Refuse(waitingForDriver, "%s", message)
}

// waitingForDriver is the reason of claims that wait for a driver, and of the Event on the node.
const waitingForDriver = "WaitingForDriver"

// Unprepare releases devices that need no driver, and stores the rest.
func (d Driverless) Unprepare(ctx context.Context, record claimstate.Record) error {
	kept, err := decode(record)
	if err != nil {
		return err
	}
	if kept.MPS != nil {
		if err := d.Options.MPS.Stop(ctx, record.UID); err != nil {
			return fmt.Errorf("end the MPS control daemon: %w", err)
		}
	}
	if err := d.Options.Limits.remove(record.UID); err != nil {
		return err
	}
	if err := addTo(d.Options.LeftFile, leftFormat(), d.Options, kept.Sharing, func(a, b sharingData) bool {
		return a.GPU == b.GPU
	}); err != nil {
		return fmt.Errorf("store the remaining sharing of GPUs: %w", err)
	}
	if err := addTo(d.Options.PartitionsFile, partitionsFormat(), d.Options, kept.Partitions, func(a, b partitionData) bool {
		return a.place() == b.place()
	}); err != nil {
		return fmt.Errorf("store the remaining MIG instances: %w", err)
	}
	return nil
}

// addTo adds entries to the list in a file. An entry replaces the same one.
func addTo[T any](path string, kind store.Format[[]T], o Options, entries []T, same func(a, b T) bool) error {
	if len(entries) == 0 || path == "" {
		return nil
	}
	file, _, err := store.OpenFile(path, kind, 0, o.Writer) // the Preparer reports files that cannot be read
	if err != nil {
		return err
	}
	list, _ := file.Get()
	list = slices.Clone(list)
	for _, entry := range entries {
		list = append(slices.DeleteFunc(list, func(other T) bool { return same(entry, other) }), entry)
	}
	return file.Put(list)
}

// partitionsFormat describes how the MIG instances are stored that claims left while there was no driver.
func partitionsFormat() store.Format[[]partitionData] {
	return store.Format[[]partitionData]{Name: "gpufabric-partitions-left", Version: 1}
}

// removeLeft removes the MIG instances that claims left while there was no driver, unless a claim has one of them by now. An instance
// that cannot be removed is tried again at the next start.
func (k *Preparer) removeLeft(ctx context.Context) {
	if k.options.PartitionsFile == "" {
		return
	}
	file, unreadable, err := store.OpenFile(k.options.PartitionsFile, partitionsFormat(), 0, k.options.Writer)
	if err != nil {
		k.options.Events.Report("StateUnreadable", fmt.Sprintf("which MIG instances are left: %v", err))
		return
	}
	for _, u := range unreadable {
		k.options.Events.Report("StateUnreadable", fmt.Sprintf("which MIG instances are left: %s", u))
	}
	list, found := file.Get()
	if !found || len(list) == 0 {
		return
	}
	var errs []error
	left := slices.DeleteFunc(slices.Clone(list), func(made partitionData) bool {
		if k.owner(made.place()) != "" {
			return true // a claim's by now
		}
		g, p, err := k.partitionOf(made)
		if err != nil {
			return true // the GPU left the machine together with the instance
		}
		k.OwnMode(made.GPU)
		klog.FromContext(ctx).Info("Removing a MIG instance of a claim that ended without a driver", "gpu", g.UUID, "profile", p.Name, "start",
			made.Start)
		err = partition.Destroy(g, p, made.Start)
		errs = append(errs, err)
		return err == nil
	})
	if err := errors.Join(append(errs, file.Put(left))...); err != nil {
		k.options.Events.Report("MIGInstanceNotRemoved", err.Error())
	}
}
