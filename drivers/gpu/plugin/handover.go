package plugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/gpu/claims"
	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/handover"
	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/node/ledger"
)

// retryHold is how long a GPU that claims still hold is left before it is tried again; the ledger tells nobody of a release but who waits
// in it.
const retryHold = time.Second

// given knows which GPUs device plugins asked for. A GPU is theirs in this order: its taint is published, no claim holds any form of it,
// the ledger holds it for them, and only then are they told.
type given struct {
	directory handover.Directory

	mu     sync.Mutex
	owners map[string]string // by UUID
	held   map[string]bool   // by UUID: the ledger holds it for its owner
	// waiting is what was last told of GPUs in use that device plugins no longer installed have.
	waiting string
	// seen are the requests whose taints were seen published, and seenOn the pool that they were seen on: until either changes they need not
	// be looked for whenever a GPU is tried again.
	seen   map[string]string
	seenOn *devices.Pool
}

// read takes over the requests that stand, and says whether they changed.
func (g *given) read() (bool, error) {
	if g.directory == "" {
		return false, nil
	}
	owners, err := g.directory.Requests()
	if err != nil {
		return false, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	changed := !maps.Equal(owners, g.owners)
	g.owners = owners
	return changed, nil
}

func (g *given) snapshot() map[string]string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.owners)
}

// taints adds the taint of every GPU that was asked for to all its forms.
func (g *given) taints(into map[string][]resourceapi.DeviceTaint, all []*devices.Device) map[string][]resourceapi.DeviceTaint {
	owners := g.snapshot()
	for _, d := range all {
		if owner, ok := owners[d.GPU.UUID]; ok {
			into[d.Name()] = append(into[d.Name()], resourceapi.DeviceTaint{Key: handover.Taint, Value: owner,
				Effect: resourceapi.DeviceTaintEffectNoSchedule})
		}
	}
	return into
}

// handOver keeps the handover going until ctx ends.
func (p *plugin) handOver(ctx context.Context) error {
	if p.given.directory == "" {
		return nil
	}
	changes, err := p.given.directory.Watch(ctx, p.options.Files)
	if err != nil {
		return err
	}
	for {
		inUse, err := p.takeBack(ctx)
		if err != nil {
			return err
		}
		if err := p.askForPlugin(); err != nil {
			return err
		}
		changed, err := p.given.read()
		if err != nil {
			return err
		}
		if changed {
			p.changed()
		}
		again, err := p.settleHandover(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			klog.FromContext(ctx).Error(err, "GPUs not handed to a device plugin yet")
			again = true
		}
		var timer <-chan time.Time
		if again || inUse {
			timer = time.After(retryHold)
		}
		select {
		case <-changes:
		case <-timer:
		case <-ctx.Done():
			return nil
		}
	}
}

// takeBack withdraws requests of device plugins for GPUs that they may have no more, GPU by GPU as nothing runs on it. inUse says that
// something runs on one of them.
func (p *plugin) takeBack(ctx context.Context) (inUse bool, err error) {
	standing, err := p.given.directory.Requests()
	if err != nil {
		return false, err
	}
	kept := map[string][]string{}  // by owner
	withdrawn := map[string]bool{} // owners
	var waiting strings.Builder
	for _, uuid := range slices.Sorted(maps.Keys(standing)) {
		owner := standing[uuid]
		switch {
		case p.mayHave(owner, uuid):
			kept[owner] = append(kept[owner], uuid)
		case p.runs(uuid):
			kept[owner] = append(kept[owner], uuid)
			fmt.Fprintf(&waiting, "%s has %s, on which processes run; ", owner, uuid)
		default:
			klog.FromContext(ctx).Info("A GPU comes back from a device plugin that may have it no more", "gpu", uuid, "plugin", owner)
			withdrawn[owner] = true
		}
	}
	for _, owner := range slices.Sorted(maps.Keys(withdrawn)) {
		if err := p.given.directory.Ask(owner, kept[owner]...); err != nil {
			return false, err
		}
	}
	if now := waiting.String(); now != p.given.waiting {
		p.given.waiting = now
		if now != "" {
			p.report("HandoverStillInUse", now+"no device plugin is to have them any more: DRA gives these GPUs to nobody until the processes end")
		}
	}
	return waiting.Len() > 0, nil
}

