package claims

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/node/draplugin"
)

// hold notes which devices a claim has. A device that is not published, since its form was withdrawn after the claim was allocated it, is
// published now: the scheduler has to know why the rest of its GPU is not to be had. first says that nothing was known of the claim before.
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
	k.mu.Unlock()
	if hidden {
		k.offerAgain()
	}
	return !before
}

// release forgets a claim's devices. A GPU that kept its form for them gets the one that is wanted when its last claim ends.
func (k *Kind) release(claim types.UID) {
	k.mu.Lock()
	delete(k.held, claim)
	k.mu.Unlock()
	if len(k.Hardware().Pool.Settling) > 0 {
		k.offerAgain()
	}
}

// holdings are the devices that claims have.
func (k *Kind) holdings() []devices.Held {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []devices.Held
	for _, claim := range slices.Sorted(maps.Keys(k.held)) {
		out = append(out, k.held[claim]...)
	}
	return out
}

// offerAgain makes the pool again from what is known.
func (k *Kind) offerAgain() {
	k.layingOut.Lock()
	defer k.layingOut.Unlock()
	h := *k.Hardware()
	k.offer(&h)
}

// SetForms changes the forms in which the GPUs are offered. What stands on the GPUs is not looked at again, and what claims hold stays
// offered.
func (k *Kind) SetForms(forms devices.Forms) {
	k.layingOut.Lock()
	defer k.layingOut.Unlock()
	h := *k.Hardware()
	h.Offer.Forms = forms
	k.offer(&h)
}
