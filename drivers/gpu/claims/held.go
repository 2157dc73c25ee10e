package claims

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/node/draplugin"
)

// hold records which devices a claim has. It publishes a device again that is not published, because its form was withdrawn after
// the allocation: the scheduler must see why the rest of its GPU is unavailable. first says that the claim was unknown before.
func (k *Kind) hold(claim *draplugin.Claim) (first bool) {
	var held []devices.Held
	hidden := false
	pool := k.Hardware().Pool
	for _, d := range claim.Devices {
		if d.Admin() {
			continue
		}
		held = append(held, devices.Held{Device: d.Device, Shared: d.ShareID != nil, Counted: devices.Counts(d.ConsumedCapacity)})
		hidden = hidden || !pool.Published(d.Device)
	}
	k.mu.Lock()
	_, before := k.held[claim.UID]
	k.held[claim.UID] = held
	k.names[claim.UID] = types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}
	k.mu.Unlock()
	if hidden {
		k.offerAgain()
	}
	return !before
}

// release removes a claim's devices. A GPU that kept its form for claims gets the wanted one when its last claim ends.
func (k *Kind) release(claim types.UID) {
	k.mu.Lock()
	delete(k.held, claim)
	delete(k.names, claim)
	k.mu.Unlock()
	if len(k.Hardware().Pool.Settling) > 0 {
		k.offerAgain()
	}
}

// name returns the name of a claim that has devices; false: none has this UID.
func (k *Kind) name(claim types.UID) (types.NamespacedName, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	name, known := k.names[claim]
	return name, known
}

// holdings returns the devices that claims have.
func (k *Kind) holdings() []devices.Held {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []devices.Held
	for _, claim := range slices.Sorted(maps.Keys(k.held)) {
		out = append(out, k.held[claim]...)
	}
	return out
}

// offerAgain rebuilds the pool from what is known.
func (k *Kind) offerAgain() {
	k.layingOut.Lock()
	defer k.layingOut.Unlock()
	h := *k.Hardware()
	k.offer(&h)
}

// SetForms changes the forms in which the GPUs are offered. It does not read the GPUs' MIG instances again. Devices that claims
// hold stay published.
func (k *Kind) SetForms(forms devices.Forms) {
	k.layingOut.Lock()
	defer k.layingOut.Unlock()
	h := *k.Hardware()
	h.Offer.Forms = forms
	k.offer(&h)
}
