package draplugin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/node/cdi"
	"gpufabric.io/drivers/node/claimstate"
	"gpufabric.io/drivers/node/ledger"
	"gpufabric.io/drivers/node/options"
)

const (
	// answerMargin is the part of the kubelet's call time-out (45 s) that is kept to report a failure on the claim and to answer.
	answerMargin = 3 * time.Second
	// holdPatience is how long another claim may have a device before the wait is worth an Event. An unprepare that is merely late
	// takes less.
	holdPatience = 2 * time.Second
	// endless is longer than any call of the kubelet.
	endless = time.Hour
)

// The operations on a claim, as metrics name them.
const (
	preparing   = "prepare" // called by the kubelet
	recovering  = "recover" // prepares a claim again because its record is outdated
	unpreparing = "unprepare"
)

// errUnprepared is for a claim that was to be prepared again, but that the kubelet unprepared first. The kubelet would not unprepare it a
// second time.
var errUnprepared = errors.New("the claim was unprepared meanwhile")

// PrepareResourceClaims implements kubeletplugin.DRAPlugin. Claims are prepared side by side; each has its own result.
func (p *Plugin) PrepareResourceClaims(ctx context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult,
	error) {
	leave, err := p.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline.Add(-answerMargin))
		defer cancel()
	}
	results := make(map[types.UID]kubeletplugin.PrepareResult, len(claims))
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, claim := range claims {
		wg.Go(func() {
			result := p.prepare(ctx, claim, preparing, claims...)
			mu.Lock()
			defer mu.Unlock()
			results[claim.UID] = result
		})
	}
	wg.Wait()
	return results, nil
}

// prepare prepares one claim and reports the result. together are the claims of the same call.
func (p *Plugin) prepare(ctx context.Context, claim *resourceapi.ResourceClaim, operation string,
	together ...*resourceapi.ResourceClaim) kubeletplugin.PrepareResult {
	start := time.Now()
	logger := klog.FromContext(ctx).WithValues("claim", klog.KObj(claim), "uid", claim.UID)
	ctx = klog.NewContext(ctx, logger)
	record, err := p.prepareLocked(ctx, claim, operation, together)
	if errors.Is(err, errUnprepared) {
		return kubeletplugin.PrepareResult{}
	}
	p.config.Metrics.Observe(operation, "total", start)
	p.config.Metrics.Claims.Set(float64(p.state.Len()))
	if err != nil {
		err = fmt.Errorf("prepare claim %s/%s: %w", claim.Namespace, claim.Name, err)
		logger.Error(err, "Claim not prepared", "reason", reasonOf(err))
		p.config.Metrics.Errors.WithLabelValues(operation, reasonOf(err)).Inc()
		p.report.failed(ctx, claim, err)
		return kubeletplugin.PrepareResult{Err: err}
	}
	p.report.succeeded(ctx, claim)
	logger.V(1).Info("Claim prepared", "devices", len(record.Devices), "seconds", time.Since(start).Seconds())
	return kubeletplugin.PrepareResult{Devices: deviceResults(record)}
}

