// Package partition makes and removes MIG instances through NVML: a GPU instance at an exact placement with one compute instance
// that fills it.
//
// The package does not take locks: the caller must not make two changes of one GPU at once. NVML calls cannot be interrupted and may take
// seconds.
package partition

import (
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpufabric.io/drivers/gpu/inventory"
)

// Instance is an existing GPU instance.
type Instance struct {
	// Profile is the driver's profile ID. Start and Size are the memory slices that the instance covers.
	Profile, Start, Size int
	// ID is the GPU instance's ID in its GPU.
	ID int
	// Compute is the ID of the compute instance that fills it; -1 where there is none, or several.
	Compute int
	// UUID is the MIG device's, empty without a compute instance.
	UUID string
}

// Whole reports whether a container can use the instance.
func (i Instance) Whole() bool { return i.Compute >= 0 }

// Overlaps reports whether the instance and a placement share a memory slice.
func (i Instance) Overlaps(at inventory.Placement) bool {
	return i.Start < at.Start+at.Size && at.Start < i.Start+i.Size
}

// List returns every existing instance of a GPU; none where its MIG mode is off.
func List(g *inventory.GPU) ([]Instance, error) {
	if g.MIG == nil {
		return nil, nil
	}
	current, _, ret := g.Handle.GetMigMode()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("%s: query its MIG mode: %w", g.UUID, ret)
	}
	if current != nvml.DEVICE_MIG_ENABLE {
		return nil, nil
	}
	var out []Instance
	for _, p := range g.MIG.Profiles {
		handles, err := instances(g, p)
		if err != nil {
			return nil, err
		}
		for _, h := range handles {
			i, err := describe(g, p, h)
			if err != nil {
				return nil, err
			}
			out = append(out, i)
		}
	}
	return out, nil
}

func instances(g *inventory.GPU, p inventory.Profile) ([]nvml.GpuInstance, error) {
	info, ret := g.Handle.GetGpuInstanceProfileInfo(p.Number)
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("%s: query MIG profile %s: %w", g.UUID, p.Name, ret)
	}
	handles, ret := g.Handle.GetGpuInstances(&info)
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("%s: list MIG instances of profile %s: %w", g.UUID, p.Name, ret)
	}
	return handles, nil
}

func describe(g *inventory.GPU, p inventory.Profile, h nvml.GpuInstance) (Instance, error) {
	info, ret := h.GetInfo()
	if ret != nvml.SUCCESS {
		return Instance{}, fmt.Errorf("%s: describe a MIG instance of profile %s: %w", g.UUID, p.Name, ret)
	}
	i := Instance{Profile: p.ID, Start: int(info.Placement.Start), Size: int(info.Placement.Size), ID: int(info.Id), Compute: -1}
	compute, err := computeInstances(g, p, h)
	if err != nil {
		return i, err
	}
	if len(compute) != 1 {
		return i, nil
	}
	ci, ret := compute[0].GetInfo()
	if ret != nvml.SUCCESS {
		return i, fmt.Errorf("%s: describe the compute instance of MIG instance %d: %w", g.UUID, i.ID, ret)
	}
	i.Compute = int(ci.Id)
	i.UUID, err = uuidOf(g, i.ID, i.Compute)
	return i, err
}

// computeInstances lists the compute instances of every profile in a GPU instance.
func computeInstances(g *inventory.GPU, p inventory.Profile, h nvml.GpuInstance) ([]nvml.ComputeInstance, error) {
	var out []nvml.ComputeInstance
	for number := range nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		info, ret := h.GetComputeInstanceProfileInfo(number, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		if ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.ERROR_INVALID_ARGUMENT {
			continue
		}
		if ret != nvml.SUCCESS {
			return nil, fmt.Errorf("%s: query compute profile %d of %s: %w", g.UUID, number, p.Name, ret)
		}
		found, ret := h.GetComputeInstances(&info)
		if ret != nvml.SUCCESS {
			return nil, fmt.Errorf("%s: list compute instances of %s: %w", g.UUID, p.Name, ret)
		}
		out = append(out, found...)
	}
	return out, nil
}

// uuidOf finds the MIG device of a GPU instance and compute instance.
func uuidOf(g *inventory.GPU, gpuInstance, computeInstance int) (string, error) {
	count, ret := g.Handle.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		return "", fmt.Errorf("%s: query its number of MIG devices: %w", g.UUID, ret)
	}
	for index := range count {
		device, ret := g.Handle.GetMigDeviceHandleByIndex(index)
		if ret == nvml.ERROR_NOT_FOUND || ret == nvml.ERROR_INVALID_ARGUMENT {
			continue
		}
		if ret != nvml.SUCCESS {
			return "", fmt.Errorf("%s: query MIG device %d: %w", g.UUID, index, ret)
		}
		gi, ret := device.GetGpuInstanceId()
		if ret != nvml.SUCCESS || gi != gpuInstance {
			continue
		}
		ci, ret := device.GetComputeInstanceId()
		if ret != nvml.SUCCESS || ci != computeInstance {
			continue
		}
		uuid, ret := device.GetUUID()
		if ret != nvml.SUCCESS {
			return "", fmt.Errorf("%s: query the UUID of MIG device %d: %w", g.UUID, index, ret)
		}
		return uuid, nil
	}
	return "", fmt.Errorf("%s: no MIG device for GPU instance %d, compute instance %d", g.UUID, gpuInstance, computeInstance)
}

