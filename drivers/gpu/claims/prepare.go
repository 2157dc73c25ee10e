package claims

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/api/resource/validation"
	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/edits"
	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/gpu/partition"
	"gpufabric.io/drivers/gpu/sharing"
	"gpufabric.io/drivers/node/draplugin"
)

// data is this driver's part of a claim's record. Fields are only ever added.
type data struct {
	// Partitions are the MIG instances that were made for the claim, or are about to be made. There was nothing at their placements
	// before, so whatever is there belongs to the claim.
	Partitions []partitionData `json:"partitions,omitempty"`
	// Sharing is how the claim's GPUs are shared, where that differs from the default.
	Sharing []sharingData `json:"sharing,omitempty"`
	// MPS is set for a claim that has a control daemon, or is about to have one.
	MPS *sharing.Settings `json:"mps,omitempty"`
}

type sharingData struct {
	GPU      string                    `json:"gpu"`
	Strategy v1beta1.SharingStrategy   `json:"strategy"`
	Interval v1beta1.TimeSliceInterval `json:"interval,omitempty"`
}

func (p partitionData) place() place { return place{gpu: p.GPU, profile: p.Profile, start: p.Start} }

type partitionData struct {
	Device  string `json:"device"`
	GPU     string `json:"gpu"`
	Profile int    `json:"profile"`
	Start   int    `json:"start"`
	// Instance is the GPU instance's identity once it is made.
	Instance *int `json:"instance,omitempty"`
}

// preparation is one claim being prepared.
type preparation struct {
	claim    *draplugin.Claim
	progress draplugin.Progress
	hardware *Hardware
	edits    *edits.Set
	devices  []*devices.Device
	// shares are the ways in which the devices are shared, by index.
	shares []share
	data   data
	// first: no earlier try of the claim is recorded. earlier is the record of such a try.
	first   bool
	earlier data
	// stood are, by name, the devices at whose placements an instance of the claim existed before this try.
	stood map[string]bool
	// intended: data was announced in the claim's record.
	intended bool
	// instances are the MIG instances of the devices, by index.
	instances map[int]partition.Instance
	// seen are the MIG instances on the GPUs of the devices with admin access, by index.
	seen map[int][]partition.Instance
}

// Prepare makes a claim's devices ready.
func (k *Preparer) Prepare(ctx context.Context, claim *draplugin.Claim, progress draplugin.Progress) (*draplugin.Prepared, error) {
	// The webhook makes the same checks, but there may be no webhook.
	if errs := validation.Claim(&claim.Spec, field.NewPath("spec")); len(errs) > 0 {
		return nil, draplugin.Refuse("InvalidConfig", "%w", errs.ToAggregate())
	}
	p := &preparation{claim: claim, progress: progress, hardware: k.Hardware(), stood: map[string]bool{},
		instances: map[int]partition.Instance{}, seen: map[int][]partition.Instance{}}
	if err := p.find(); err != nil {
		return nil, err
	}
	var err error
	if p.edits, err = p.hardware.Edits(ctx); err != nil {
		return nil, err
	}
	if err := p.edits.Lacking(p.parents()...); err != nil {
		return nil, draplugin.Refuse("DeviceNodeMissing", "%w; it is looked for again when the claim is tried again", err)
	}
	unlock, err := k.Lock(ctx, p.gpus()...)
	if err != nil {
		return nil, err
	}
	defer unlock()
	p.first, p.earlier = k.hold(claim), k.recordOf(claim.UID)
	var made []specs.ContainerEdits
	if err = k.prepare(ctx, p); err == nil {
		made, err = p.containerEdits(k.options.Capabilities, k.options.MPSDir, k.options.Limits)
	}
	if err != nil {
		if !p.intended {
			k.forgetSharing(claim.UID) // without a record there will be no unprepare
			if p.first {
				// Otherwise containers may run with the edits of an earlier preparation.
				err = errors.Join(err, k.options.Limits.remove(claim.UID))
				k.release(claim.UID)
			}
		}
		return nil, err
	}
	return &draplugin.Prepared{
		Edits: made, Attributes: p.attributes, Data: p.data, Notes: p.notes(k.options.Limits), Warnings: p.warnings(),
	}, nil
}

// attributes are those of device i as it is published, with the UUID of the MIG device that now exists at its placement.
func (p *preparation) attributes(i int) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
	published := p.devices[i].API.Attributes
	instance, made := p.instances[i]
	if !made || instance.UUID == "" {
		return published
	}
	own := maps.Clone(published)
	own[devices.AttrUUID] = resourceapi.DeviceAttribute{StringValue: &instance.UUID}
	return own
}

// notes describe the limits of the claim's containers.
func (p *preparation) notes(limits Limits) []draplugin.Remark {
	var out []draplugin.Remark
	shares := map[*inventory.GPU]int{}
	for _, d := range p.devices {
		if d.Form == devices.Shared {
			shares[d.GPU]++
		}
	}
	for i, d := range p.devices {
		if d.Form != devices.Shared || p.claim.Devices[i].Admin() {
			continue
		}
		if note := limits.note(d.GPU.UUID, p.claim.Devices[i], shares[d.GPU]); note != "" {
			out = append(out, draplugin.Remark{Reason: "ShareLimits", Message: note})
		}
	}
	return out
}

