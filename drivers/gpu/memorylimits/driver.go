package memorylimits

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Limit is a container's limit for one GPU's memory.
type Limit struct {
	// UUID is the GPU's.
	UUID string `json:"uuid"`
	// Bytes is how much may be allocated; it is also reserved.
	Bytes uint64 `json:"bytes"`
}

// Driver is NVIDIA's driver, which limits cgroups.
type Driver struct {
	// NVML is initialised.
	NVML    nvml.Interface
	Cgroups Tree
}

// The functions of NVML. go-nvml ends the process when it calls one that the library lacks, so they are looked up first.
const (
	setLimits = "nvmlDeviceSetMemoryLimits_v1"
	getLimits = "nvmlDeviceGetMemoryLimits_v1"
)

// has reports why the driver's library lacks the calls.
func (d Driver) has() error {
	for _, name := range []string{setLimits, getLimits} {
		if err := d.NVML.Extensions().LookupSymbol(name); err != nil {
			driver, _ := d.NVML.SystemGetDriverVersion() // empty where it is unknown
			return fmt.Errorf("the driver %s has no %s: it came with r615", driver, name)
		}
	}
	return nil
}

// Available reports why these GPUs, which are not in MIG mode, cannot be limited on this node; nil: they can.
func (d Driver) Available(uuids ...string) error {
	if err := d.has(); err != nil {
		return err
	}
	if err := d.Cgroups.Check(); err != nil {
		return err
	}
	for _, uuid := range uuids {
		gpu, err := d.gpu(uuid)
		if err != nil {
			return err
		}
		// Any cgroup will do: the result shows whether the GPU supports limits. Other errors are for the caller of Set.
		if _, ret := gpu.GetMemoryLimits_v1(d.Cgroups.Root); ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.ERROR_FUNCTION_NOT_FOUND {
			return fmt.Errorf("the driver does not limit the memory of GPU %s: %w", uuid, ret)
		}
	}
	return nil
}

func (d Driver) gpu(uuid string) (nvml.Device, error) {
	gpu, ret := d.NVML.DeviceGetHandleByUUID(uuid)
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("find GPU %s: %w", uuid, ret)
	}
	return gpu, nil
}

// Set limits a cgroup, given by its directory, to an amount of memory, and reserves that amount. Call it only where Available
// returns nil.
func (d Driver) Set(cgroup string, l Limit) error { return d.set(cgroup, l, l.Bytes) }

// GiveUp releases the reservation of a cgroup. Its maximum stays.
func (d Driver) GiveUp(cgroup string, l Limit) error { return d.set(cgroup, l, 0) }

func (d Driver) set(cgroup string, l Limit, reserved uint64) error {
	gpu, err := d.gpu(l.UUID)
	if err != nil {
		return err
	}
	if ret := gpu.SetMemoryLimits_v1(cgroup, reserved, l.Bytes); ret != nvml.SUCCESS {
		return fmt.Errorf("limit cgroup %s to %d bytes of GPU %s and reserve %d, by the driver: %w", cgroup, l.Bytes, l.UUID, reserved, ret)
	}
	return nil
}
