// Package mig has the rules of MIG over a node's state: which instances may be created where, and which are in use. The C library has the
// same rules in nvml/mig_rules.c; a test drives both side by side.
package mig

import (
	"errors"

	"gpufabric.io/fakes/state"
)

// The errors of the rules; each corresponds to one NVML return code.
var (
	ErrNotSupported          = errors.New("not supported in this state")
	ErrInvalid               = errors.New("invalid argument")
	ErrInUse                 = errors.New("in use")
	ErrInsufficientResources = errors.New("insufficient resources")
)

// Anywhere as a start lets the rules choose the placement.
const Anywhere = state.None

// IDs of GPU and compute instances are below these.
const (
	GPUInstanceIDs     = 16
	ComputeInstanceIDs = 8
)

// FindGPUInstance gives the GPU instance with that ID, or nil.
func FindGPUInstance(g *state.GPU, id uint32) *state.GPUInstance {
	for i := range g.Instances {
		if g.Instances[i].Used != 0 && g.Instances[i].ID == id {
			return &g.Instances[i]
		}
	}
	return nil
}

// FindComputeInstance gives the compute instance with that ID, or nil.
func FindComputeInstance(gi *state.GPUInstance, id uint32) *state.ComputeInstance {
	if gi == nil {
		return nil
	}
	for i := range gi.Computes {
		if gi.Computes[i].Used != 0 && gi.Computes[i].ID == id {
			return &gi.Computes[i]
		}
	}
	return nil
}

// Profiles are the model's GPU instance profiles.
func Profiles(m *state.Model) []state.MIGProfile {
	return m.MIGProfiles[:min(m.MIGProfileCount, state.MaxMIGProfiles)]
}

// ProfileIndex finds the profile with that NVML profile ID; -1 when there is none.
func ProfileIndex(m *state.Model, id uint32) int {
	for i, p := range Profiles(m) {
		if p.ID == id {
			return i
		}
	}
	return -1
}

// ComputeProfiles are the compute instance profiles inside a GPU instance profile.
func ComputeProfiles(p *state.MIGProfile) []state.CIProfile {
	return p.CIProfiles[:min(p.CICount, state.MaxCIProfiles)]
}

// ComputeProfileIndex finds the compute instance profile with that ID; -1 when there is none.
func ComputeProfileIndex(p *state.MIGProfile, id uint32) int {
	for i, c := range ComputeProfiles(p) {
		if c.ID == id {
			return i
		}
	}
	return -1
}

func mask(size, start uint32) uint32 { return (1<<(size&31) - 1) << (start & 31) }

// starts are the profile's possible placements.
func starts(p *state.MIGProfile) []uint32 {
	return p.Starts[:min(p.PlacementCount, state.MaxPlacements)]
}

// profileOf is the profile of an instance; a damaged index returns an empty one.
func profileOf(m *state.Model, gi *state.GPUInstance) *state.MIGProfile {
	if gi.Profile >= state.MaxMIGProfiles {
		return &state.MIGProfile{}
	}
	return &m.MIGProfiles[gi.Profile]
}

// taken are the used memory slices, one bit each.
func taken(m *state.Model, g *state.GPU) uint32 {
	var bits uint32
	for i := range g.Instances {
		if gi := &g.Instances[i]; gi.Used != 0 {
			bits |= mask(profileOf(m, gi).Size, gi.Start)
		}
	}
	return bits
}

// Capacity is how many more instances of a profile fit.
func Capacity(m *state.Model, g *state.GPU, profile int) int {
	p := &m.MIGProfiles[profile]
	bits, fits, have, slices := taken(m, g), uint32(0), uint32(0), uint32(0)
	for i := range g.Instances {
		if gi := &g.Instances[i]; gi.Used != 0 {
			slices += profileOf(m, gi).Slices
			if int(gi.Profile) == profile {
				have++
			}
		}
	}
	for _, s := range starts(p) {
		if span := mask(p.Size, s); bits&span == 0 {
			bits |= span
			fits++
		}
	}
	bySlices := uint32(0)
	if p.Slices > 0 && m.MIGSlices > slices {
		bySlices = (m.MIGSlices - slices) / p.Slices
	}
	return int(min(fits, p.Max-min(have, p.Max), bySlices))
}

// openPlacements counts the placements, of all profiles, that are free with these slices taken.
func openPlacements(m *state.Model, bits uint32) int {
	n := 0
	for i := range Profiles(m) {
		p := &m.MIGProfiles[i]
		for _, s := range starts(p) {
			if bits&mask(p.Size, s) == 0 {
				n++
			}
		}
	}
	return n
}

