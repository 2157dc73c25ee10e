package scheduling

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"

	"gpufabric.io/drivers/computedomain"
	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/fakes/nvmlstate"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/tree"
)

// other is the driver of devices that have nothing to do with GPUs.
const other = "other.example.com"

// Names of the DeviceClasses that claims ask for.
const (
	classWhole = "gpu.nvidia.com"
	classShare = "gpu-share.gpufabric.io"
	classMIG   = "mig.nvidia.com"
	classOther = other
	// classProfile precedes the name of a MIG profile in the name of a class for this profile's devices.
	classProfile = "mig-"
)

// ofProfile is the CEL expression that selects devices of a MIG profile.
func ofProfile(name string) string {
	return fmt.Sprintf("device.attributes['gpu.nvidia.com'].profile == '%s'", name)
}

// deviceClass has the selector of the chart's class of that name, which for GPUs is that of the public driver's chart too.
func deviceClass(name string) *resourceapi.DeviceClass {
	expression := map[string]string{
		classWhole: `device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'`,
		classMIG:   `device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'mig'`,
		classShare: `device.driver == 'gpu.nvidia.com' && device.allowMultipleAllocations == true && !('vgpuProfile' in ` +
			`device.attributes['gpu.nvidia.com'])`,
		classOther: `device.driver == '` + other + `'`,
	}[name]
	if profile, is := strings.CutPrefix(name, classProfile); is {
		expression = deviceClass(classMIG).Spec.Selectors[0].CEL.Expression + ` && ` + ofProfile(profile)
	}
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
	class.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}}
	return class
}

// Row is one way to publish a cluster's GPUs, and what pods request.
type Row struct {
	// Name is a short word for files and flags, Title what the table says.
	Name, Title string
	// class is the DeviceClass of the one device in each pod's claim; empty: pods have no claim. memory is the requested
	// capacity of the device.
	class, memory string
	// unit is the form of the devices that are allocated before the measurement. Claims use the same form.
	unit devices.Form
	// withdrawn says that devices given away before are not published, as if a driver withdrew GPUs on which no share is left.
	withdrawn bool
	// mix says that pods request the shapes of mixed in turn, and that others have the devices that they have after a day under the planner.
	mix bool
	// classes says that mixed pods request a class of the profile, in place of the class of all MIG devices and a selector of their own.
	classes bool
	// counters says that every node publishes counters, for which each pod pays with the square of the number of nodes.
	counters bool
	// publish lays out the slices of a node, by its number. Nil: those of the day.
	publish func(m *Machine, node int) []pool
}

// pools are those of a node.
func (r Row) pools(m *Machine, d *day, node int) []pool {
	if r.publish == nil {
		return d.pools(node)
	}
	return r.publish(m, node)
}

// claim is the claim of the i-th pod.
func (r Row) claim(d *day, name string, i int) *resourceapi.ResourceClaim {
	if r.mix {
		return d.claim(name, i, r.classes)
	}
	return newClaim(name, r.class, r.memory, 1)
}

// pool is one resource pool of a node.
type pool struct {
	driver, name string
	slices       []resourceslice.Slice
}

