// Package devices turns a node's GPUs into the devices of one DRA pool, in the configured forms (Forms). A GPU with one form is one
// device without counters. The devices of a GPU with several forms use its counter set, so that the scheduler itself cannot
// allocate one GPU in two forms.
//
// A GPU of ModeShareable is one device that allows multiple allocations. A claim that does not request a capacity consumes all of its
// memory, and so has it whole. Claims that request memory share it, as far as memory and cores suffice. A GPU of ModeShares is such
// a device too, and its shares are counted.
//
// The form Shared follows from what Kubernetes 1.36.3's allocator does with counters of a device that allows multiple allocations
// (read from structured/internal/incubating, and tried in this package's tests). The first allocation takes the device's counters.
// Later ones skip the counter check. However many there are, the device's counters are subtracted once. So the form Shared takes
// every counter of its GPU: while a share exists, no other form of that GPU can be allocated, and among the shares the capacities
// memory and cores decide.
package devices

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/utils/ptr"

	"gpufabric.io/drivers/gpu/inventory"
)

// Device is one device of the pool, and the hardware behind it.
type Device struct {
	Form Form
	GPU  *inventory.GPU
	// Profile and Placement are set for the MIG form.
	Profile   inventory.Profile
	Placement inventory.Placement
	// Static is a MIG instance that an administrator made. It is given out as it is and never removed.
	Static bool

	// API is the published device, without taints.
	API resourceapi.Device
}

// Name is the device's name in the pool.
func (d *Device) Name() string { return d.API.Name }

// Describe names the device's form in a word or two: whole, shareable, shares, shares of a VGPUProfile, MIG and its profile.
func (d *Device) Describe() string {
	switch {
	case d.Form == MIG:
		return "MIG " + d.Profile.Name
	case d.Form == Whole:
		return DescribeWhole(d.API)
	}
	if a := d.API.Attributes[AttrVGPUProfile]; a.StringValue != nil {
		return "shares of " + *a.StringValue
	}
	return "shares"
}

// multiple reports whether several claims may have the device at once.
func (d *Device) multiple() bool {
	return d.API.AllowMultipleAllocations != nil && *d.API.AllowMultipleAllocations
}

// As returns the device as one claim has it, given the claim's consumed capacity. A GPU of ModeShareable is whole for a claim that
// consumes all of its memory, and shared for any other. A claim that consumes counted shares shares the GPU, even with all of them,
// since their number may change. Any other device is returned unchanged.
func (d *Device) As(shared bool, consumed map[resourceapi.QualifiedName]resource.Quantity) *Device {
	if d.Form != Whole || !shared {
		return d
	}
	memory, known := consumed[CapMemory]
	if known && !Counts(consumed) && memory.Cmp(bytesOf(d.GPU.MemoryBytes&^(shareStep-1))) >= 0 {
		return d
	}
	share := *d
	share.Form = Shared
	return &share
}

// maxText is the API's limit on a string attribute.
const maxText = resourceapi.DeviceAttributeMaxValueLength

// attributes builds a device's attribute map; it omits empty values.
type attributes map[resourceapi.QualifiedName]resourceapi.DeviceAttribute

func (a attributes) text(name resourceapi.QualifiedName, value string) {
	if value == "" {
		return
	}
	a[name] = resourceapi.DeviceAttribute{StringValue: ptr.To(value[:min(len(value), maxText)])}
}

func (a attributes) version(name resourceapi.QualifiedName, value string) {
	if v, ok := semantic(value); ok {
		a[name] = resourceapi.DeviceAttribute{VersionValue: ptr.To(v)}
	}
}

// semantic writes a driver's version as a semantic version: 570.158.01 is 570.158.1, and 9.0 is 9.0.0.
func semantic(version string) (string, bool) {
	fields := strings.Split(version, ".")
	if len(fields) > 3 {
		fields = fields[:3]
	}
	out := []string{"0", "0", "0"}
	for i, f := range fields {
		n, err := strconv.ParseUint(f, 10, 32)
		if err != nil {
			return "", false
		}
		out[i] = strconv.FormatUint(n, 10)
	}
	return strings.Join(out, "."), true
}