// bestStart is the free placement that leaves most other placements free, the lowest of several.
func bestStart(m *state.Model, g *state.GPU, p *state.MIGProfile) (start uint32, ok bool) {
	bits, most := taken(m, g), 0
	for _, s := range starts(p) {
		span := mask(p.Size, s)
		if bits&span != 0 {
			continue
		}
		if left := openPlacements(m, bits|span); !ok || left > most {
			start, ok, most = s, true, left
		}
	}
	return start, ok
}

// instanceID follows the placement: the whole is 0, halves 1 and 2, quarters 3 to 6, eighths 7 to 14.
func instanceID(m *state.Model, start, size uint32) uint32 {
	size = max(size, 1)
	return max(m.MIGMemorySlices/size, 1) - 1 + start/size
}

// CreateGPUInstance makes an instance of a profile (an index) at a start, or Anywhere, and gives its ID.
func CreateGPUInstance(m *state.Model, g *state.GPU, profile int, start uint32) (uint32, error) {
	p := &m.MIGProfiles[profile]
	switch {
	case g.Core.MIGCurrent == 0:
		return 0, ErrNotSupported
	case g.Core.MIGBusy != 0:
		return 0, ErrInUse
	}
	if start == Anywhere {
		best, ok := bestStart(m, g, p)
		if !ok {
			return 0, ErrInsufficientResources
		}
		start = best
	} else {
		possible := false
		for _, s := range starts(p) {
			possible = possible || s == start
		}
		if !possible {
			return 0, ErrInvalid
		}
		if taken(m, g)&mask(p.Size, start) != 0 {
			return 0, ErrInsufficientResources
		}
	}
	id := instanceID(m, start, p.Size)
	if Capacity(m, g, profile) == 0 || id >= GPUInstanceIDs {
		return 0, ErrInsufficientResources
	}
	for i := range g.Instances {
		if g.Instances[i].Used == 0 {
			g.Instances[i] = state.GPUInstance{Used: 1, ID: id, Profile: uint32(profile), Start: start}
			return id, nil
		}
	}
	return 0, ErrInsufficientResources
}

// hasProcess reports whether a process runs on the GPU, the GPU instance or the compute instance; state.None is any.
func hasProcess(g *state.GPU, gi, ci uint32) bool {
	for i := range g.Processes {
		p := &g.Processes[i]
		if p.PID != 0 && (gi == state.None || p.GPUInstance == gi && (ci == state.None || p.ComputeInstance == ci)) {
			return true
		}
	}
	return false
}

// DestroyGPUInstance removes an instance that has no compute instances.
func DestroyGPUInstance(g *state.GPU, id uint32) error {
	gi := FindGPUInstance(g, id)
	if gi == nil {
		return ErrInvalid
	}
	if g.Core.MIGBusy != 0 || hasProcess(g, id, state.None) {
		return ErrInUse
	}
	for i := range gi.Computes {
		if gi.Computes[i].Used != 0 {
			return ErrInUse
		}
	}
	*gi = state.GPUInstance{}
	return nil
}

// computeTaken are the used compute slices of a GPU instance, one bit each.
func computeTaken(p *state.MIGProfile, gi *state.GPUInstance) uint32 {
	var bits uint32
	for i := range gi.Computes {
		if c := &gi.Computes[i]; c.Used != 0 && c.Profile < state.MaxCIProfiles {
			bits |= mask(p.CIProfiles[c.Profile].Slices, c.Start)
		}
	}
	return bits
}

func computeStart(p *state.MIGProfile, bits, slices uint32) (uint32, bool) {
	// A damaged profile may have more slices than the mask has bits.
	for start := uint32(0); slices > 0 && slices < 32 && start+slices <= p.Slices && start < 8; start++ {
		if bits&mask(slices, start) == 0 {
			return start, true
		}
	}
	return 0, false
}

// ComputeCapacity is how many more compute instances of a profile (an index) fit.
func ComputeCapacity(p *state.MIGProfile, gi *state.GPUInstance, profile int) int {
	bits, slices, n := computeTaken(p, gi), p.CIProfiles[profile].Slices, 0
	for {
		start, ok := computeStart(p, bits, slices)
		if !ok {
			return n
		}
		bits |= mask(slices, start)
		n++
	}
}