// Rows are all there are.
func Rows() []Row {
	none := func(*Machine, int) []pool { return nil }
	forms := func(text string) func(*Machine, int) []pool {
		return func(m *Machine, _ int) []pool { return m.ours(text) }
	}
	withOthers := func(publish func(*Machine, int) []pool) func(*Machine, int) []pool {
		return func(m *Machine, node int) []pool { return append(publish(m, node), m.others()) }
	}
	return []Row{
		{Name: "none", Title: "pods without claims", publish: none},
		{Name: "public-whole", Title: "whole GPUs, as the public driver publishes them", class: classWhole, unit: devices.Whole,
			publish: func(m *Machine, _ int) []pool { return m.public(false) }},
		{Name: "whole", Title: "`whole`, the default", class: classWhole, unit: devices.Whole, publish: forms("whole")},
		{Name: "whole-domains", Title: "`whole`, and a channel of compute domains on every node", class: classWhole, unit: devices.Whole,
			publish: func(m *Machine, _ int) []pool { return append(m.ours("whole"), channel()) }},
		{Name: "shareable", Title: "`shareable`, a plain claim a pod", class: classWhole, unit: devices.Whole, publish: forms("shareable")},
		{Name: "shareable-withdrawn", Title: "`shareable` without the full GPUs, a plain claim a pod", class: classWhole, unit: devices.Whole,
			withdrawn: true, publish: forms("shareable")},
		{Name: "shares", Title: "`shareable`, a share of 10Gi a pod", class: classShare, memory: "10Gi", unit: devices.Whole,
			publish: forms("shareable")},
		{Name: "mig", Title: "`mig` of 1g.10gb", class: classMIG, unit: devices.MIG, publish: forms("mig_1g.10gb")},
		{Name: "by-demand", Title: "layouts by demand (half the GPUs whole, the others cut), a whole GPU a pod", class: classWhole,
			unit: devices.Whole, publish: func(m *Machine, _ int) []pool { return m.byDemand() }},
		{Name: "by-demand-mig", Title: "layouts by demand, a MIG device a pod", class: classMIG, unit: devices.MIG,
			publish: func(m *Machine, _ int) []pool { return m.byDemand() }},
		{Name: "by-demand-mix", mix: true, class: classMIG,
			Title: "layouts by demand after a day of the planner, 1g, 2g, 3g and whole in 5:2:2:1"},
		{Name: "by-demand-classes", mix: true, classes: true, class: classMIG,
			Title: "the same, with a DeviceClass for each profile"},
		{Name: "flexible-mix", mix: true, counters: true, class: classMIG, Title: "`flexible`, the same pods", publish: forms("flexible")},
		{Name: "public-mix", mix: true, counters: true, class: classMIG, Title: "the public driver's with dynamic MIG, the same pods",
			publish: func(m *Machine, _ int) []pool { return m.public(true) }},
		{Name: "mig-two", counters: true, Title: "`mig` of 1g.10gb and 3g.40gb", class: classMIG, unit: devices.MIG,
			publish: forms("mig_1g.10gb_3g.40gb")},
		{Name: "flexible", counters: true, Title: "`flexible`, a whole GPU a pod", class: classWhole, unit: devices.Whole,
			publish: forms("flexible")},
		{Name: "public-mig", counters: true, Title: "the public driver's with dynamic MIG, a whole GPU a pod", class: classWhole,
			unit:    devices.Whole,
			publish: func(m *Machine, _ int) []pool { return m.public(true) }},
		{Name: "one-flexible", Title: "`whole`, and one node `flexible`", class: classWhole, unit: devices.Whole,
			publish: func(m *Machine, node int) []pool {
				if node == 0 {
					return m.ours("flexible")
				}
				return m.ours("whole")
			}},
		{Name: "other", Title: "another driver's devices, no GPUs published", class: classOther, unit: "other", publish: withOthers(none)},
		{Name: "other-public", Title: "another driver's devices beside the public driver's whole GPUs", class: classOther, unit: "other",
			publish: withOthers(func(m *Machine, _ int) []pool { return m.public(false) })},
		{Name: "other-whole", Title: "another driver's devices beside `whole`", class: classOther, unit: "other",
			publish: withOthers(forms("whole"))},
		{Name: "other-flexible", counters: true, Title: "another driver's devices beside `flexible`", class: classOther, unit: "other",
			publish: withOthers(forms("flexible"))},
	}
}

// Machine describes a node's GPUs.
type Machine struct {
	node *inventory.Node
	laid map[string][]pool // what was laid out, which is the same for every node
}