// common are the attributes that every form of a GPU has.
func common(n *inventory.Node, g *inventory.GPU, form Form) attributes {
	a := attributes{}
	a.text(AttrType, string(form))
	a.text(AttrProductName, g.ProductName)
	a.text(AttrBrand, g.Brand)
	a.text(AttrArchitecture, g.Architecture)
	a.text(AttrAddressingMode, g.AddressingMode)
	a.text(AttrCliqueID, g.Clique)
	a.text(AttrNVLinkDomain, g.NVLinkDomain)
	a.version(AttrComputeCapability, fmt.Sprintf("%d.%d", g.ComputeCapability[0], g.ComputeCapability[1]))
	a.version(AttrDriverVersion, n.DriverVersion)
	if n.CUDAVersion > 0 {
		a.version(AttrCUDAVersion, fmt.Sprintf("%d.%d", n.CUDAVersion/1000, n.CUDAVersion%1000/10))
	}
	a.text(deviceattribute.StandardDeviceAttributePCIBusID, g.Place.BusID)
	a.text(deviceattribute.StandardDeviceAttributePCIeRoot, g.Place.Root)
	a.text(AttrPCIeSwitch, g.Place.Switch)
	if g.Place.NUMANode >= 0 {
		a[AttrNUMANode] = resourceapi.DeviceAttribute{IntValue: ptr.To(int64(g.Place.NUMANode))}
	}
	return a
}

// identity adds the attributes that identify an undivided GPU. index is NVML's, which nvidia-smi shows. Earlier releases of
// NVIDIA's DRA driver published it and manifests select by it; releases of 2026 do not.
func (a attributes) identity(g *inventory.GPU) {
	a.text(AttrUUID, g.UUID)
	a[AttrIndex] = resourceapi.DeviceAttribute{IntValue: ptr.To(int64(g.Index))}
}

// undivided is the whole GPU beside its possible MIG placements. Beside them it has engines as capacities, under the names that
// NVIDIA's DRA driver uses for them. A GPU that is offered without MIG placements has only memory, as in that driver.
func undivided(n *inventory.Node, g *inventory.GPU) *Device {
	d := whole(n, g)
	if g.MIG == nil || len(g.MIG.Profiles) == 0 {
		return d
	}
	if d.API.Capacity == nil {
		d.API.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{}
	}
	for _, e := range engines {
		d.API.Capacity[e.capacity] = capacity(int64(e.total(g)))
	}
	return d
}

func capacity(value int64) resourceapi.DeviceCapacity {
	return resourceapi.DeviceCapacity{Value: *resource.NewQuantity(value, resource.DecimalSI)}
}

func bytesOf(value uint64) resource.Quantity {
	return *resource.NewQuantity(int64(value), resource.BinarySI) //nolint:gosec // a GPU's memory is far below 2^63 bytes
}

// whole is the GPU for one claim alone.
func whole(n *inventory.Node, g *inventory.GPU) *Device {
	a := common(n, g, Whole)
	a.identity(g)
	return &Device{Form: Whole, GPU: g, API: resourceapi.Device{
		Name: WholeName(g), Attributes: a, Capacity: ownMemory(g),
	}}
}

// ownMemory is the capacity memory of a GPU with its own memory. GPUs that are part of a system on a chip have none to count.
func ownMemory(g *inventory.GPU) map[resourceapi.QualifiedName]resourceapi.DeviceCapacity {
	if g.MemoryBytes == 0 {
		return nil
	}
	return map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{CapMemory: {Value: bytesOf(g.MemoryBytes)}}
}

// Share describes the possible requests for a share of a GPU.
type Share struct {
	// Memory is the default of a request without memory, in bytes.
	Memory uint64
	// Cores is the default of a request without cores, in percent. It is at least 1, since a share of 0 cores would not be counted.
	Cores int64
}

// Profile is a named way to divide GPUs into shares (a VGPUProfile of mode Software).
type Profile struct {
	Name  string
	Share Share
	// Split is the maximum number of shares; 0: as many as memory and cores allow.
	Split int64
	// ProductNames are the GPUs that it is for; none: all.
	ProductNames []string
}

// fits reports whether a GPU can have shares of the profile.
func (p Profile) fits(g *inventory.GPU) bool {
	return p.Share.Memory <= g.MemoryBytes && (len(p.ProductNames) == 0 || slices.Contains(p.ProductNames, g.ProductName))
}

// profiled is the shareable form for a profile. A request without capacities gets one share of the profile, so that its extended
// resource counts shares. A GPU has shares of one profile at a time.
func profiled(n *inventory.Node, g *inventory.GPU, p Profile) *Device {
	d := shared(n, g, p.Share.of(g))
	d.API.Name = ProfileName(g, p.Name)
	attributes(d.API.Attributes).text(AttrVGPUProfile, p.Name)
	if p.Split > 0 {
		d.API.Capacity[CapSlots] = numbered(p.Split)
	}
	return d
}

