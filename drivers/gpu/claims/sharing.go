package claims

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/sharing"
	"gpufabric.io/drivers/node/draplugin"
)

// same reports whether two ways of sharing can coexist on one GPU.
func (s share) same(o share) bool { return s.strategy == o.strategy && s.interval == o.interval }

func (s share) String() string {
	if s.strategy == v1beta1.TimeSlicing {
		return fmt.Sprintf("%s with interval %s", s.strategy, s.interval)
	}
	return string(s.strategy)
}

// planSharing checks that each GPU is shared in one way, by this claim and by the claims that share it already. It records the
// settings to apply.
func (k *Preparer) planSharing(p *preparation) error {
	wanted := map[string]share{}
	for i, d := range p.devices {
		if p.claim.Devices[i].Admin() {
			continue
		}
		s := p.shares[i]
		if s.strategy == v1beta1.MPS {
			if err := p.planMPS(d, s.mps); err != nil {
				return err
			}
		}
		if d.Form == devices.MIG {
			continue // the length of its time slices cannot be chosen, and it shares no processes with others
		}
		if before, ok := wanted[d.GPU.UUID]; ok && !before.same(s) {
			return draplugin.Refuse("SharingContradicts",
				"device %s is to be shared by %s, and by %s for another request of the claim: one GPU is shared in one way", d.Name(), s, before)
		}
		wanted[d.GPU.UUID] = s
		if other, holder := k.sharedBy(d.GPU.UUID, p.claim.UID); holder != "" && !other.same(s) {
			klog.Background().Info("A GPU is shared in another way already", "gpu", d.GPU.UUID, "claim", klog.KObj(p.claim), "holderUID", holder)
			return draplugin.Refuse("SharingContradicts",
				"device %s is shared by %s for another claim; this claim asks for %s: one GPU is shared in one way", d.Name(), other, s)
		}
	}
	if err := p.checkLimits(); err != nil {
		return err
	}
	for gpu, s := range wanted {
		if !s.same(ordinary()) && !k.exclusiveAlready(p, gpu, s) {
			p.data.Sharing = append(p.data.Sharing, sharingData{GPU: gpu, Strategy: s.strategy, Interval: s.interval})
		}
		k.note(gpu, p.claim.UID, s)
	}
	return nil
}

// planMPS records that the claim gets a control daemon. One daemon serves all its devices, so they have the same settings.
func (p *preparation) planMPS(d *devices.Device, config *v1beta1.MpsConfig) error {
	if d.Form == devices.Shared {
		return draplugin.Refuse("MPSNotForShares",
			"device %s: sharing.strategy MPS is for whole GPUs and MIG devices, and this claim has a share; use a node of form whole, or "+
				"the share's capacities",
			d.Name())
	}
	if p.data.MPS == nil {
		p.data.MPS = &sharing.Settings{Config: config}
		return nil
	}
	if !equality.Semantic.DeepEqual(p.data.MPS.Config, config) {
		return draplugin.Refuse("SharingContradicts",
			"device %s: sharing.mpsConfig differs between the claim's devices: a claim has one MPS control daemon; use one configuration, or a "+
				"claim for each", d.Name())
	}
	return nil
}

// checkLimits checks the daemon's limits, as far as possible before any change.
func (p *preparation) checkLimits() error {
	if p.data.MPS == nil {
		return nil
	}
	known := sharing.Settings{Config: p.data.MPS.Config}
	for i, d := range p.devices {
		switch {
		case p.shares[i].strategy != v1beta1.MPS || p.claim.Devices[i].Admin():
		case d.Form == devices.MIG:
			known.Devices = append(known.Devices, "") // its UUID is known once it is made
		default:
			known.Devices = append(known.Devices, d.GPU.UUID)
		}
	}
	return refuseLimits(known.CheckLimits())
}

func refuseLimits(err error) error {
	if err == nil {
		return nil
	}
	return draplugin.Refuse("MPSDeviceUnknown", "%w", err)
}

// note records that a claim shares a GPU in some way.
func (k *Preparer) note(gpu string, claim types.UID, s share) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.noteLocked(gpu, claim, s)
}

func (k *Preparer) noteLocked(gpu string, claim types.UID, s share) {
	if k.sharing[gpu] == nil {
		k.sharing[gpu] = map[types.UID]share{}
	}
	k.sharing[gpu][claim] = s
}

// sharedBy returns another claim on a GPU, empty where there is none.
func (k *Preparer) sharedBy(gpu string, but types.UID) (share, types.UID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for claim, s := range k.sharing[gpu] {
		if claim != but {
			return s, claim
		}
	}
	return share{}, ""
}

// setSharing applies the settings of the claim's GPUs that differ from the defaults.
func (k *Preparer) setSharing(ctx context.Context, p *preparation) error {
	all := partitionsOf(p.data)
	if err := k.catchUp(ctx, p); err != nil {
		return errors.Join(err, k.retract(p, all, 0, nil))
	}
	if p.data.MPS != nil {
		if err := k.openMPS(p); err != nil {
			return errors.Join(err, k.retract(p, all, 0, nil))
		}
	}
	for i, s := range p.data.Sharing {
		if err := k.set(ctx, s); err != nil {
			return errors.Join(draplugin.Refuse("SharingNotSet", "%w", err), k.retract(p, all, i, err))
		}
	}
	if p.data.MPS == nil {
		return nil
	}
	if err := k.options.MPS.Start(ctx, p.claim.UID, *p.data.MPS); err != nil {
		return draplugin.Refuse("MPSNotStarted", "%w", err)
	}
	return nil
}