func (p *Plugin) prepareLocked(ctx context.Context, apiClaim *resourceapi.ResourceClaim, operation string,
	together []*resourceapi.ResourceClaim) (record claimstate.Record, err error) {
	defer caught(ctx, &err)
	step := time.Now()
	unlock, err := p.locks.Lock(ctx, string(apiClaim.UID))
	if err != nil {
		return claimstate.Record{}, err
	}
	defer unlock()
	last, recorded := p.state.Get(apiClaim.UID)
	if recorded && !p.allocatedAs(apiClaim, last) {
		// The claim outlived its pod. It got other devices for the next pod before the kubelet unprepared these.
		klog.FromContext(ctx).Info("Unpreparing the devices of an earlier allocation", "devices", len(last.Devices))
		if err := p.freeWithin(ctx, last, cause{gone: true}, endless); err != nil {
			return claimstate.Record{}, fmt.Errorf("release the devices of an earlier allocation: %w", err)
		}
		recorded = false
	}
	if recorded && p.current(last) {
		return p.keep(ctx, apiClaim, last)
	}
	if operation == recovering && (!recorded || p.releaseOf(apiClaim.UID) != nil) {
		return claimstate.Record{}, errUnprepared
	}
	claim, err := newClaim(apiClaim, p.config.Driver)
	if err != nil {
		return claimstate.Record{}, err
	}
	claim.Beside = func() []string { return p.beside(apiClaim, together) }
	record = p.newRecord(claim)
	if recorded {
		record.Pods = last.Pods
		p.endRelease(record.UID)
	}
	record.Pods, _ = p.withPods(ctx, apiClaim, record)
	progress := &progress{ctx: ctx, plugin: p, claim: apiClaim, record: record, waiter: waiter{metrics: p.config.Metrics}}
	defer progress.waiter.end()
	if err := p.hold(ctx, claim, progress); err != nil {
		return claimstate.Record{}, err
	}
	defer func() {
		// Without a record nothing was done that must be undone, so the holds can go. With a record, unprepare will come and needs them.
		if _, recorded := p.state.Get(claim.UID); !recorded {
			p.ledger.Release(string(claim.UID))
		}
	}()
	step = p.config.Metrics.Observe(operation, "hold", step)
	prepared, err := p.config.Preparer.Prepare(ctx, claim, progress)
	if err == nil && prepared.Edits != nil && len(prepared.Edits) != len(claim.Devices) {
		err = fmt.Errorf("the driver made container edits for %d of %d devices", len(prepared.Edits), len(claim.Devices))
	}
	if err != nil {
		return claimstate.Record{}, err
	}
	step = p.config.Metrics.Observe(operation, "device", step)
	if err = p.describe(claim, prepared); err == nil {
		specDevices := p.nameDevices(claim, prepared, &record)
		err = p.write(ctx, record, prepared.Data, specDevices, operation, step)
	}
	if err != nil {
		if _, recorded := p.state.Get(claim.UID); !recorded {
			// The kind counts the claim as prepared. Without a record it would never be unprepared.
			err = errors.Join(err, p.unprepareDevices(ctx, record), p.metadata.Remove(claim.UID))
		}
		return claimstate.Record{}, err
	}
	for _, warning := range prepared.Warnings {
		p.report.events(apiClaim, corev1.EventTypeWarning, warning.Reason, warning.Message)
	}
	for _, note := range prepared.Notes {
		p.report.events(apiClaim, corev1.EventTypeNormal, note.Reason, note.Message)
	}
	record, _ = p.state.Get(claim.UID)
	return record, nil
}

// caught makes an error of a panic. A claim is input from its author: a panic that it causes must not affect other claims.
func caught(ctx context.Context, err *error) {
	if r := recover(); r != nil {
		klog.FromContext(ctx).Error(nil, "Panic while handling a claim", "panic", r, "stack", string(debug.Stack()))
		*err = Refuse("InternalError", "the driver failed (%v): this is a mistake in the driver, its log has the stack", r)
	}
}

// write writes a claim's record and its CDI spec, concurrently since each waits for the disk. A crash may leave one without the
// other. The next start removes a spec without a record, and prepares a record without a spec again.
func (p *Plugin) write(ctx context.Context, record claimstate.Record, data any, devices []cdi.Device, operation string,
	began time.Time) error {
	var stateErr, specErr error
	var both sync.WaitGroup
	both.Go(func() {
		defer caught(ctx, &specErr)
		specErr = p.cdi.Write(record.UID, devices)
		p.config.Metrics.Observe(operation, "cdi", began)
	})
	func() {
		defer caught(ctx, &stateErr)
		stateErr = p.put(record, claimstate.Prepared, data)
		p.config.Metrics.Observe(operation, "state", began)
	}()
	both.Wait()
	if stateErr != nil && specErr == nil {
		// Without a record it would never be removed.
		specErr = p.cdi.Remove(record.UID)
	}
	switch {
	case stateErr == nil:
		return specErr
	case specErr == nil:
		return stateErr
	default:
		return fmt.Errorf("%w; %w", stateErr, specErr)
	}
}

