package devices

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"

	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/node/capability"
)

// TaintWithdrawn is the key of the taint on a device that claims still share, and whose GPU will be offered in another form once
// they end.
const TaintWithdrawn = "gpufabric.io/form-withdrawn"

// Pool is every device of a node, by name.
type Pool struct {
	node    *inventory.Node
	options Options
	devices map[string]*Device
	// order is the order of publication: by GPU, and within a GPU whole, shared, then MIG by size. The allocator takes the first
	// device that fits.
	order []*Device
	sets  []resourceapi.CounterSet
	// withdrawn are the devices that exist only for the claims that share them already.
	withdrawn map[string]bool
	// Settling are the GPUs, by UUID, that keep a form which is no longer offered until the claims that have it end.
	Settling map[string]bool
	// Problems are devices that could not be offered.
	Problems []error
}

// Options determine how a node's GPUs are offered.
type Options struct {
	// Forms are the forms in which they are offered.
	Forms Forms
	// HeldDevice are the devices that claims have. They stay published, whatever the value of Forms is.
	Held []HeldDevice
	// Share is the default share of a GPU; the zero value is a tenth of the GPU.
	Share Share
	// Profiles are the named ways to divide the node's GPUs into shares.
	Profiles []Profile
	// Static lists the MIG instances on GPUs whose layout an administrator made, by GPU UUID. Such a GPU is offered only as those
	// instances.
	Static map[string][]Instance
	// ByDemand are the layouts of the GPUs, by UUID, that get them by demand. Such a GPU is offered whole or as the planned instances that
	// exist, and in no other form.
	ByDemand map[string]Layout
	// MIGMode are the GPUs, by UUID, that somebody else switched to MIG mode. They are offered only in MIG forms, though a claim could
	// switch the mode off.
	MIGMode map[string]bool
	// Limits is the value of AttrLimits; empty: devices lack it.
	Limits string
	// NoMIG does not offer MIG placements on GPUs without static instances.
	NoMIG bool
	// Full are the names of shared devices that are not published because they are full. Those with a taint are.
	Full []string
	// Missing are the features of resource.k8s.io that the cluster lacks. A device that needs one of them is not offered.
	Missing capability.Missing
}

// HeldDevice is a device that a claim has.
type HeldDevice struct {
	Device string
	// Shared: other claims may have the device too.
	Shared bool
	// Counted: the claim has counted shares of a GPU of ModeShares.
	Counted bool
	// Consumed is the claim's part of a shared device's capacities.
	Consumed map[resourceapi.QualifiedName]resource.Quantity
}

// Layout is the planned layout of a GPU that gets it by demand.
type Layout struct {
	// Instances are the planned MIG instances. Without any the GPU is offered whole.
	Instances []Placed `json:"instances,omitempty"`
	// Withdrawn are the names of devices that are not published.
	Withdrawn []string `json:"withdrawn,omitempty"`
}

// Placed is a MIG instance by the name of its profile, as NVML writes it, and its first memory slice.
type Placed struct {
	Profile string `json:"profile"`
	Start   int    `json:"start"`
}

// has reports whether a device is one of the layout's.
func (l Layout) has(d *Device) bool {
	if d.Form == MIG {
		return slices.Contains(l.Instances, Placed{Profile: d.Profile.Name, Start: d.Placement.Start})
	}
	return d.Form == Whole && len(l.Instances) == 0
}

// Instance is an existing MIG instance: a GPU instance with one compute instance that fills it.
type Instance struct {
	ProfileID int
	Start     int
	// UUID is the MIG device's.
	UUID string
	// Held marks an instance that was made for a claim: it is removed with the claim.
	Held bool
}

// NewPool builds the devices of a node.
func NewPool(n *inventory.Node, o Options) *Pool {
	p := &Pool{node: n, options: o, devices: map[string]*Device{}, withdrawn: map[string]bool{}, Settling: map[string]bool{}}
	for _, g := range n.GPUs {
		if p.leaves(g) {
			continue
		}
		if instances, ok := o.Static[g.UUID]; ok {
			p.offer(g, p.static(g, instances))
			continue
		}
		if l, ok := o.ByDemand[g.UUID]; ok && len(l.Instances) > 0 && len(p.heldOn(g)) == 0 {
			continue // none of its instances exists yet; whole, a claim would keep them from being made
		}
		wanted := p.wanted(g)
		if kept := p.kept(g, wanted); kept != nil {
			p.Settling[g.UUID] = true
			wanted = kept
		}
		p.offer(g, wanted)
	}
	return p
}