// NewMachine reads the GPUs of a fake node.
func NewMachine(ctx context.Context, name string) (*Machine, error) {
	p, err := profile.Load(name)
	if err != nil {
		return nil, err
	}
	root, err := os.MkdirTemp("", "scheduling")
	if err != nil {
		return nil, fmt.Errorf("make a directory for a fake node: %w", err)
	}
	defer func() { _ = os.RemoveAll(root) }()
	if err := tree.Render(ctx, tree.Options{Profile: p, Root: root, PlainDevices: true}); err != nil {
		return nil, err
	}
	lib := nvmlstate.New(root)
	if code := lib.Init(); code != nvml.SUCCESS {
		return nil, fmt.Errorf("start NVML of a fake node: %w", code)
	}
	defer func() { _ = lib.Shutdown() }()
	locate, err := inventory.Locator(ctx, filepath.Join(root, "sys"))
	if err != nil {
		return nil, err
	}
	node, err := inventory.Reader{NVML: lib, Locate: locate}.Read()
	if err != nil {
		return nil, err
	}
	return &Machine{node: node, laid: map[string][]pool{}}, nil
}

// once computes what is the same for every node.
func (m *Machine) once(key string, layOut func() []pool) []pool {
	if _, done := m.laid[key]; !done {
		m.laid[key] = layOut()
	}
	return slices.Clone(m.laid[key])
}

// ours is what gpu-plugin publishes.
func (m *Machine) ours(text string) []pool {
	return m.once(text, func() []pool {
		forms, err := devices.ParseForms(text)
		if err != nil {
			panic(err) // a mistake in this file
		}
		return []pool{{driver: devices.Driver, name: "gpu", slices: devices.NewPool(m.node, devices.Options{Forms: forms}).Slices(nil)}}
	})
}

// byDemand is what gpu-plugin publishes for layouts by demand: half the GPUs are whole, a quarter has seven small instances, a quarter four
// of three sizes.
func (m *Machine) byDemand() []pool {
	return m.once("by demand", func() []pool {
		layouts := [][]devices.Placed{nil, nil, nil, nil}
		for start := range 7 {
			layouts[2] = append(layouts[2], devices.Placed{Profile: "1g.10gb", Start: start})
		}
		layouts[3] = []devices.Placed{{Profile: "2g.20gb", Start: 0}, {Profile: "1g.10gb", Start: 2}, {Profile: "1g.10gb", Start: 3},
			{Profile: "3g.40gb", Start: 4}}
		o := devices.Options{Static: map[string][]devices.Instance{}, ByDemand: map[string]devices.Layout{}}
		for i, g := range m.node.GPUs {
			layout := layouts[i%len(layouts)]
			o.ByDemand[g.UUID] = devices.Layout{Instances: layout}
			for _, placed := range layout {
				for _, profile := range g.MIG.Profiles {
					if profile.Name == placed.Profile {
						o.Static[g.UUID] = append(o.Static[g.UUID], devices.Instance{ProfileID: profile.ID, Start: placed.Start})
					}
				}
			}
		}
		return []pool{{driver: devices.Driver, name: "gpu", slices: devices.NewPool(m.node, o).Slices(nil)}}
	})
}

// channel is what compute-domain-plugin publishes on a node without NVLink fabric with computeDomains.nodesWithoutFabric.
func channel() pool {
	var slice resourceslice.Slice
	for _, d := range []struct{ name, kind string }{{computedomain.ChannelDevice, computedomain.TypeChannel},
		{computedomain.DaemonDevice, computedomain.TypeDaemon}} {
		attributes := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			computedomain.AttributeType: {StringValue: ptr.To(d.kind)}, computedomain.AttributeID: {IntValue: ptr.To[int64](0)}}
		slice.Devices = append(slice.Devices, resourceapi.Device{Name: d.name, Attributes: attributes})
	}
	return pool{driver: computedomain.Driver, name: "compute-domain", slices: []resourceslice.Slice{slice}}
}

// others are eight devices of another driver.
func (m *Machine) others() pool {
	return m.once("others", func() []pool {
		var slice resourceslice.Slice
		for i := range 8 {
			slice.Devices = append(slice.Devices, resourceapi.Device{Name: fmt.Sprintf("device-%d", i)})
		}
		return []pool{{driver: other, name: "other", slices: []resourceslice.Slice{slice}}}
	})[0]
}