// current reports whether a record matches the node's present state: prepared, in this boot, with its CDI spec.
func (p *Plugin) current(record claimstate.Record) bool {
	if record.Phase != claimstate.Prepared || !options.SameBoot(record.BootID, p.bootID) {
		return false
	}
	if renewer, ok := p.config.Preparer.(Renewer); ok && renewer.Outdated(record) {
		return false
	}
	for _, device := range record.Devices {
		if len(device.CDIDeviceIDs) > 0 {
			return p.cdi.Has(record.UID)
		}
	}
	return true
}

func (p *Plugin) newRecord(claim *Claim) claimstate.Record {
	record := claimstate.Record{UID: claim.UID, Namespace: claim.Namespace, Name: claim.Name, BootID: p.bootID}
	for _, device := range claim.Devices {
		entry := claimstate.Device{Requests: []string{device.Request}, Pool: device.Pool, Device: device.Device, AdminAccess: device.Admin(),
			ConsumedCapacity: device.ConsumedCapacity}
		if device.ShareID != nil {
			entry.ShareID = *device.ShareID
		}
		record.Devices = append(record.Devices, entry)
	}
	return record
}

// nameDevices sets the CDI name of every device that has edits, both in the record and in the spec.
func (p *Plugin) nameDevices(claim *Claim, prepared *Prepared, record *claimstate.Record) []cdi.Device {
	var devices []cdi.Device
	record.Devices = slices.Clone(record.Devices) // they may already be in the state, where others read them
	used := map[string]bool{}
	for _, device := range claim.Devices {
		used[device.CDIName()] = used[device.CDIName()] || !device.Admin()
	}
	for i, edits := range prepared.Edits {
		if isEmpty(edits) {
			continue
		}
		name := claim.Devices[i].CDIName()
		if claim.Devices[i].Admin() { // the claim may have the device, too, or observe it by several requests
			for n := 2; used[name]; n++ {
				name = fmt.Sprintf("%s-%d", claim.Devices[i].CDIName(), n)
			}
			used[name] = true
		}
		record.Devices[i].CDIDeviceIDs = []string{p.cdi.ID(claim.UID, name)}
		devices = append(devices, cdi.Device{Name: name, Edits: edits})
	}
	return devices
}

func (p *Plugin) put(record claimstate.Record, phase claimstate.Phase, data any) error {
	record.Phase = phase
	if data != nil {
		raw, err := json.Marshal(data)
		if err != nil {
			return fmt.Errorf("encode the driver's data: %w", err)
		}
		record.Data = raw
	}
	return p.state.Put(record)
}

// hold takes the claim's devices. It waits for their last holders until ctx ends. It releases a holder whose claim is gone from the
// API, since the kubelet may never unprepare it, once no container can use the devices.
func (p *Plugin) hold(ctx context.Context, claim *Claim, progress Progress) error {
	owner, holds := ownerOf(claim.UID, claim.Namespace, claim.Name), p.holdsOf(claim)
	err := p.ledger.TryAcquire(owner, holds...)
	var conflict *ledger.ConflictError
	if !errors.As(err, &conflict) {
		return err
	}
	for _, holder := range conflict.Holders() {
		p.releaseIfGone(ctx, types.UID(holder.ID))
	}
	late, cancel := context.WithTimeout(ctx, holdPatience)
	defer cancel()
	err = p.ledger.Acquire(late, owner, holds...)
	if err == nil || ctx.Err() != nil {
		return p.inUse(err)
	}
	var held *ledger.ConflictError
	if errors.As(err, &held) {
		klog.FromContext(ctx).Info("Waiting for a device", "claim", klog.KObj(claim), "held", held.Detail(), "holders", held.Holders())
	}
	progress.Waiting("DeviceInUse", fmt.Sprintf("waiting for a device: %v", p.inUse(err)))
	return p.inUse(p.ledger.Acquire(ctx, owner, holds...))
}

func ownerOf(uid types.UID, namespace, name string) ledger.Owner {
	return ledger.Owner{ID: string(uid), Name: fmt.Sprintf("claim %s/%s", namespace, name), Namespace: namespace}
}

