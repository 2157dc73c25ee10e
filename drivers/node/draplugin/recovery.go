package draplugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/node/claimstate"
	"gpufabric.io/drivers/node/ledger"
)

// recoverLocal makes files, CDI specs and hardware consistent before the kubelet can call. It does not need an API server.
func (p *Plugin) recoverLocal(ctx context.Context) error {
	logger := klog.FromContext(ctx)
	records, aside := p.state.List(), p.state.SetAside()
	specs, err := p.cdi.List()
	if err != nil {
		return err
	}
	for _, uid := range specs {
		if _, ok := p.state.Get(uid); ok {
			continue
		}
		if slices.Contains(aside, uid) {
			continue // its pod may run and start containers again; the spec goes when the claim is unprepared
		}
		logger.Info("Removing a CDI spec without a claim", "uid", uid)
		if err := p.cdi.Remove(uid); err != nil {
			return err
		}
	}
	kept := map[types.UID]bool{}
	for _, record := range records {
		kept[record.UID] = true
	}
	for _, uid := range aside {
		kept[uid] = true
	}
	if err := p.metadata.Keep(kept); err != nil {
		return err
	}
	if recoverer, ok := p.config.Preparer.(Recoverer); ok {
		if err := compare(ctx, recoverer, records, aside); err != nil {
			return fmt.Errorf("compare claims with hardware: %w", err)
		}
	}
	// This comes after the comparison: the devices that a device excludes may only be known once it was seen.
	for _, record := range records {
		p.restoreHolds(ctx, record)
	}
	return nil
}

// compare lets a kind compare records with hardware. A panic there ends the start with an error. A plugin that did not finish the
// comparison cannot match claims with the state of the hardware, and would give their devices to others.
func compare(ctx context.Context, recoverer Recoverer, records []claimstate.Record, aside []types.UID) (err error) {
	defer caught(ctx, &err)
	return recoverer.Recover(ctx, records, aside)
}

// restoreHolds gives a recorded claim its devices again. Two records that hold one device should not exist. If they do, the first
// keeps it and the second is reported; the second is prepared again once the device is free.
func (p *Plugin) restoreHolds(ctx context.Context, record claimstate.Record) {
	owner := ownerOf(record.UID, record.Namespace, record.Name)
	for _, device := range record.Devices {
		if device.AdminAccess {
			continue
		}
		allocated := AllocatedDevice{DeviceRequestAllocationResult: resourceapi.DeviceRequestAllocationResult{
			Driver: p.config.Driver, Pool: device.Pool, Device: device.Device, ConsumedCapacity: device.ConsumedCapacity,
		}}
		if device.ShareID != "" {
			allocated.ShareID = &device.ShareID
		}
		if err := p.ledger.TryAcquire(owner, p.restoredHolds(ctx, allocated)...); err != nil {
			klog.FromContext(ctx).Error(err, "Two recorded claims have the same device", "claim", record.Namespace+"/"+record.Name)
			p.report.node("DeviceHeldTwice", fmt.Sprintf("claim %s/%s was recorded as holding %s, but %v", record.Namespace, record.Name,
				device.Device, err))
		}
	}
}

// restoredHolds are the holds of a recorded device. It returns the device's name where the kind panics over it.
func (p *Plugin) restoredHolds(ctx context.Context, device AllocatedDevice) []ledger.Reservation {
	holds, err := func() (holds []ledger.Reservation, err error) {
		defer caught(ctx, &err)
		return p.holdsOfDevice(device), nil
	}()
	if err != nil {
		return p.holdsOfName(device)
	}
	return holds
}