// public has the shape of what the public driver (kubernetes-sigs/dra-driver-nvidia-gpu) publishes on Kubernetes 1.35 and later: whole GPUs
// in one slice, or with DynamicMIG a slice of counter sets and a slice for each GPU, whose devices all draw on a counter for every capacity
// and every memory slice (its cmd/gpu-kubelet-plugin/driver.go, generateSplitResourceSlices, and partitions.go). The driver itself is not
// run: its start takes seconds a node.
func (m *Machine) public(dynamicMIG bool) []pool {
	return m.once(fmt.Sprint("public", dynamicMIG), func() []pool {
		all := devices.NewPool(m.node, devices.Options{Forms: devices.Forms{Mode: devices.ModeFlexible}}).Devices()
		byGPU := map[string][]resourceapi.Device{}
		totals := map[string]map[string]resourceapi.Counter{}
		for _, d := range all {
			if d.Form == devices.Shared || d.Form == devices.MIG && !dynamicMIG {
				continue
			}
			gpu := devices.WholeName(d.GPU)
			api := *d.API.DeepCopy()
			api.ConsumesCounters = nil
			for _, ours := range []resourceapi.QualifiedName{devices.AttrPCIeSwitch, devices.AttrNUMANode, devices.AttrCliqueID,
				devices.AttrNVLinkDomain} {
				delete(api.Attributes, ours)
			}
			if dynamicMIG && d.Form == devices.MIG {
				delete(api.Capacity, devices.CapCores)
				api.ConsumesCounters = []resourceapi.DeviceCounterConsumption{{CounterSet: gpu + "-counter-set", Counters: publicDraw(d)}}
				if totals[gpu] == nil {
					totals[gpu] = map[string]resourceapi.Counter{}
				}
				for name, c := range api.ConsumesCounters[0].Counters {
					if most, ok := totals[gpu][name]; !ok || most.Value.Cmp(c.Value) < 0 {
						totals[gpu][name] = c
					}
				}
			}
			byGPU[gpu] = append(byGPU[gpu], api)
		}
		if !dynamicMIG {
			var one resourceslice.Slice
			for _, gpu := range slices.Sorted(maps.Keys(byGPU)) {
				one.Devices = append(one.Devices, byGPU[gpu]...)
			}
			return []pool{{driver: devices.Driver, name: "public", slices: []resourceslice.Slice{one}}}
		}
		counters := resourceslice.Slice{}
		out := []resourceslice.Slice{{}}
		for _, gpu := range slices.Sorted(maps.Keys(byGPU)) {
			set := resourceapi.CounterSet{Name: gpu + "-counter-set", Counters: totals[gpu]}
			counters.SharedCounters = append(counters.SharedCounters, set)
			byGPU[gpu][0].ConsumesCounters = []resourceapi.DeviceCounterConsumption{{CounterSet: set.Name, Counters: set.Counters}}
			slices.SortFunc(byGPU[gpu], func(a, b resourceapi.Device) int { return compare(a.Name, b.Name) })
			out = append(out, resourceslice.Slice{Devices: byGPU[gpu]})
		}
		out[0] = counters
		return []pool{{driver: devices.Driver, name: "public", slices: out}}
	})
}

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// publicDraw consumes a counter for each capacity of a placement, and one for each of its memory slices.
func publicDraw(d *devices.Device) map[string]resourceapi.Counter {
	out := map[string]resourceapi.Counter{}
	for name, counter := range map[resourceapi.QualifiedName]string{
		devices.CapMemory: "memory", devices.CapMultiprocessors: "multiprocessors", devices.CapCopyEngines: "copy-engines",
		devices.CapDecoders: "decoders",
		devices.CapEncoders: "encoders", devices.CapJPEGEngines: "jpeg-engines", devices.CapOFAEngines: "ofa-engines",
	} {
		out[counter] = resourceapi.Counter{Value: d.API.Capacity[name].Value}
	}
	for i := range d.Placement.Size {
		out[fmt.Sprintf("memory-slice-%d", d.Placement.Start+i)] = resourceapi.Counter{Value: *resource.NewQuantity(1, resource.BinarySI)}
	}
	return out
}