// find looks the claim's devices up.
func (p *preparation) find() error {
	for _, allocated := range p.claim.Devices {
		d := p.hardware.Pool.Device(allocated.Device)
		if d == nil {
			return draplugin.Refuse("DeviceUnknown", "device %s of pool %s is not on this node any more: delete the claim (or its pod), and the "+
				"scheduler chooses another", allocated.Device, allocated.Pool)
		}
		d = d.As(allocated.ShareID != nil, allocated.ConsumedCapacity)
		s, err := configure(d, allocated.Configs)
		if err != nil {
			return err
		}
		p.devices, p.shares = append(p.devices, d), append(p.shares, s)
	}
	return nil
}

// gpus returns the UUIDs of the GPUs that the claim changes; a device with admin access changes nothing.
func (p *preparation) gpus() []string {
	uuids := map[string]bool{}
	for i, d := range p.devices {
		if !p.claim.Devices[i].Admin() {
			uuids[d.GPU.UUID] = true
		}
	}
	return slices.Collect(maps.Keys(uuids))
}

// parents returns the GPUs of the claim's devices.
func (p *preparation) parents() []*inventory.GPU {
	var out []*inventory.GPU
	for _, d := range p.devices {
		if !slices.Contains(out, d.GPU) {
			out = append(out, d.GPU)
		}
	}
	return out
}

// prepare brings the hardware into the state that each device needs.
func (k *Preparer) prepare(ctx context.Context, p *preparation) error {
	if err := k.planSharing(p); err != nil {
		return err
	}
	if err := k.planPartitions(p); err != nil {
		return err
	}
	for i, d := range p.devices {
		if d.Form == devices.MIG || p.claim.Devices[i].Admin() {
			continue
		}
		if err := k.undivided(d); err != nil {
			return errors.Join(err, k.retract(p, p.stood, 0, nil))
		}
	}
	if made, err := k.makePartitions(ctx, p); err != nil {
		return errors.Join(err, k.retract(p, made, 0, nil))
	}
	return k.setSharing(ctx, p)
}

// undivided makes sure that a GPU that is given out whole or as shares is not in MIG mode: CUDA does not find a device on a GPU in MIG
// mode.
func (k *Preparer) undivided(d *devices.Device) error {
	if d.GPU.MIG == nil {
		return nil
	}
	standing, err := partition.List(d.GPU)
	if err != nil {
		return err
	}
	if len(standing) > 0 {
		return draplugin.Refuse("GPUPartitioned",
			"%s is cut into %d MIG instances that this driver did not make or is still removing, so it cannot be handed out as %s: remove them "+
				"(nvidia-smi mig -dci; nvidia-smi mig -dgi), or use the MIG devices", d.GPU.UUID, len(standing), d.Name())
	}
	if k.modes.foreign([]*inventory.GPU{d.GPU})[d.GPU.UUID] {
		return draplugin.Refuse("GPUInMIGMode", "%s is in MIG mode, which no claim switched on, so it is not handed out as %s: switch the "+
			"mode off (nvidia-smi -i %d -mig 0), or use its MIG devices", d.GPU.UUID, d.Name(), d.GPU.Index)
	}
	if err := partition.Require(d.GPU, false); err != nil {
		return refuseMode(err)
	}
	k.disownMode(d.GPU.UUID)
	return nil
}

func refuseMode(err error) error {
	if errors.Is(err, partition.ErrNeedsReset) {
		return draplugin.Refuse("GPUNeedsReset", "%w", err)
	}
	return err
}

// planPartitions checks the instances at the placements of the claim's MIG devices, and records those that will be made there.
func (k *Preparer) planPartitions(p *preparation) error {
	for i, d := range p.devices {
		admin := p.claim.Devices[i].Admin()
		if d.Form != devices.MIG && !admin {
			continue
		}
		standing, err := partition.List(d.GPU)
		if err != nil {
			return err
		}
		if admin {
			// A placement without an instance is still a device of its GPU, whose instances can be monitored.
			p.seen[i] = slices.DeleteFunc(standing, func(instance partition.Instance) bool { return !instance.Whole() })
			continue
		}
		instance, stands := partition.At(standing, d.Profile.ID, d.Placement.Start)
		if d.Static {
			if !stands || !instance.Whole() {
				return draplugin.Refuse("MIGDeviceGone", "no MIG instance %s stands at memory slice %d of %s any more: an administrator changed the "+
					"layout; restart the driver's pod on this node, and delete the claim", d.Profile.Name, d.Placement.Start, d.GPU.UUID)
			}
			p.instances[i] = instance
			continue
		}
		for _, other := range standing {
			// An instance that was made for this same claim before a crash is used again.
			ours := k.owner(place{d.GPU.UUID, other.Profile, other.Start}) == p.claim.UID && other.Profile == d.Profile.ID &&
				other.Start == d.Placement.Start
			if other.Overlaps(d.Placement) && !ours {
				return draplugin.Refuse("PlacementOccupied",
					"memory slices %d to %d of %s are taken by MIG instance %d (profile %d), which was not made for this claim: where nothing uses it, "+
						"remove it with nvidia-smi mig -dci -gi %d and -dgi -gi %d", d.Placement.Start, d.Placement.Start+d.Placement.Size-1, d.GPU.UUID,
					other.ID, other.Profile, other.ID, other.ID)
			}
		}
		p.stood[d.Name()] = stands
		p.data.Partitions = append(p.data.Partitions, partitionData{Device: d.Name(), GPU: d.GPU.UUID, Profile: d.Profile.ID,
			Start: d.Placement.Start})
	}
	if len(p.data.Partitions) == 0 && len(p.data.Sharing) == 0 && p.data.MPS == nil {
		return nil
	}
	if err := k.intend(p); err != nil {
		return err
	}
	p.intended = true
	for _, made := range p.data.Partitions {
		k.own(made.place(), p.claim.UID)
	}
	return nil
}

