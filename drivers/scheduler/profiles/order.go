package profiles

import (
	"cmp"
	"math"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"

	"gpufabric.io/drivers/scheduler/cards"
)

// Names of the GPU driver, as existing DeviceClasses select it, and of the capacity that is a device's memory in bytes.
const (
	gpuDriver = "gpu.nvidia.com"
	memory    = "memory"
)

// share is a GPU's memory and its used part, in any form.
type share struct {
	used, total int64
	open        bool // a device of it is not tainted
}

func (s share) part() float64 {
	if s.total == 0 {
		return 0
	}
	return min(float64(s.used)/float64(s.total), 1)
}

// usage are the GPUs in use, by node and GPU.
type usage map[string]map[string]share

// percent is the mean used part of a node's memory, over the GPUs that are open to pods without tolerations; 0 for a node that is
// not in the account.
func (u usage) percent(node string) int64 {
	var sum, count float64
	for _, gpu := range u[node] {
		if gpu.open {
			sum, count = sum+gpu.part(), count+1
		}
	}
	if count == 0 {
		return 0
	}
	return int64(math.Round(100 * sum / count))
}

// order returns all ResourceSlices with the devices of the GPU driver's pools in the policy's order, and the use of their GPUs. The
// allocator goes by the slices' names, and within a slice by the devices' positions. So the devices of preferred GPUs get the first
// positions. A pool without use stays as it is.
func order(all []*resourceapi.ResourceSlice, allocated *structured.AllocatedState, policy cards.Policy) ([]*resourceapi.ResourceSlice,
	usage) {
	taken := given(allocated)
	pools := map[string][]int{} // indices of slices with devices, by pool
	for i, slice := range all {
		if slice.Spec.Driver == gpuDriver && len(slice.Spec.Devices) > 0 && taken[slice.Spec.Pool.Name] != nil {
			pools[slice.Spec.Pool.Name] = append(pools[slice.Spec.Pool.Name], i)
		}
	}
	shown, nodes := slices.Clone(all), usage{}
	for pool, indices := range pools {
		gpus := map[string]share{}
		slices.SortFunc(indices, func(a, b int) int { return cmp.Compare(all[a].Name, all[b].Name) })
		var devices []resourceapi.Device
		for _, i := range indices {
			measure(all[i], taken[pool], gpus)
			devices = append(devices, all[i].Spec.Devices...)
		}
		nodes[ptr.Deref(all[indices[0]].Spec.NodeName, "")] = gpus
		slices.SortStableFunc(devices, func(a, b resourceapi.Device) int {
			x, y := gpus[gpuOf(a.Name)].part(), gpus[gpuOf(b.Name)].part()
			if policy != cards.Spread {
				x, y = y, x
			}
			return cmp.Compare(x, y)
		})
		for _, i := range indices {
			slice := *all[i]
			slice.Spec.Devices, devices = devices[:len(all[i].Spec.Devices):len(all[i].Spec.Devices)], devices[len(all[i].Spec.Devices):]
			shown[i] = &slice
		}
	}
	return shown, nodes
}

// whole is the size of a device that one claim has alone.
const whole = -1

// given is the used memory of each of the GPU driver's devices, by pool and device.
func given(allocated *structured.AllocatedState) map[string]map[string]int64 {
	out := map[string]map[string]int64{}
	set := func(id structured.DeviceID, bytes int64) {
		if id.Driver.String() != gpuDriver {
			return
		}
		pool := id.Pool.String()
		if out[pool] == nil {
			out[pool] = map[string]int64{}
		}
		out[pool][id.Device.String()] = bytes
	}
	for id := range allocated.AllocatedDevices {
		set(id, whole)
	}
	for id, consumed := range allocated.AggregatedCapacity {
		var bytes int64
		if amount := consumed[memory]; amount != nil {
			bytes = amount.Value()
		}
		set(id, bytes)
	}
	return out
}

// measure adds a slice's devices to the account of their GPUs. The devices of one GPU follow one another.
func measure(slice *resourceapi.ResourceSlice, taken map[string]int64, gpus map[string]share) {
	all := slice.Spec.Devices
	for from := 0; from < len(all); {
		name := gpuOf(all[from].Name)
		gpu := gpus[name]
		for ; from < len(all) && gpuOf(all[from].Name) == name; from++ {
			gpu.add(&all[from], taken)
		}
		gpus[name] = gpu
	}
}

func (s *share) add(d *resourceapi.Device, taken map[string]int64) {
	capacity := d.Capacity[memory]
	bytes := capacity.Value.Value()
	s.total = max(s.total, bytes)
	if used := taken[d.Name]; used == whole {
		s.used += bytes
	} else {
		s.used += used
	}
	s.open = s.open || !slices.ContainsFunc(d.Taints, func(t resourceapi.DeviceTaint) bool {
		return t.Effect == resourceapi.DeviceTaintEffectNoSchedule || t.Effect == resourceapi.DeviceTaintEffectNoExecute
	})
}

// gpuOf is the common prefix of the names of one GPU's devices: gpu-<minor>, before the next dash.
func gpuOf(device string) string {
	minor, ok := strings.CutPrefix(device, "gpu-")
	if !ok {
		return device
	}
	minor, _, _ = strings.Cut(minor, "-")
	return "gpu-" + minor
}