// openMPS records which devices the claim's daemon opens, and by which device nodes.
func (k *Preparer) openMPS(p *preparation) error {
	mps := p.data.MPS
	node := func(name string) {
		if !slices.Contains(mps.Nodes, name) {
			mps.Nodes = append(mps.Nodes, name)
		}
	}
	for i, d := range p.devices {
		if p.shares[i].strategy != v1beta1.MPS || p.claim.Devices[i].Admin() {
			continue
		}
		node(fmt.Sprintf("nvidia%d", d.GPU.Minor))
		if d.Form != devices.MIG {
			mps.Devices = append(mps.Devices, d.GPU.UUID)
			continue
		}
		mps.Devices = append(mps.Devices, p.instances[i].UUID)
		capabilities, err := k.options.Capabilities.Nodes(d.GPU.Minor, p.instances[i].ID, p.instances[i].Compute)
		if err != nil {
			return err
		}
		for _, n := range capabilities {
			node(strings.TrimPrefix(n.Path, "/dev/"))
		}
	}
	return refuseLimits(mps.CheckLimits())
}

// set makes a GPU be shared in another way than the default.
func (k *Preparer) set(ctx context.Context, s sharingData) error {
	if s.Strategy != v1beta1.MPS {
		err := k.options.TimeSlices.Set(ctx, s.Interval, s.GPU)
		if g := k.Hardware().Node.ByUUID(s.GPU); err != nil && g != nil && g.VGPU {
			err = fmt.Errorf("%w; the GPU is a vGPU, whose time slices are configured on its host", err)
		}
		return err
	}
	// Only the control daemon's server may use the GPU: a program that bypassed the daemon would take the GPU from all others.
	return k.setComputeMode(s.GPU, nvml.COMPUTEMODE_EXCLUSIVE_PROCESS)
}

// unset restores the default way of sharing a GPU. A GPU that left the machine has lost its settings.
func (k *Preparer) unset(ctx context.Context, s sharingData) error {
	g := k.Hardware().Node.ByUUID(s.GPU)
	if g == nil {
		return nil
	}
	if s.Strategy != v1beta1.MPS {
		return unlessLost(ctx, g, k.options.TimeSlices.Set(ctx, v1beta1.DefaultTimeSlice, s.GPU))
	}
	return unlessLost(ctx, g, k.setComputeMode(s.GPU, nvml.COMPUTEMODE_DEFAULT))
}

// exclusiveAlready reports whether an administrator has set the compute mode that a claim with MPS needs: it stays as it is. Where an
// earlier claim left it, or an earlier try of this one may have set it, it is the claim's to set back.
func (k *Preparer) exclusiveAlready(p *preparation, gpu string, s share) bool {
	g := k.Hardware().Node.ByUUID(gpu)
	if s.strategy != v1beta1.MPS || g == nil || p.recordedBefore(gpu) {
		return false
	}
	k.mu.Lock()
	_, left := k.left[gpu]
	k.mu.Unlock()
	mode, ret := g.Handle.GetComputeMode()
	return !left && ret == nvml.SUCCESS && mode == nvml.COMPUTEMODE_EXCLUSIVE_PROCESS
}

func (k *Preparer) setComputeMode(uuid string, mode nvml.ComputeMode) error {
	g := k.Hardware().Node.ByUUID(uuid)
	if g == nil {
		return nil // the GPU left the machine and has lost its mode
	}
	if ret := g.Handle.SetComputeMode(mode); ret != nvml.SUCCESS && ret != nvml.ERROR_NOT_SUPPORTED {
		return fmt.Errorf("set the compute mode of %s: %w", uuid, ret)
	}
	return nil
}

// endSharing removes a claim's sharing, and resets the GPUs that no other claim shares in the same way.
func (k *Preparer) endSharing(ctx context.Context, claim types.UID, kept data) error {
	if kept.MPS != nil {
		k.resuming.end(claim)
		if err := k.options.MPS.Stop(ctx, claim); err != nil {
			return fmt.Errorf("end the MPS control daemon: %w", err)
		}
	}
	for _, s := range kept.Sharing {
		if err := k.endSharingOf(ctx, claim, s); err != nil {
			return err
		}
	}
	k.forgetSharing(claim)
	return nil
}

// endSharingOf ends a claim's sharing of one GPU. It removes the claim while the GPU is locked. Otherwise two claims that end at
// once would each see the other as still there, and neither would reset the GPU.
func (k *Preparer) endSharingOf(ctx context.Context, claim types.UID, s sharingData) error {
	unlock, err := k.Lock(ctx, s.GPU)
	if err != nil {
		return err
	}
	defer unlock()
	if _, other := k.sharedBy(s.GPU, claim); other == "" {
		if err := k.unset(ctx, s); err != nil {
			if ctx.Err() != nil {
				return err // the caller tries again
			}
			k.leave(s, err)
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.sharing[s.GPU], claim)
	return nil
}

func (k *Preparer) forgetSharing(claim types.UID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for device, claims := range k.unseen {
		if delete(claims, claim); len(claims) == 0 {
			delete(k.unseen, device)
		}
	}
	for gpu, claims := range k.sharing {
		if delete(claims, claim); len(claims) == 0 {
			delete(k.sharing, gpu)
		}
	}
}