// of fills in a tenth of the GPU for unset values.
func (s Share) of(g *inventory.GPU) Share {
	if s.Memory == 0 {
		s.Memory = g.MemoryBytes / 10
	}
	if s.Cores == 0 {
		s.Cores = defaultCores
	}
	return s
}

// shareStep is the grain of a share's memory.
const shareStep = 1 << 20

// defaultCores is the percentage of a GPU's cores for a share that requests none.
const defaultCores = 10

// shared is the GPU divided by memory and cores.
func shared(n *inventory.Node, g *inventory.GPU, share Share) *Device {
	a := common(n, g, Shared)
	a.identity(g)
	total := g.MemoryBytes &^ (shareStep - 1)
	memory := min(max(share.Memory&^(shareStep-1), shareStep), total)
	cores := min(max(share.Cores, 1), 100)
	one, full := resource.NewQuantity(1, resource.DecimalSI), resource.NewQuantity(100, resource.DecimalSI)
	mib, all := bytesOf(shareStep), bytesOf(total)
	d := &Device{Form: Shared, GPU: g, API: resourceapi.Device{
		Name: SharedName(g), Attributes: a, AllowMultipleAllocations: ptr.To(true),
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			CapMemory: {Value: all, RequestPolicy: &resourceapi.CapacityRequestPolicy{
				Default:    ptr.To(bytesOf(memory)),
				ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: &mib, Max: &all, Step: &mib},
			}},
			CapCores: {Value: *full, RequestPolicy: &resourceapi.CapacityRequestPolicy{
				Default:    resource.NewQuantity(cores, resource.DecimalSI),
				ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: one, Max: full, Step: one},
			}},
		},
	}}
	if g.MemoryBytes == 0 {
		delete(d.API.Capacity, CapMemory) // its shares divide only cores
	}
	return d
}

// shareable is the GPU in ModeShareable, under the name and with the type of a whole GPU. A claim without capacities consumes the
// default of memory, which is all of it, and so excludes every other claim. The smallest share has 1 MiB and one percent: a share
// of zero would not be counted.
func shareable(n *inventory.Node, g *inventory.GPU) *Device {
	total := g.MemoryBytes &^ (shareStep - 1)
	cores := int64(defaultCores)
	if total == 0 {
		cores = 100 // without its own memory, a claim without requests excludes others by its cores
	}
	d := shared(n, g, Share{Memory: total, Cores: cores})
	d.Form = Whole
	d.API.Name = WholeName(g)
	attributes(d.API.Attributes).text(AttrType, string(Whole))
	return d
}

// mould has the common data of all placements of a MIG profile on a GPU. They share its maps, which are never changed: a node of
// eight GPUs has about two hundred placements, and the maps of each take three kilobytes.
type mould struct {
	attributes attributes
	capacity   map[resourceapi.QualifiedName]resourceapi.DeviceCapacity
}

func mouldOf(n *inventory.Node, g *inventory.GPU, p inventory.Profile) mould {
	a := common(n, g, MIG)
	a.text(AttrParentUUID, g.UUID)
	a.text(AttrProfile, p.Name)
	return mould{attributes: a, capacity: partCapacity(p, multiprocessors(g))}
}

// partCapacity is the capacity of a MIG device on a GPU with a total of multiprocessors.
func partCapacity(p inventory.Profile, total int) map[resourceapi.QualifiedName]resourceapi.DeviceCapacity {
	return map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
		CapMemory:          {Value: bytesOf(p.MemoryBytes)},
		CapMultiprocessors: capacity(int64(p.Multiprocessors)),
		CapCopyEngines:     capacity(int64(p.CopyEngines)),
		CapDecoders:        capacity(int64(p.Decoders)),
		CapEncoders:        capacity(int64(p.Encoders)),
		CapJPEGEngines:     capacity(int64(p.JPEGEngines)),
		CapOFAEngines:      capacity(int64(p.OFAEngines)),
		CapCores:           capacity(int64(100 * p.Multiprocessors / max(total, 1))),
	}
}

// partition is one placement of a MIG profile.
func (m mould) partition(g *inventory.GPU, p inventory.Profile, at inventory.Placement) *Device {
	return &Device{Form: MIG, GPU: g, Profile: p, Placement: at, API: resourceapi.Device{
		Name: MIGName(g, p, at.Start), Attributes: m.attributes, Capacity: m.capacity,
	}}
}
