package nvml

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/uuid"
)

// FabricState reports whether a GPU or a node has joined its NVLink fabric.
type FabricState string

// The fabric states.
const (
	// NoFabric: no multi-node NVLink fabric.
	NoFabric FabricState = "NoFabric"
	// Joining: the fabric manager has not finished yet; NVML has no event for its end.
	Joining FabricState = "Joining"
	// Joined: part of a clique.
	Joined FabricState = "Joined"
)

// GPUFabric is the fabric of one GPU (nvmlDeviceGetGpuFabricInfo).
type GPUFabric struct {
	Index int
	UUID  string
	State FabricState
	// Clique is "<ClusterUUID>.<CliqueID>" of a GPU that joined.
	Clique string
	// Err is set for a GPU that could not be read, or whose registration with the fabric failed.
	Err error
}

// Fabric is the fabric of all GPUs of a node.
type Fabric struct {
	GPUs []GPUFabric
}

// Fabric reads every GPU's fabric. The error is for the library as a whole; a single GPU's error is in its entry.
func (d *Driver) Fabric() (Fabric, error) {
	count, code := d.lib.DeviceGetCount()
	if err := check(code, "DeviceGetCount"); err != nil {
		return Fabric{}, err
	}
	fabric := Fabric{GPUs: make([]GPUFabric, 0, count)}
	for index := range count {
		fabric.GPUs = append(fabric.GPUs, d.gpuFabric(index))
	}
	return fabric, nil
}

func (d *Driver) gpuFabric(index int) GPUFabric {
	gpu := GPUFabric{Index: index, State: NoFabric}
	device, code := d.lib.DeviceGetHandleByIndex(index)
	if gpu.Err = check(code, "DeviceGetHandleByIndex(%d)", index); gpu.Err != nil {
		return gpu
	}
	if gpu.UUID, code = device.GetUUID(); code != nvml.SUCCESS {
		gpu.Err = check(code, "DeviceGetUUID(%d)", index)
		return gpu
	}
	info, code := device.GetGpuFabricInfo()
	// The GPU has no fabric, or the driver is older than fabrics.
	if code == nvml.ERROR_NOT_SUPPORTED || code == nvml.ERROR_FUNCTION_NOT_FOUND {
		return gpu
	}
	if gpu.Err = check(code, "DeviceGetGpuFabricInfo(%d)", index); gpu.Err != nil {
		return gpu
	}
	switch info.State {
	case nvml.GPU_FABRIC_STATE_NOT_STARTED, nvml.GPU_FABRIC_STATE_IN_PROGRESS:
		gpu.State = Joining
	case nvml.GPU_FABRIC_STATE_COMPLETED:
		if status := nvml.Return(info.Status); status != nvml.SUCCESS {
			gpu.Err = &Error{Call: fmt.Sprintf("fabric registration of GPU %d", index), Return: status}
			return gpu
		}
		// The fabric of a single HGX board ends at the board: it has no cluster.
		if info.ClusterUuid == [16]uint8{} {
			return gpu
		}
		gpu.State = Joined
		gpu.Clique = fmt.Sprintf("%s.%d", uuid.UUID(info.ClusterUuid), info.CliqueId)
	}
	return gpu
}

// InRack reports whether a GPU of the node is in a rack with NVLink switches of its own. Its platform then gives it the serial number of
// the rack's chassis (nvmlDeviceGetPlatformInfo). GPUs of an HGX board have none: B200 answers with an empty one, H100 and earlier do not
// support the call. It depends neither on the kind of GPU nor on the state of its fabric.
func (d *Driver) InRack() (bool, error) {
	if d.lib.Extensions().LookupSymbol("nvmlDeviceGetPlatformInfo") != nil {
		return false, nil // the driver is older than such GPUs, and calling it would end the process
	}
	count, code := d.lib.DeviceGetCount()
	if err := check(code, "DeviceGetCount"); err != nil {
		return false, err
	}
	for index := range count {
		device, code := d.lib.DeviceGetHandleByIndex(index)
		if code != nvml.SUCCESS {
			continue // Fabric reports it
		}
		info, code := device.GetPlatformInfo()
		if code == nvml.SUCCESS && info.ChassisSerialNumber != [16]uint8{} {
			return true, nil
		}
	}
	return false, nil
}

// ErrDisagree marks a node whose GPUs name different cliques.
var ErrDisagree = errors.New("the node's GPUs disagree on their NVLink clique")

// Clique is the node's clique: that of its GPUs, which must agree. It is empty with state NoFabric, and with Joining while a GPU is
// still joining. The error names the GPUs that disagree (errors.Is ErrDisagree) or that have errors.
func (f Fabric) Clique() (clique string, state FabricState, err error) {
	var troubled []error
	byClique := map[string][]string{}
	state = NoFabric
	for _, gpu := range f.GPUs {
		switch {
		case gpu.Err != nil:
			troubled = append(troubled, gpu.Err)
		case gpu.State == Joined:
			byClique[gpu.Clique] = append(byClique[gpu.Clique], gpu.UUID)
		case gpu.State == Joining:
			state = Joining
		}
	}
	switch {
	case len(byClique) > 1:
		return "", NoFabric, fmt.Errorf("%w: %s", ErrDisagree, describeCliques(byClique))
	case len(troubled) > 0 && (len(byClique) > 0 || state == Joining || len(troubled) == len(f.GPUs)):
		return "", NoFabric, errors.Join(troubled...)
	case state == Joining:
		return "", Joining, nil
	}
	for clique := range byClique {
		return clique, Joined, nil
	}
	return "", NoFabric, nil
}

func describeCliques(byClique map[string][]string) string {
	var parts []string
	for clique, gpus := range byClique {
		parts = append(parts, fmt.Sprintf("%s in %s", strings.Join(gpus, ", "), clique))
	}
	slices.Sort(parts)
	return strings.Join(parts, "; ")
}