// leaves reports whether a GPU of ModeVFIO has no device of another form, so that package passthrough can offer it. Devices of claims stay
// offered until they end. A GPU that a MIG layout has keeps it.
func (p *Pool) leaves(g *inventory.GPU) bool {
	if p.options.Forms.mode() != ModeVFIO {
		return false
	}
	_, static := p.options.Static[g.UUID]
	_, planned := p.options.ByDemand[g.UUID]
	if static || planned {
		p.problem("form %s: no GPU of the node is passed through while %s has the MIG instances of an administrator or of a MIGLayout: remove "+
			"them (nvidia-smi mig -dci; nvidia-smi mig -dgi), or exclude the node from the MIGLayout", ModeVFIO, g.UUID)
		return false
	}
	if kept := p.kept(g, nil); kept != nil {
		p.Settling[g.UUID] = true
		p.offer(g, kept)
	}
	return true
}

// wanted are the devices of a GPU that Forms select and its MIG mode allows: a GPU whose mode only a reset changes has the forms
// of its mode.
func (p *Pool) wanted(g *inventory.GPU) []*Device {
	all := p.keptApart(g, p.selected(g))
	fixed := p.options.MIGMode[g.UUID]
	if g.CanBeWhole() && !fixed {
		return all
	}
	all = slices.DeleteFunc(all, func(d *Device) bool { return d.Form != MIG })
	if len(all) == 0 {
		then := " and reset the GPU"
		if fixed {
			then = ""
		}
		p.problem("%s is in MIG mode without instances, and form %s has no MIG instances that could be made: nothing of it is offered; make "+
			"instances by a MIGLayout or "+
			"nvidia-smi mig, offer it in form mig, or switch the mode off (nvidia-smi -i %d -mig 0)%s", g.UUID, p.options.Forms, g.Index, then)
	}
	return all
}

// keptApart are the selected devices of a GPU that the cluster can keep apart; the whole GPU where it can keep none.
func (p *Pool) keptApart(g *inventory.GPU, all []*Device) []*Device {
	m := p.options.Missing
	var lacks capability.Missing
	kept := all
	if shares := slices.ContainsFunc(all, (*Device).multiple); shares && (m.Shares || m.CountedShares && exclusive(all)) {
		lacks.Shares, lacks.CountedShares = m.Shares, m.CountedShares && exclusive(all)
		kept = slices.DeleteFunc(slices.Clone(all), (*Device).multiple)
	}
	if m.Counters && exclusive(kept) {
		lacks.Counters = true
		kept = nil
	}
	if !lacks.Any() {
		return all
	}
	then := "without its shares"
	if len(kept) == 0 {
		kept, then = []*Device{whole(p.node, g)}, "whole"
	}
	p.problem("%s is offered %s: form %s needs %w", g.UUID, then, p.options.Forms, lacks)
	return kept
}

// heldOn are the devices of a GPU that claims have.
func (p *Pool) heldOn(g *inventory.GPU) []HeldDevice {
	return slices.DeleteFunc(slices.Clone(p.options.Held), func(h HeldDevice) bool { return !of(g, h.Device) })
}