func (p *Plugin) holdsOf(claim *Claim) []ledger.Reservation {
	var holds []ledger.Reservation
	for _, device := range claim.Devices {
		if !device.Admin() {
			holds = append(holds, p.holdsOfDevice(device)...)
		}
	}
	return holds
}

func (p *Plugin) holdsOfDevice(device AllocatedDevice) []ledger.Reservation {
	if holder, ok := p.config.Preparer.(Holder); ok {
		return holder.Holds(device)
	}
	return p.holdsOfName(device)
}

// holdsOfName returns the hold on a device by its name. The pool is the node's own, whatever its name was when the claim was allocated: a
// node that was renamed has the same devices, and containers of its former name may still run.
func (p *Plugin) holdsOfName(device AllocatedDevice) []ledger.Reservation {
	return []ledger.Reservation{{Key: cmp.Or(p.config.Pool, device.Pool) + "/" + device.Device, Shared: device.ShareID != nil}}
}

// releaseIfGone unprepares a claim that is no longer allocated in the API.
func (p *Plugin) releaseIfGone(ctx context.Context, uid types.UID) {
	record, ok := p.state.Get(uid)
	if !ok {
		return
	}
	gone, err := p.gone(ctx, record)
	if err != nil || !gone {
		return
	}
	klog.FromContext(ctx).Info("Releasing a device whose claim is gone", "holder", record.Namespace+"/"+record.Name, "holderUID", uid)
	if err := p.release(ctx, uid, cause{gone: true}, 0); err != nil {
		klog.FromContext(ctx).Error(err, "The device of a claim that is gone is not free", "holderUID", uid)
	}
}

// gone reports whether a record's claim was deleted or replaced, or no longer has the devices.
func (p *Plugin) gone(ctx context.Context, record claimstate.Record) (bool, error) {
	claim, err := p.config.Client.ResourceV1().ResourceClaims(record.Namespace).Get(ctx, record.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("look up claim %s/%s: %w", record.Namespace, record.Name, err)
	}
	return claim.UID != record.UID || !p.allocatedAs(claim, record), nil
}

// beside returns the names of the devices that the pods of a claim have by other claims, of those that are prepared together with it or
// are recorded.
func (p *Plugin) beside(claim *resourceapi.ResourceClaim, together []*resourceapi.ResourceClaim) []string {
	pods := map[types.UID]bool{}
	for _, consumer := range claim.Status.ReservedFor {
		pods[consumer.UID] = true
	}
	var names []string
	for _, other := range together {
		if other.UID == claim.UID || !slices.ContainsFunc(other.Status.ReservedFor, func(c resourceapi.ResourceClaimConsumerReference) bool {
			return pods[c.UID]
		}) {
			continue
		}
		if found, err := newClaim(other, p.config.Driver); err == nil {
			for _, device := range found.Devices {
				names = append(names, device.Device)
			}
		}
	}
	for _, record := range p.state.List() {
		if record.UID == claim.UID || !slices.ContainsFunc(record.Pods, func(pod claimstate.Pod) bool { return pods[pod.UID] }) {
			continue
		}
		for _, device := range record.Devices {
			names = append(names, device.Device)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// allocatedAs reports whether a claim has exactly the devices of its record, of this driver. A claim that outlives its pods may have
// other devices, here or on another node.
func (p *Plugin) allocatedAs(claim *resourceapi.ResourceClaim, record claimstate.Record) bool {
	now, err := newClaim(claim, p.config.Driver)
	if err != nil {
		return false
	}
	return slices.EqualFunc(p.newRecord(now).Devices, record.Devices, func(a, b claimstate.Device) bool {
		return a.Pool == b.Pool && a.Device == b.Device && a.ShareID == b.ShareID
	})
}

func deviceResults(record claimstate.Record) []kubeletplugin.Device {
	devices := make([]kubeletplugin.Device, 0, len(record.Devices))
	for _, device := range record.Devices {
		result := kubeletplugin.Device{
			Requests: device.Requests, PoolName: device.Pool, DeviceName: device.Device, CDIDeviceIDs: device.CDIDeviceIDs,
		}
		if device.ShareID != "" {
			result.ShareID = &device.ShareID
		}
		devices = append(devices, result)
	}
	return devices
}