// makePartitions makes the claim's MIG instances. If one cannot be made, it removes those made before it, and returns the devices of which
// something may be left, by name.
func (k *Preparer) makePartitions(ctx context.Context, p *preparation) (left map[string]bool, err error) {
	left = maps.Clone(p.stood)
	var made []*devices.Device
	defer func() {
		if err == nil {
			return
		}
		for _, d := range made {
			undo := partition.Destroy(d.GPU, d.Profile, d.Placement.Start)
			if left[d.Name()] = undo != nil; undo != nil {
				err = errors.Join(err, fmt.Errorf("undo the preparation: %w", undo))
			}
		}
	}()
	next := 0
	for i, d := range p.devices {
		if d.Form != devices.MIG || d.Static || p.claim.Devices[i].Admin() {
			continue
		}
		if err := ctx.Err(); err != nil {
			return left, err
		}
		if err := k.cut(d.GPU); err != nil {
			return left, refuseMode(err)
		}
		instance, err := partition.Create(d.GPU, d.Profile, d.Placement)
		if err != nil {
			left[d.Name()] = left[d.Name()] || errors.Is(err, partition.ErrLeft)
			return left, err
		}
		made = append(made, d)
		p.instances[i] = instance
		p.data.Partitions[next].Instance = &instance.ID
		next++
	}
	return nil, nil
}

// containerEdits returns the edits for the containers of each device. The edits that all devices need come with the first device of
// each request: a container that uses a request gets all its devices, and needs the driver's files once.
func (p *preparation) containerEdits(capabilities edits.Capabilities, mpsDir string, limits Limits) ([]specs.ContainerEdits, error) {
	out := make([]specs.ContainerEdits, len(p.devices))
	served := map[string]bool{}
	shares := 0
	for i, d := range p.devices {
		allocated := p.claim.Devices[i]
		if !served[allocated.Request] {
			served[allocated.Request] = true
			out[i] = p.edits.Common()
		}
		if allocated.Admin() {
			if err := p.observe(&out[i], i, capabilities); err != nil {
				return nil, err
			}
			continue
		}
		switch d.Form {
		case devices.Whole:
			edits.Merge(&out[i], p.edits.GPU(d.GPU))
		case devices.Shared:
			edits.Merge(&out[i], p.edits.GPU(d.GPU))
			edits.Merge(&out[i], shareEdits(shares, allocated))
			held, err := limits.edits(p.claim.UID, shares, d.GPU.UUID, allocated)
			if err != nil {
				return nil, err
			}
			edits.Merge(&out[i], held)
			shares++
		case devices.MIG:
			instance := p.instances[i]
			nodes, err := capabilities.Nodes(d.GPU.Minor, instance.ID, instance.Compute)
			var missing *edits.MissingNodeError
			if errors.As(err, &missing) {
				return nil, draplugin.Refuse("DeviceNodeMissing", "%w", err)
			}
			if err != nil {
				return nil, err
			}
			edits.Merge(&out[i], p.edits.Partition(d.GPU, nodes...))
		}
		if p.shares[i].strategy == v1beta1.MPS {
			edits.Merge(&out[i], sharing.Edits(mpsDir, p.claim.UID))
		}
	}
	return out, nil
}

// observe adds the edits for admin access to device i: the GPU, without limits, and every MIG instance on it.
func (p *preparation) observe(into *specs.ContainerEdits, i int, capabilities edits.Capabilities) error {
	gpu := p.devices[i].GPU
	if p.devices[i].Form == devices.MIG {
		edits.Merge(into, p.edits.Partition(gpu))
	} else {
		edits.Merge(into, p.edits.GPU(gpu))
	}
	for _, instance := range p.seen[i] {
		nodes, err := capabilities.Nodes(gpu.Minor, instance.ID, instance.Compute)
		var missing *edits.MissingNodeError
		if errors.As(err, &missing) {
			continue // its claim has just removed it
		}
		if err != nil {
			return err
		}
		into.DeviceNodes = append(into.DeviceNodes, nodes...)
	}
	return nil
}