// selected are the devices of a GPU that its layout by demand or Forms select.
func (p *Pool) selected(g *inventory.GPU) []*Device {
	n, o := p.node, p.options
	if _, ok := o.ByDemand[g.UUID]; ok {
		return []*Device{whole(n, g)}
	}
	var shares []*Device
	for _, profile := range o.Profiles {
		if profile.fits(g) {
			shares = append(shares, profiled(n, g, profile))
		}
	}
	switch o.Forms.mode() {
	case ModeFlexible:
		placements := p.placements(g, p.cuttable(g))
		alone := whole(n, g)
		if len(placements) > 0 {
			alone = undivided(n, g)
		}
		return slices.Concat([]*Device{alone, shared(n, g, o.Share.of(g))}, shares, placements)
	case ModeProfiles:
		if len(shares) > 0 {
			return shares
		}
		p.problem("%s is offered whole: form %s, and no VGPUProfile of mode Software fits it", g.UUID, ModeProfiles)
	case ModeMIG:
		if placements := p.placements(g, p.named(g)); len(placements) > 0 {
			return slices.Concat(shares, placements)
		}
	case ModeShareable:
		if g.MemoryBytes >= shareStep {
			return slices.Concat([]*Device{shareable(n, g)}, shares)
		}
		p.problem("%s is offered whole: form %s, and the driver does not report its memory", g.UUID, ModeShareable)
	case ModeShares:
		return slices.Concat([]*Device{counted(n, g, o.Forms.Shares)}, shares)
	case ModeWhole, ModeVFIO:
	}
	return slices.Concat([]*Device{whole(n, g)}, shares)
}

// cuttable are the profiles into which a GPU may be divided on demand.
func (p *Pool) cuttable(g *inventory.GPU) []inventory.Profile {
	if !g.CanBeCut() || p.options.NoMIG {
		return nil
	}
	return bySize(g.MIG.Profiles)
}

// named are the profiles of a GPU that ModeMIG names.
func (p *Pool) named(g *inventory.GPU) []inventory.Profile {
	if p.options.NoMIG {
		p.problem("%s is offered whole: form %s, and --mig=static lets nothing be cut on demand", g.UUID, p.options.Forms)
		return nil
	}
	if g.MIG != nil && !g.CanBeCut() {
		p.problem("%s is offered whole: form %s, and its MIG mode is off until it is reset (nvidia-smi -i %d -mig 1, then a reset)", g.UUID,
			p.options.Forms, g.Index)
		return nil
	}
	found, missing := p.options.Forms.profiles(g)
	if len(missing) > 0 {
		has := "it cannot be cut"
		if g.VGPU {
			has = "it is a vGPU, and MIG is configured on its host"
		}
		if g.MIG != nil {
			var names []string
			for _, profile := range g.MIG.Profiles {
				names = append(names, profile.Name)
			}
			has = "it has " + strings.Join(names, ", ")
		}
		then := "the others are offered"
		if len(found) == 0 {
			then = "it is offered whole"
		}
		p.problem("%s (%s) has no MIG profile %s: %s; %s", g.UUID, g.ProductName, strings.Join(missing, ", "), has, then)
	}
	return found
}

func (p *Pool) placements(g *inventory.GPU, profiles []inventory.Profile) []*Device {
	var out []*Device
	for _, profile := range profiles {
		m := mouldOf(p.node, g, profile)
		for _, at := range profile.Placements {
			out = append(out, m.partition(g, profile, at))
		}
	}
	return out
}

// kept are the devices of a GPU that claims have, where one of them is not among the wanted ones; else nil. The rest of the GPU
// is not offered until they end: the wanted devices may exclude them, and the scheduler does not have this fact.
func (p *Pool) kept(g *inventory.GPU, wanted []*Device) []*Device {
	var kept []*Device
	foreign := false
	for _, h := range p.options.Held {
		if !of(g, h.Device) {
			continue
		}
		var d *Device
		if i := slices.IndexFunc(wanted, func(d *Device) bool { return d.canBe(h) }); i >= 0 {
			d = wanted[i]
		} else if d = p.possible(g, h); d == nil {
			continue
		} else {
			foreign = true
		}
		if !slices.ContainsFunc(kept, func(k *Device) bool { return k.Name() == d.Name() }) {
			kept = append(kept, d)
		}
	}
	if !foreign {
		return nil
	}
	for _, d := range kept {
		if d.multiple() {
			p.withdrawn[d.Name()] = true
		}
	}
	return kept
}

// of reports whether a device is one of a GPU's, by its name.
func of(g *inventory.GPU, device string) bool {
	rest, ok := strings.CutPrefix(device, WholeName(g))
	return ok && (rest == "" || rest[0] == '-')
}