// slicesOf are the objects of a node's pools.
func slicesOf(node string, pools []pool) []*resourceapi.ResourceSlice {
	var out []*resourceapi.ResourceSlice
	for _, p := range pools {
		for i, s := range p.slices {
			out = append(out, &resourceapi.ResourceSlice{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%s-%03d", node, p.name, i)},
				Spec: resourceapi.ResourceSliceSpec{
					Driver: p.driver, NodeName: ptr.To(node), Devices: s.Devices, SharedCounters: s.SharedCounters,
					Pool: resourceapi.ResourcePool{Name: node + "-" + p.name, Generation: 1, ResourceSliceCount: int64(len(p.slices))},
				},
			})
		}
	}
	return out
}

// unit is a device that a claim can have while other claims have all other units of its node.
type unit struct {
	driver, pool, device string
	// consumed is what a plain claim consumes of it, if several claims may share it.
	consumed map[resourceapi.QualifiedName]resource.Quantity
}

// units are devices of a node, in the row's form, that can all be allocated at the same time.
func (r Row) units(m *Machine, node int) []unit {
	var out []unit
	for _, p := range r.publish(m, node) {
		taken := map[string]bool{} // memory slices
		for _, s := range p.slices {
			for _, d := range s.Devices {
				form := devices.Form("other")
				if kind := d.Attributes[devices.AttrType].StringValue; kind != nil {
					form = devices.Form(*kind)
				}
				if form != r.unit || (p.driver == other) != (r.unit == "other") || overlaps(d, taken) {
					continue
				}
				u := unit{driver: p.driver, pool: p.name, device: d.Name}
				if ptr.Deref(d.AllowMultipleAllocations, false) {
					u.consumed = map[resourceapi.QualifiedName]resource.Quantity{}
					for name, c := range d.Capacity {
						u.consumed[name] = *c.RequestPolicy.Default
					}
				}
				out = append(out, u)
			}
		}
	}
	return out
}

// overlaps marks a MIG placement's memory slices as used, or reports that one is used already.
func overlaps(d resourceapi.Device, taken map[string]bool) bool {
	var mine []string
	for _, draw := range d.ConsumesCounters {
		for name := range draw.Counters {
			if devices.IsMemorySlice(name) {
				mine = append(mine, draw.CounterSet+name)
			}
		}
	}
	if slices.ContainsFunc(mine, func(name string) bool { return taken[name] }) {
		return true
	}
	for _, name := range mine {
		taken[name] = true
	}
	return false
}

// without are pools without some of their devices.
func without(pools []pool, gone []unit) []pool {
	if len(gone) == 0 {
		return pools
	}
	var out []pool
	for _, p := range pools {
		left := pool{driver: p.driver, name: p.name}
		for _, s := range p.slices {
			s.Devices = slices.DeleteFunc(slices.Clone(s.Devices), func(d resourceapi.Device) bool {
				return slices.ContainsFunc(gone, func(u unit) bool { return u.pool == p.name && u.device == d.Name })
			})
			left.slices = append(left.slices, s)
		}
		out = append(out, left)
	}
	return out
}

// allocation is the allocation of some units of a node to a claim.
func allocation(node string, units []unit) *resourceapi.AllocationResult {
	out := &resourceapi.AllocationResult{}
	for i, u := range units {
		r := resourceapi.DeviceRequestAllocationResult{Request: "r", Driver: u.driver, Pool: node + "-" + u.pool, Device: u.device}
		if u.consumed != nil {
			r.ShareID, r.ConsumedCapacity = ptr.To(types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", i))), u.consumed
		}
		out.Devices.Results = append(out.Devices.Results, r)
	}
	return out
}