// recoverFromAPI makes the records of the last run consistent with the API. It unprepares a claim that is gone or has other devices
// by now. It prepares a claim again that still has its devices but does not match its record (another boot, no CDI spec, cut
// short). It retries until it has checked every record.
func (p *Plugin) recoverFromAPI(ctx context.Context, todo []claimstate.Record) {
	logger := klog.FromContext(ctx)
	backoff := wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Jitter: 0.2, Steps: 8, Cap: time.Minute}
	for len(todo) > 0 && ctx.Err() == nil {
		var mu sync.Mutex
		var failed []claimstate.Record
		var wg sync.WaitGroup
		for _, record := range todo {
			wg.Go(func() {
				if err := p.recoverClaim(ctx, record); err != nil {
					logger.Error(err, "Claim not recovered yet", "claim", record.Namespace+"/"+record.Name)
					mu.Lock()
					defer mu.Unlock()
					failed = append(failed, record)
				}
			})
		}
		wg.Wait()
		todo = failed
		if len(todo) == 0 {
			return
		}
		// There is no event for the return of an unreachable API server, so wait.
		select {
		case <-time.After(backoff.Step()):
		case <-ctx.Done():
		}
	}
}

// keepSpecs prepares claims again whose CDI spec somebody removed, until ctx ends: without it no container of theirs starts again. changed
// reports changes of the CDI directory.
func (p *Plugin) keepSpecs(ctx context.Context, changed <-chan struct{}) {
	for {
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
		specs, err := p.cdi.List()
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			klog.FromContext(ctx).Error(err, "Could not determine whether the claims' CDI specs are there")
			continue
		}
		var lost []claimstate.Record
		for _, record := range p.state.List() {
			if !slices.Contains(specs, record.UID) && p.hasLostSpec(ctx, record.UID) {
				lost = append(lost, record)
			}
		}
		if len(lost) > 0 {
			klog.FromContext(ctx).Info("CDI specs of claims in use were removed: preparing the claims again", "claims", len(lost))
			p.recoverFromAPI(ctx, lost)
		}
	}
}

// hasLostSpec reports whether a prepared claim lacks its CDI spec. It waits for a call that is just writing or removing it.
func (p *Plugin) hasLostSpec(ctx context.Context, uid types.UID) bool {
	unlock, err := p.locks.Lock(ctx, string(uid))
	if err != nil {
		return false
	}
	defer unlock()
	record, recorded := p.state.Get(uid)
	return recorded && record.Phase == claimstate.Prepared && p.releaseOf(uid) == nil && !p.cdi.Has(uid) &&
		slices.ContainsFunc(record.Devices, func(d claimstate.Device) bool { return len(d.CDIDeviceIDs) > 0 })
}

// Renew prepares the claims again that the kind calls outdated. It retries until it has checked each, or ctx ends.
func (p *Plugin) Renew(ctx context.Context) {
	renewer, ok := p.config.Preparer.(Renewer)
	if !ok {
		return
	}
	outdated := slices.DeleteFunc(p.state.List(), func(r claimstate.Record) bool {
		return r.Phase != claimstate.Prepared ||
			!renewer.Outdated(r)
	})
	p.recoverFromAPI(ctx, outdated)
}

func (p *Plugin) recoverClaim(ctx context.Context, record claimstate.Record) (err error) {
	defer caught(ctx, &err)
	// The kubelet may have been faster.
	record, ok := p.state.Get(record.UID)
	if !ok {
		return nil
	}
	claim, err := p.config.Client.ResourceV1().ResourceClaims(record.Namespace).Get(ctx, record.Name, metav1.GetOptions{})
	switch {
	case err != nil && !apierrors.IsNotFound(err):
		return fmt.Errorf("look up claim %s/%s: %w", record.Namespace, record.Name, err)
	case err != nil || claim.UID != record.UID || !p.allocatedAs(claim, record):
		// The kubelet prepares a claim with another allocation.
		klog.FromContext(ctx).Info("Releasing a claim that is gone or has other devices", "claim", record.Namespace+"/"+record.Name,
			"uid", record.UID)
		err := p.release(ctx, record.UID, cause{gone: true}, 0)
		var used *stillUsed
		if errors.As(err, &used) {
			return nil // the plugin follows its containers from now on
		}
		return err
	case p.current(record):
		return nil
	case record.Phase == claimstate.Preparing:
		// Its pod is still waiting: the kubelet will prepare it again, or unprepare it.
		return nil
	}
	klog.FromContext(ctx).Info("Preparing a claim again", "claim", klog.KObj(claim), "boot", record.BootID, "currentBoot", p.bootID)
	limited, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return p.prepare(limited, claim, recovering).Err
}
