package claims

import (
	"context"
	"fmt"
	"maps"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/edits"
	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/gpu/partition"
	"gpufabric.io/drivers/node/claimstate"
)

// Recover compares the existing MIG instances with the records, before the kubelet can call. An instance that a record names is the
// claim's. A GPU with other instances has an administrator's layout, and is offered as it is.
func (k *Preparer) Recover(ctx context.Context, records []claimstate.Record, aside []types.UID) error {
	k.aside = aside
	if err := k.options.Limits.keep(records, aside); err != nil {
		klog.FromContext(ctx).Error(err, "Could not remove the limits of claims that are gone")
	}
	if err := k.options.Limits.resume(ctx); err != nil {
		k.options.Events.Report("ShareNotCounted", err.Error())
	}
	held := map[string]bool{}
	for _, record := range records {
		k.recoveredClaim(record)
		for _, device := range record.Devices {
			held[device.Device] = true
			if !device.AdminAccess {
				k.recovered(device, record.UID)
			}
		}
		kept, err := decode(record)
		if err != nil {
			// The claim keeps its holds and its devices stay unknown: removing something by guess would be wrong.
			k.options.Events.Report("ClaimDataUnreadable", err.Error())
			continue
		}
		k.remember(record.UID, kept)
		for _, made := range kept.Partitions {
			k.own(made.place(), record.UID)
			if k.modes.had(made.GPU) {
				k.OwnMode(made.GPU)
			}
		}
		for _, held := range record.Devices {
			if d := k.Hardware().Pool.Device(held.Device); d != nil && d.Form != devices.MIG && !held.AdminAccess {
				k.note(d.GPU.UUID, record.UID, ordinary())
			}
		}
		for _, s := range kept.Sharing {
			k.note(s.GPU, record.UID, share{strategy: s.Strategy, interval: s.Interval})
		}
	}
	k.removeLeft(ctx)
	switch {
	case !k.options.RemoveUnknown:
	case len(aside) > 0:
		k.options.Events.Report("MIGInstancesKept", fmt.Sprintf("unknown MIG instances are kept in spite of --unknown-mig-instances=remove, "+
			"while the records of %d claims lie aside unread, since they may be theirs: look at the files that ClaimStateUnreadable named, "+
			"delete these when their pods are gone, and restart the driver's pod", len(aside)))
	default:
		k.removeUnknown(ctx, held)
	}
	k.LayOut()
	k.noteUnknown()
	return nil
}

// noteUnknown reports MIG instances that no claim made. They stay as they are.
func (k *Preparer) noteUnknown() {
	h := k.Hardware()
	for _, g := range h.Node.GPUs {
		if _, planned := h.Offer.ByDemand[g.UUID]; planned {
			continue
		}
		var unknown []string
		for _, i := range h.Offer.Static[g.UUID] {
			if p, ok := g.MIG.Profile(i.ProfileID); ok && !i.Held {
				unknown = append(unknown, fmt.Sprintf("%s at memory slice %d", p.Name, i.Start))
			}
		}
		if len(unknown) > 0 {
			k.options.Events.Note("MIGInstancesFound", fmt.Sprintf("%s has MIG instances that belong to no claim: %s; they are offered as they "+
				"are, and the GPU in no other form "+
				"(with --unknown-mig-instances=remove they would be removed at the plugin's start)", g.UUID, strings.Join(unknown, ", ")))
		}
	}
}

// LayOut reads the instances of every GPU and builds the pool from them. It is called again when an administrator's layout has
// changed.
func (k *Preparer) LayOut() {
	k.layingOut.Lock()
	defer k.layingOut.Unlock()
	k.layOut(*k.Hardware())
}

// SetProfiles changes the named ways in which GPUs are divided into shares. It does not read the GPUs' MIG instances again, since
// profiles do not change them.
func (k *Preparer) SetProfiles(profiles []devices.Profile) {
	k.layingOut.Lock()
	defer k.layingOut.Unlock()
	h := *k.Hardware()
	h.Offer.Profiles = profiles
	k.offer(&h)
}

// SetNode replaces the data of the node's GPUs and of their containers' edits. Claims in preparation finish with the earlier data.
func (k *Preparer) SetNode(node *inventory.Node, found func(context.Context) (*edits.Set, error)) {
	k.layingOut.Lock()
	defer k.layingOut.Unlock()
	h := *k.Hardware()
	h.Node, h.Edits = node, found
	k.layOut(h)
}

// ModesChanged reports whether somebody switched a GPU's MIG mode since the pool was built.
func (k *Preparer) ModesChanged() bool {
	h := k.Hardware()
	return !maps.Equal(k.modes.foreign(h.Node.GPUs), h.Offer.MIGMode)
}

func (k *Preparer) layOut(h Hardware) {
	h.Offer.Static, h.Offer.MIGMode = map[string][]devices.Instance{}, k.modes.foreign(h.Node.GPUs)
	for _, g := range h.Node.GPUs {
		standing, err := partition.List(g)
		if err != nil {
			k.options.Events.Report("MIGUnreadable", err.Error())
			continue
		}
		if static := k.static(g, standing, h.Offer.NoMIG); static != nil {
			h.Offer.Static[g.UUID] = static
		}
	}
	k.offer(&h)
}