// CreateComputeInstance makes a compute instance of a profile (an index) in a GPU instance, and gives its ID.
func CreateComputeInstance(m *state.Model, g *state.GPU, gi uint32, profile int, start uint32) (uint32, error) {
	in := FindGPUInstance(g, gi)
	if in == nil || in.Profile >= state.MaxMIGProfiles {
		return 0, ErrInvalid
	}
	if g.Core.MIGBusy != 0 {
		return 0, ErrInUse
	}
	p := &m.MIGProfiles[in.Profile]
	slices, bits := p.CIProfiles[profile].Slices, computeTaken(p, in)
	switch {
	case start == Anywhere:
		free, ok := computeStart(p, bits, slices)
		if !ok {
			return 0, ErrInsufficientResources
		}
		start = free
	case start+slices > p.Slices || start >= 8:
		return 0, ErrInvalid
	case bits&mask(slices, start) != 0:
		return 0, ErrInsufficientResources
	}
	id := uint32(0)
	for FindComputeInstance(in, id) != nil {
		id++
	}
	for i := range in.Computes {
		if in.Computes[i].Used == 0 {
			in.Computes[i] = state.ComputeInstance{Used: 1, ID: id, Profile: uint32(profile), Start: start, UUID: deviceUUID(g, gi, id)}
			return id, nil
		}
	}
	return 0, ErrInsufficientResources
}

// deviceUUID depends on the GPU and the place, so that the same layout gets the same UUIDs again.
func deviceUUID(g *state.GPU, gi, ci uint32) [16]byte {
	const prime = 0x100000001b3
	x := uint64(0xcbf29ce484222325)
	for _, b := range g.Core.UUID {
		x = (x ^ uint64(b)) * prime
	}
	x = (x ^ uint64(gi)) * prime
	x = (x ^ uint64(ci)) * prime
	var u [16]byte
	for i := range u {
		x = (x ^ uint64(i)) * prime
		u[i] = byte(x >> 32)
	}
	u[6] = u[6]&0x0f | 0x50
	u[8] = u[8]&0x3f | 0x80
	return u
}

// DestroyComputeInstance removes a compute instance that no process uses.
func DestroyComputeInstance(g *state.GPU, gi, id uint32) error {
	c := FindComputeInstance(FindGPUInstance(g, gi), id)
	if c == nil {
		return ErrInvalid
	}
	if g.Core.MIGBusy != 0 || hasProcess(g, gi, id) {
		return ErrInUse
	}
	*c = state.ComputeInstance{}
	return nil
}

// ErrResetRequired is why a mode stays pending on a GPU that nothing uses.
var ErrResetRequired = errors.New("the GPU must be reset")

// architectureAmpere is NVML_DEVICE_ARCH_AMPERE (nvml.h): the A100 and the A30.
const architectureAmpere = 7

// ModeNeedsReset reports whether a change of MIG mode waits for a reset. NVIDIA's MIG user guide (Deployment Considerations): "Setting MIG
// mode on the A100/A30 requires a GPU reset"; from Hopper on it needs none. nvml.h (nvmlDeviceSetMigMode) has the driver try the reset
// itself on some platforms, and answer RESET_REQUIRED on others, such as a GPU that is passed through to a virtual machine: this fake is
// one of those.
func ModeNeedsReset(m *state.Model) bool { return m.Architecture == architectureAmpere }

// SetMode requests MIG on or off. The second result is why the mode could not take effect at once. others: other NVML
// clients have the GPUs open: "All daemons holding handles on driver modules need to be stopped before MIG enablement" (the same
// page).
func SetMode(m *state.Model, g *state.GPU, on, others bool) (err, activation error) {
	if m.MIGProfileCount == 0 {
		return ErrNotSupported, nil
	}
	mode := uint32(0)
	if on {
		mode = 1
	}
	g.Core.MIGPending = mode
	if g.Core.MIGCurrent == mode {
		return nil, nil
	}
	instances := false
	for i := range g.Instances {
		instances = instances || g.Instances[i].Used != 0
	}
	switch {
	case g.Core.MIGBusy != 0 || instances || hasProcess(g, state.None, state.None):
		return nil, ErrInUse
	case ModeNeedsReset(m) && others:
		return nil, ErrInUse
	case ModeNeedsReset(m):
		return nil, ErrResetRequired
	}
	g.Core.MIGCurrent = mode
	return nil, nil
}

// Reset resets a GPU, as nvidia-smi --gpu-reset does (its manual page): no application may use the GPU, and no other program such
// as a monitor may have it open. A pending mode takes effect. Instances do not survive a reset (MIG user guide, Getting Started:
// they have to be made again).
func Reset(g *state.GPU, others bool) error {
	if others || g.Core.MIGBusy != 0 || hasProcess(g, state.None, state.None) {
		return ErrInUse
	}
	Restart(g)
	return nil
}

// Restart leaves a GPU as it is after a boot.
func Restart(g *state.GPU) {
	g.Core.MIGCurrent = g.Core.MIGPending
	g.Core.ComputeMode, g.Core.TimeSlice = 0, 0
	clear(g.Instances[:])
}