// possible is a device in some form of a GPU, nil where the GPU cannot have it.
func (p *Pool) possible(g *inventory.GPU, h HeldDevice) *Device {
	n := p.node
	switch {
	case h.Device == WholeName(g) && h.Shared && h.Counted:
		return counted(n, g, max(p.options.Forms.Shares, 1))
	case h.Device == WholeName(g) && h.Shared && g.MemoryBytes >= shareStep:
		return shareable(n, g)
	case h.Device == WholeName(g):
		return whole(n, g)
	case h.Device == SharedName(g):
		return shared(n, g, p.options.Share.of(g))
	case strings.HasPrefix(h.Device, SharedName(g)+"-"):
		for _, profile := range p.options.Profiles {
			if profile.fits(g) && ProfileName(g, profile.Name) == h.Device {
				return profiled(n, g, profile)
			}
		}
		// The profile of this share is unknown (not yet, or no longer). Its claim has the amounts.
		d := shared(n, g, p.options.Share.of(g))
		d.API.Name = h.Device
		return d
	}
	for _, profile := range p.cuttable(g) {
		for _, at := range profile.Placements {
			if MIGName(g, profile, at.Start) == h.Device {
				return mouldOf(n, g, profile).partition(g, profile, at)
			}
		}
	}
	return nil
}

// static are the existing instances of a GPU: the rest of it is not offered.
func (p *Pool) static(g *inventory.GPU, instances []Instance) []*Device {
	var out []*Device
	for _, i := range instances {
		profile, ok := g.MIG.Profile(i.ProfileID)
		at := slices.IndexFunc(profile.Placements, func(at inventory.Placement) bool { return at.Start == i.Start })
		if !ok || at < 0 {
			p.problem("%s: a MIG instance of profile %d at %d stands there, which NVML does not list among its profiles and placements; it is "+
				"not offered", g.UUID, i.ProfileID, i.Start)
			continue
		}
		d := mouldOf(p.node, g, profile).partition(g, profile, profile.Placements[at])
		if d.Static = !i.Held; d.Static {
			// It is permanent, so selecting it by UUID is useful. An instance that was made for a claim goes with the claim.
			d.API.Attributes = maps.Clone(d.API.Attributes)
			attributes(d.API.Attributes).text(AttrUUID, i.UUID)
		}
		out = append(out, d)
	}
	return out
}

func (p *Pool) problem(format string, args ...any) {
	p.Problems = append(p.Problems, fmt.Errorf(format, args...))
}

// offer publishes devices of one GPU. It adds counters where the scheduler could otherwise allocate two devices that exclude each
// other.
func (p *Pool) offer(g *inventory.GPU, all []*Device) {
	if _, settling := p.Settling[g.UUID]; !settling && exclusive(all) {
		set := counterSet(g, all)
		p.sets = append(p.sets, set)
		for _, d := range all {
			d.API.ConsumesCounters = draw(set, d)
		}
	}
	for _, d := range all {
		if d.multiple() {
			attributes(d.API.Attributes).text(AttrLimits, p.options.Limits)
			if _, profiled := d.API.Attributes[AttrVGPUProfile]; !profiled {
				d.API.Attributes[AttrShareable] = resourceapi.DeviceAttribute{BoolValue: ptr.To(true)}
			}
		}
		p.devices[d.Name()] = d
		if l, ok := p.options.ByDemand[g.UUID]; !ok || l.has(d) && !slices.Contains(l.Withdrawn, d.Name()) {
			p.order = append(p.order, d)
		}
	}
	if len(all) > 0 && !slices.ContainsFunc(all, func(d *Device) bool { return d.Form == Whole }) {
		first := maps.Clone(all[0].API.Attributes) // placements of one profile have a map in common
		first[AttrFirstOfGPU] = resourceapi.DeviceAttribute{BoolValue: ptr.To(true)}
		all[0].API.Attributes = first
	}
}