// offer rebuilds the pool and replaces the hardware.
func (k *Preparer) offer(h *Hardware) {
	h.Offer.Held = k.holdings()
	k.use.Set(h.Offer.Held)
	h.Pool = devices.NewPool(h.Node, h.Offer)
	// The pool is rebuilt for every change; a problem of it is reported only once.
	problems := fmt.Sprint(h.Pool.Problems)
	for _, problem := range h.Pool.Problems {
		if problems != k.reported {
			k.options.Events.Report("GPUFormNotOffered", problem.Error())
		}
	}
	k.reported = problems
	for name, d := range k.appeared(h.Pool) {
		// Their claims have these devices by name only. They must hold the devices' parts before another claim can get them.
		if err := k.options.Ledger.Extend(nameKey(k.options.Pool, name), HoldsOf(d)...); err != nil {
			k.options.Events.Report("DeviceHeldTwice", err.Error())
		}
	}
	k.hardware.Set(h)
}

// recoveredClaim records the name of a claim that has devices.
func (k *Preparer) recoveredClaim(record claimstate.Record) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.names[record.UID] = types.NamespacedName{Namespace: record.Namespace, Name: record.Name}
}

// recovered records that a claim has a device, which may not have been seen yet.
func (k *Preparer) recovered(held claimstate.Device, claim types.UID) {
	device, shared := held.Device, held.ShareID != ""
	seen := k.Hardware().Pool.Device(device) != nil
	k.mu.Lock()
	defer k.mu.Unlock()
	k.held[claim] = append(k.held[claim], devices.HeldDevice{Device: device, Shared: shared, Counted: devices.Counts(held.ConsumedCapacity),
		Consumed: held.ConsumedCapacity})
	if seen {
		return
	}
	if k.unseen[device] == nil {
		k.unseen[device] = map[types.UID]bool{}
	}
	k.unseen[device][claim] = shared
}

// appeared returns the devices that pool is the first to show, by the names under which claims have them. Their claims share the
// GPU in the default way unless they request another.
func (k *Preparer) appeared(pool *devices.Pool) map[string]*devices.Device {
	k.mu.Lock()
	defer k.mu.Unlock()
	appeared := map[string]*devices.Device{}
	for name, claims := range k.unseen {
		d := pool.Device(name)
		if d == nil {
			continue
		}
		appeared[name] = d
		delete(k.unseen, name)
		for claim, shared := range claims {
			appeared[name] = d.As(shared, nil)
			if _, recorded := k.sharing[d.GPU.UUID][claim]; !recorded && d.Form != devices.MIG {
				k.noteLocked(d.GPU.UUID, claim, ordinary())
			}
		}
	}
	return appeared
}

// static returns the instances of a GPU on which at least one instance is an administrator's, else nil. Where GPUs are not divided
// on demand (any more), earlier claims' instances count as an administrator's while they exist: else their GPU
// would be offered whole.
func (k *Preparer) static(g *inventory.GPU, standing []partition.Instance, noMIG bool) []devices.Instance {
	var out []devices.Instance
	foreign := noMIG && len(standing) > 0
	for _, i := range standing {
		held := k.owner(place{g.UUID, i.Profile, i.Start}) != ""
		foreign = foreign || !held
		if !held && !i.Whole() {
			k.options.Events.Report("MIGDeviceNotOffered", fmt.Sprintf("%s: MIG instance %d has no compute instance, or several; only instances "+
				"with one that fills them are offered", g.UUID, i.ID))
			continue
		}
		out = append(out, devices.Instance{ProfileID: i.Profile, Start: i.Start, UUID: i.UUID, Held: held})
	}
	if !foreign {
		return nil
	}
	if out == nil {
		out = []devices.Instance{}
	}
	return out
}

// removeUnknown removes the instances that belong to no claim, as the administrator configured. These are instances that no claim
// made and whose device no name in held matches.
func (k *Preparer) removeUnknown(ctx context.Context, held map[string]bool) {
	h := k.Hardware()
	for _, g := range h.Node.GPUs {
		if _, planned := h.Offer.ByDemand[g.UUID]; planned {
			continue // its layout decides
		}
		standing, err := partition.List(g)
		if err != nil {
			k.options.Events.Report("MIGUnreadable", err.Error())
			continue
		}
		for _, i := range standing {
			p, known := g.MIG.Profile(i.Profile)
			if !known || k.owner(place{g.UUID, i.Profile, i.Start}) != "" || held[devices.MIGName(g, p, i.Start)] {
				continue
			}
			klog.FromContext(ctx).Info("Removing a MIG instance that belongs to no claim", "gpu", g.UUID, "profile", p.Name, "start", i.Start)
			if err := partition.Destroy(g, p, i.Start); err != nil {
				k.options.Events.Report("MIGInstanceNotRemoved", err.Error())
				continue
			}
			k.OwnMode(g.UUID) // with leftovers: remove the administrator wants the GPU without them
		}
	}
}
