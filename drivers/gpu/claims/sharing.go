package claims

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/node/draplugin"
)

// same says whether two ways of sharing can stand on one GPU.
func (s share) same(o share) bool { return s.strategy == o.strategy && s.interval == o.interval }

func (s share) String() string {
	if s.strategy == v1beta1.TimeSlicing {
		return fmt.Sprintf("%s with interval %s", s.strategy, s.interval)
	}
	return string(s.strategy)
}

// planSharing checks that each GPU is shared in one way, by this claim and by those that share it already, and notes what will be set.
func (k *Kind) planSharing(p *preparation) error {
	wanted := map[string]share{}
	for i, d := range p.devices {
		if d.Form == devices.MIG || p.claim.Devices[i].Admin() {
			if p.shares[i].strategy == v1beta1.MPS {
				return refuseMPS(d)
			}
			continue // a MIG device's time slices have no length to choose
		}
		s := p.shares[i]
		if s.strategy == v1beta1.MPS {
			return refuseMPS(d)
		}
		if before, ok := wanted[d.GPU.UUID]; ok && !before.same(s) {
			return draplugin.Refuse("SharingContradicts", "device %s is to be shared by %s, and by %s for another request of the claim: one GPU is shared in one way", d.Name(), s, before)
		}
		wanted[d.GPU.UUID] = s
		if other, holder := k.sharedBy(d.GPU.UUID, p.claim.UID); holder != "" && !other.same(s) {
			return draplugin.Refuse("SharingContradicts", "device %s is shared by %s for the claim with UID %s; this claim asks for %s: one GPU is shared in one way", d.Name(), other, holder, s)
		}
	}
	for gpu, s := range wanted {
		if !s.same(ordinary()) {
			p.data.Sharing = append(p.data.Sharing, sharingData{GPU: gpu, Strategy: s.strategy, Interval: s.interval})
		}
		k.note(gpu, p.claim.UID, s)
	}
	return nil
}

func refuseMPS(d *devices.Device) error {
	return draplugin.Refuse("MPSUnavailable", "device %s: sharing.strategy MPS: this version of the driver starts no MPS control daemon: use TimeSlicing, or a share of a GPU (device type shared) with limits of memory and cores", d.Name())
}

// note remembers that a claim shares a GPU in some way.
func (k *Kind) note(gpu string, claim types.UID, s share) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.sharing[gpu] == nil {
		k.sharing[gpu] = map[types.UID]share{}
	}
	k.sharing[gpu][claim] = s
}

// sharedBy finds another claim on a GPU, empty where there is none.
func (k *Kind) sharedBy(gpu string, but types.UID) (share, types.UID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for claim, s := range k.sharing[gpu] {
		if claim != but {
			return s, claim
		}
	}
	return share{}, ""
}

// setSharing sets what the claim's GPUs need beyond the ordinary.
func (k *Kind) setSharing(ctx context.Context, p *preparation) error {
	for _, s := range p.data.Sharing {
		if err := k.options.SetTimeSlice(ctx, s.Interval, s.GPU); err != nil {
			return draplugin.Refuse("TimeSliceNotSet", "%w", err)
		}
	}
	return nil
}

// endSharing forgets a claim's sharing, and sets the GPUs back that no other claim shares in the same way.
func (k *Kind) endSharing(ctx context.Context, claim types.UID, set []sharingData) error {
	for _, s := range set {
		unlock, err := k.Lock(ctx, s.GPU)
		if err != nil {
			return err
		}
		if _, other := k.sharedBy(s.GPU, claim); other == "" {
			err = k.options.SetTimeSlice(ctx, v1beta1.DefaultTimeSlice, s.GPU)
		}
		unlock()
		if err != nil {
			return err
		}
	}
	k.forgetSharing(claim)
	return nil
}

func (k *Kind) forgetSharing(claim types.UID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for gpu, claims := range k.sharing {
		if delete(claims, claim); len(claims) == 0 {
			delete(k.sharing, gpu)
		}
	}
}