// bySize sorts small profiles first, so that a request that any profile satisfies takes the smallest. Profiles with extras come
// after those without.
func bySize(profiles []inventory.Profile) []inventory.Profile {
	sorted := slices.Clone(profiles)
	slices.SortStableFunc(sorted, func(a, b inventory.Profile) int {
		if a.Slices != b.Slices {
			return a.Slices - b.Slices
		}
		if a.MemoryBytes != b.MemoryBytes {
			if a.MemoryBytes < b.MemoryBytes {
				return -1
			}
			return 1
		}
		return a.Number - b.Number
	})
	return sorted
}

// Device finds a device by name, nil where the node can have none of that name. It also finds unpublished devices: a claim may have
// been allocated one just before its form was withdrawn, and the node's ledger decides whether the claim can still have it.
func (p *Pool) Device(name string) *Device {
	if d := p.devices[name]; d != nil {
		return d
	}
	for _, g := range p.node.GPUs {
		if _, static := p.options.Static[g.UUID]; !static && of(g, name) {
			return p.possible(g, HeldDevice{Device: name})
		}
	}
	return nil
}

// Published reports whether a device of that name is published, or would be if its layout by demand did not withdraw it.
func (p *Pool) Published(name string) bool { return p.devices[name] != nil }

// Devices returns all published devices in the order of publication.
func (p *Pool) Devices() []*Device { return p.order }

// Exhausted returns the names of the published devices of which claims have left so little that a further claim does not fit: less
// of a capacity than the least that each claim takes of it. A device that draws on counters is none of them: while it is not
// published, the scheduler would count the capacity that it uses as free.
func (p *Pool) Exhausted(held []HeldDevice) []string {
	consumed := map[string]map[resourceapi.QualifiedName]resource.Quantity{}
	for _, h := range held {
		if consumed[h.Device] == nil {
			consumed[h.Device] = map[resourceapi.QualifiedName]resource.Quantity{}
		}
		for name, amount := range h.Consumed {
			sum := consumed[h.Device][name]
			sum.Add(amount)
			consumed[h.Device][name] = sum
		}
	}
	var out []string
	for _, d := range p.order {
		if d.multiple() && len(d.API.ConsumesCounters) == 0 && exhausted(d.API.Capacity, consumed[d.Name()]) {
			out = append(out, d.Name())
		}
	}
	return out
}

func exhausted(capacity map[resourceapi.QualifiedName]resourceapi.DeviceCapacity,
	consumed map[resourceapi.QualifiedName]resource.Quantity) bool {
	for name, c := range capacity {
		if c.RequestPolicy == nil || c.RequestPolicy.ValidRange == nil || c.RequestPolicy.ValidRange.Min == nil {
			continue
		}
		left := c.Value.DeepCopy()
		left.Sub(consumed[name])
		if least := c.RequestPolicy.ValidRange.Min; least.Sign() > 0 && left.Cmp(*least) < 0 {
			return true
		}
	}
	return false
}

// Slices returns the pool as ResourceSlices, as few as the API allows. Counter sets come first, at most 8 a slice, then the
// devices, at most 64 a slice. 64 is the limit for devices with counters or taints; it always applies, since a taint must not
// change the layout of a node's slices. taints are added to the devices that they name.
func (p *Pool) Slices(taints map[string][]resourceapi.DeviceTaint) []resourceslice.Slice {
	var out []resourceslice.Slice
	for sets := range slices.Chunk(p.sets, resourceapi.ResourceSliceMaxCounterSets) {
		out = append(out, resourceslice.Slice{SharedCounters: sets})
	}
	for chunk := range slices.Chunk(p.order, resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures) {
		slice := resourceslice.Slice{Devices: make([]resourceapi.Device, 0, len(chunk))}
		for _, d := range chunk {
			if len(taints[d.Name()]) == 0 && !p.withdrawn[d.Name()] && slices.Contains(p.options.Full, d.Name()) {
				continue
			}
			api := d.API
			api.Taints = taints[d.Name()]
			if p.withdrawn[d.Name()] {
				api.Taints = append(slices.Clone(api.Taints), resourceapi.DeviceTaint{Key: TaintWithdrawn,
					Effect: resourceapi.DeviceTaintEffectNoSchedule})
			}
			slice.Devices = append(slice.Devices, api)
		}
		out = append(out, slice)
	}
	return out
}