// runs says whether a process runs on a GPU, or cannot be known not to.
func (p *plugin) runs(uuid string) bool {
	g := p.kind.Hardware().Node.ByUUID(uuid)
	if g == nil {
		return false // it is not on this node any more
	}
	processes, ret := g.Handle.GetComputeRunningProcesses()
	return ret != nvml.ERROR_NOT_SUPPORTED && (ret != nvml.SUCCESS || len(processes) > 0)
}

// settleHandover confirms every GPU that may be confirmed and takes back what was given up. again says that some GPU has to wait.
func (p *plugin) settleHandover(ctx context.Context) (again bool, err error) {
	owners := p.given.snapshot()
	for uuid := range p.given.held {
		if _, ok := owners[uuid]; !ok {
			p.dra.Ledger().Release(holderID(uuid))
			delete(p.given.held, uuid)
		}
	}
	if pool := p.kind.Hardware().Pool; pool != p.given.seenOn || !maps.Equal(owners, p.given.seen) {
		if len(owners) > 0 {
			asked := func(d *devices.Device) bool { return owners[d.GPU.UUID] != "" }
			if err := p.awaitTaints(ctx, handover.Taint, asked); err != nil {
				return true, err
			}
		}
		p.given.seen, p.given.seenOn = owners, pool
	}
	var ready []string
	for _, uuid := range slices.Sorted(maps.Keys(owners)) {
		g := p.kind.Hardware().Node.ByUUID(uuid)
		if g == nil {
			p.report("HandoverUnknownGPU", fmt.Sprintf("%s asks for %s, which is not on this node: it is lost, or was taken out; where it is "+
				"gone for good, "+
				"remove %s.asked in %s", owners[uuid], uuid, uuid, p.given.directory))
			continue
		}
		if err := p.take(g, owners[uuid]); err != nil {
			var conflict *ledger.ConflictError
			if !errors.As(err, &conflict) {
				return true, err
			}
			klog.FromContext(ctx).Info("A device plugin waits for a GPU", "gpu", uuid, "plugin", owners[uuid], "reason", err.Error())
			again = true
			continue
		}
		p.given.held[uuid] = true
		ready = append(ready, uuid)
	}
	return again, p.given.directory.Confirm(ready...)
}

func holderID(uuid string) string { return "handover/" + uuid }

// take holds every form of a GPU for a device plugin, or says which claim has it.
func (p *plugin) take(g *inventory.GPU, owner string) error {
	all := &devices.Device{Form: devices.Whole, GPU: g}
	return p.dra.Ledger().TryAcquire(ledger.Owner{ID: holderID(g.UUID), Name: "the device plugin " + owner}, claims.HoldsOf(all)...)
}

// awaitTaints waits until the API server has all devices of the pool that are wanted with a taint.
func (p *plugin) awaitTaints(ctx context.Context, taint string, wanted func(*devices.Device) bool) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	own := metav1.ListOptions{FieldSelector: resourceapi.ResourceSliceSelectorNodeName + "=" + p.options.NodeName + "," +
		resourceapi.ResourceSliceSelectorDriver + "=" + devices.Driver}
	slicesOf := p.client.ResourceV1().ResourceSlices()
	for {
		list, err := slicesOf.List(ctx, own)
		if err != nil {
			return fmt.Errorf("looking whether the taints are published: %w", err)
		}
		if p.tainted(list.Items, taint, wanted) {
			return nil
		}
		own.ResourceVersion = list.ResourceVersion
		w, err := slicesOf.Watch(ctx, own)
		own.ResourceVersion = ""
		if err != nil {
			return fmt.Errorf("watching for the taints to be published: %w", err)
		}
		select {
		case <-w.ResultChan():
		case <-ctx.Done():
			w.Stop()
			return fmt.Errorf("waiting for the taints to be published: %w", context.Cause(ctx))
		}
		w.Stop()
	}
}

// tainted says whether the slices are the pool whole, with a taint on all devices that are wanted.
func (p *plugin) tainted(published []resourceapi.ResourceSlice, taint string, wanted func(*devices.Device) bool) bool {
	seen := map[string]bool{}
	for _, s := range published {
		for _, d := range s.Spec.Devices {
			if slices.ContainsFunc(d.Taints, func(t resourceapi.DeviceTaint) bool { return t.Key == taint }) {
				seen[d.Name] = true
			}
		}
	}
	for _, d := range p.kind.Hardware().Pool.Devices() {
		if wanted(d) && !seen[d.Name()] {
			return false
		}
	}
	return true
}