// At finds the instance of a profile at a start.
func At(standing []Instance, profile, start int) (Instance, bool) {
	for _, i := range standing {
		if i.Profile == profile && i.Start == start {
			return i, true
		}
	}
	return Instance{}, false
}

// Create makes an instance of a profile at a placement, or leaves nothing behind. It uses an existing instance of that form. A GPU
// instance that a crash left without its compute instance gets one.
func Create(g *inventory.GPU, p inventory.Profile, at inventory.Placement) (Instance, error) {
	handles, err := instances(g, p)
	if err != nil {
		return Instance{}, err
	}
	for _, h := range handles {
		i, err := describe(g, p, h)
		if err != nil {
			return Instance{}, err
		}
		if i.Start != at.Start {
			continue
		}
		if i.Whole() {
			return i, nil
		}
		return fill(g, p, h)
	}
	info, ret := g.Handle.GetGpuInstanceProfileInfo(p.Number)
	if ret != nvml.SUCCESS {
		return Instance{}, fmt.Errorf("%s: query MIG profile %s: %w", g.UUID, p.Name, ret)
	}
	place := nvml.GpuInstancePlacement{Start: uint32(at.Start), Size: uint32(at.Size)} //nolint:gosec // memory slices, in single digits
	h, ret := g.Handle.CreateGpuInstanceWithPlacement(&info, &place)
	if ret != nvml.SUCCESS {
		return Instance{}, fmt.Errorf("%s: make a MIG instance %s at memory slice %d: %w", g.UUID, p.Name, at.Start, ret)
	}
	i, err := fill(g, p, h)
	if err == nil {
		return i, nil
	}
	if undo := remove(g, p, h); undo != nil {
		return Instance{}, errors.Join(err, fmt.Errorf("remove the incomplete MIG instance: %w: %w", ErrLeft, undo))
	}
	return Instance{}, err
}

// ErrLeft is wrapped by Create's error where a part of the instance is left behind.
var ErrLeft = errors.New("a GPU instance remains")

// fill makes the compute instance that fills a GPU instance.
func fill(g *inventory.GPU, p inventory.Profile, h nvml.GpuInstance) (Instance, error) {
	info, ret := h.GetComputeInstanceProfileInfo(inventory.ComputeProfile(p.Slices), nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
	if ret != nvml.SUCCESS {
		return Instance{}, fmt.Errorf("%s: query the compute profile of %s: %w", g.UUID, p.Name, ret)
	}
	if _, ret := h.CreateComputeInstance(&info); ret != nvml.SUCCESS {
		return Instance{}, fmt.Errorf("%s: make the compute instance of a MIG instance %s: %w", g.UUID, p.Name, ret)
	}
	i, err := describe(g, p, h)
	if err == nil && !i.Whole() {
		err = fmt.Errorf("%s: the compute instance of a MIG instance %s did not appear", g.UUID, p.Name)
	}
	return i, err
}

// ErrBusy is wrapped by Destroy's error while a process still uses the instance.
var ErrBusy = errors.New("a process still uses it")

// Destroy removes the instance of a profile at a start, with its compute instances. A missing instance is no error.
func Destroy(g *inventory.GPU, p inventory.Profile, start int) error {
	current, _, ret := g.Handle.GetMigMode()
	if ret == nvml.SUCCESS && current != nvml.DEVICE_MIG_ENABLE {
		return nil
	}
	handles, err := instances(g, p)
	if err != nil {
		return err
	}
	for _, h := range handles {
		info, ret := h.GetInfo()
		if ret != nvml.SUCCESS {
			return fmt.Errorf("%s: describe a MIG instance of profile %s: %w", g.UUID, p.Name, ret)
		}
		if int(info.Placement.Start) == start {
			return remove(g, p, h)
		}
	}
	return nil
}

func remove(g *inventory.GPU, p inventory.Profile, h nvml.GpuInstance) error {
	compute, err := computeInstances(g, p, h)
	if err != nil {
		return err
	}
	for _, ci := range compute {
		if err := removed(ci.Destroy()); err != nil {
			return fmt.Errorf("%s: remove the compute instance of a MIG instance %s: %w", g.UUID, p.Name, err)
		}
	}
	if err := removed(h.Destroy()); err != nil {
		return fmt.Errorf("%s: remove a MIG instance %s: %w", g.UUID, p.Name, err)
	}
	return nil
}

func removed(ret nvml.Return) error {
	switch ret {
	case nvml.SUCCESS, nvml.ERROR_NOT_FOUND:
		return nil
	case nvml.ERROR_IN_USE:
		return fmt.Errorf("%w (%w)", ErrBusy, ret)
	default:
		return ret
	}
}
