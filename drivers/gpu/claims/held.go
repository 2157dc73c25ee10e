package claims

import (
	"maps"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/node/capability"
	"gpufabric.io/drivers/node/draplugin"
)

// hold records the devices of a claim. It publishes a device again that is not published, because its form was withdrawn after
// the allocation: the scheduler must see why the rest of its GPU is unavailable. first: the claim was not recorded before.
func (k *Preparer) hold(claim *draplugin.Claim) (first bool) {
	var held []devices.HeldDevice
	hidden := false
	pool := k.Hardware().Pool
	for _, d := range claim.Devices {
		if d.Admin() {
			continue
		}
		held = append(held, devices.HeldDevice{Device: d.Device, Shared: d.ShareID != nil, Counted: devices.Counts(d.ConsumedCapacity),
			Consumed: d.ConsumedCapacity})
		hidden = hidden || !pool.Published(d.Device)
	}
	k.mu.Lock()
	_, before := k.held[claim.UID]
	k.held[claim.UID] = held
	k.names[claim.UID] = types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}
	k.mu.Unlock()
	k.use.Set(k.holdings())
	if hidden {
		k.offerAgain()
	}
	return !before
}

// release removes a claim's devices. A GPU that kept its form for claims gets the wanted one when its last claim ends.
func (k *Preparer) release(claim types.UID) {
	k.mu.Lock()
	delete(k.held, claim)
	delete(k.names, claim)
	delete(k.recorded, claim)
	k.mu.Unlock()
	k.use.Set(k.holdings())
	if len(k.Hardware().Pool.Settling) > 0 {
		k.offerAgain()
	}
}

// name returns the name of a claim that has devices; false: none has this UID.
func (k *Preparer) name(claim types.UID) (types.NamespacedName, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	name, known := k.names[claim]
	return name, known
}

// holdings returns the devices that claims have.
func (k *Preparer) holdings() []devices.HeldDevice {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []devices.HeldDevice
	for _, claim := range slices.Sorted(maps.Keys(k.held)) {
		out = append(out, k.held[claim]...)
	}
	return out
}

// Use returns the devices that claims have, and a channel that is closed when they change.
func (k *Preparer) Use() ([]devices.HeldDevice, <-chan struct{}) { return k.use.Get() }

// SetFull changes the shared devices that are not published because they are full.
func (k *Preparer) SetFull(names []string) {
	k.layingOut.Lock()
	defer k.layingOut.Unlock()
	h := *k.Hardware()
	if slices.Equal(h.Offer.Full, names) {
		return
	}
	h.Offer.Full = names
	k.offer(&h)
}

// offerAgain rebuilds the pool from the present state.
func (k *Preparer) offerAgain() {
	k.layingOut.Lock()
	defer k.layingOut.Unlock()
	h := *k.Hardware()
	k.offer(&h)
}

// SetForms changes the forms in which the GPUs are offered. It does not read the GPUs' MIG instances again. Devices that claims
// hold stay published.
func (k *Preparer) SetForms(forms devices.Forms) {
	k.layingOut.Lock()
	defer k.layingOut.Unlock()
	h := *k.Hardware()
	h.Offer.Forms = forms
	k.offer(&h)
}

// SetByDemand changes the layouts of the GPUs that get them by demand. It does not change the GPUs.
func (k *Preparer) SetByDemand(layouts map[string]devices.Layout) {
	k.layingOut.Lock()
	defer k.layingOut.Unlock()
	h := *k.Hardware()
	if reflect.DeepEqual(h.Offer.ByDemand, layouts) {
		return
	}
	h.Offer.ByDemand = layouts
	k.offer(&h)
}

// SetMissing changes the features that the cluster lacks. Devices that claims have stay offered; forms that the cluster cannot keep
// apart are withheld where they are published.
func (k *Preparer) SetMissing(missing capability.Missing) {
	k.layingOut.Lock()
	defer k.layingOut.Unlock()
	h := *k.Hardware()
	if h.Offer.Missing == missing {
		return
	}
	h.Offer.Missing = missing
	k.offer(&h)
}
