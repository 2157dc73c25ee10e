package inventory

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// ComputeProfile is the compute instance profile that fills a GPU instance of that many compute slices; -1 for a number that no GPU
// has.
func ComputeProfile(slices int) int {
	switch slices {
	case 1:
		return nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE
	case 2:
		return nvml.COMPUTE_INSTANCE_PROFILE_2_SLICE
	case 3:
		return nvml.COMPUTE_INSTANCE_PROFILE_3_SLICE
	case 4:
		return nvml.COMPUTE_INSTANCE_PROFILE_4_SLICE
	case 6:
		return nvml.COMPUTE_INSTANCE_PROFILE_6_SLICE
	case 7:
		return nvml.COMPUTE_INSTANCE_PROFILE_7_SLICE
	case 8:
		return nvml.COMPUTE_INSTANCE_PROFILE_8_SLICE
	default:
		return -1
	}
}

// readMIG reads the modes, the profiles and their placements from NVML; nil where the GPU does not support MIG.
func readMIG(lib nvml.Interface, names device.Interface, g *GPU) (*MIG, error) {
	if !has(lib, "nvmlDeviceGetMigMode") {
		return nil, nil
	}
	current, pending, ret := g.Handle.GetMigMode()
	if ret == nvml.ERROR_NOT_SUPPORTED {
		return nil, nil
	}
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("query its mode: %w", ret)
	}
	m := &MIG{Enabled: current == nvml.DEVICE_MIG_ENABLE, Pending: pending == nvml.DEVICE_MIG_ENABLE}
	// A GPU that does not report its architecture keeps its mode.
	architecture, ret := g.Handle.GetArchitecture()
	m.NeedsReset = ret != nvml.SUCCESS || architecture == nvml.DEVICE_ARCH_AMPERE
	var problems []error
	for number := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		info, ret := g.Handle.GetGpuInstanceProfileInfo(number)
		if ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.ERROR_INVALID_ARGUMENT {
			continue
		}
		if ret != nvml.SUCCESS {
			problems = append(problems, fmt.Errorf("query profile %d: %w", number, ret))
			continue
		}
		name, err := profileName(lib, names, g, number, info)
		if err != nil {
			problems = append(problems, fmt.Errorf("name profile %d: %w", number, err))
			continue
		}
		placements, ret := g.Handle.GetGpuInstancePossiblePlacements(&info)
		if ret != nvml.SUCCESS {
			problems = append(problems, fmt.Errorf("query the placements of profile %s: %w", name, ret))
			continue
		}
		p := Profile{
			Name: name, Number: number, ID: int(info.Id), MaxInstances: int(info.InstanceCount), Slices: int(info.SliceCount),
			MemoryBytes: info.MemorySizeMB << 20, Multiprocessors: int(info.MultiprocessorCount), CopyEngines: int(info.CopyEngineCount),
			Decoders: int(info.DecoderCount), Encoders: int(info.EncoderCount), JPEGEngines: int(info.JpegCount), OFAEngines: int(info.OfaCount),
		}
		for _, where := range placements {
			p.Placements = append(p.Placements, Placement{Start: int(where.Start), Size: int(where.Size)})
			m.MemorySlices = max(m.MemorySlices, int(where.Start+where.Size))
		}
		slices.SortFunc(p.Placements, func(a, b Placement) int { return cmp.Compare(a.Start, b.Start) })
		m.Profiles = append(m.Profiles, p)
	}
	return m, errors.Join(problems...)
}

// profileName is the driver's own name for a profile. For drivers before 525, which give none, it is computed.
func profileName(lib nvml.Interface, names device.Interface, g *GPU, number int, info nvml.GpuInstanceProfileInfo) (string, error) {
	if own(g.Handle) && has(lib, "nvmlDeviceGetGpuInstanceProfileInfoV") {
		if v2, ret := g.Handle.GetGpuInstanceProfileInfoV(number).V2(); ret == nvml.SUCCESS {
			if name := strings.TrimPrefix(text(v2.Name[:]), "MIG "); name != "" {
				return name, nil
			}
		}
	}
	worked, err := names.NewMigProfile(number, ComputeProfile(int(info.SliceCount)), nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED,
		info.MemorySizeMB, g.MemoryBytes)
	if err != nil {
		return "", err
	}
	name := worked.GetInfo()
	name.GB = gigabytes(info.MemorySizeMB<<20, g.MemoryBytes)
	return name.String(), nil
}

// gigabytes is the size in a profile's name: the number of eighths of the GPU that is nearest to the instance's memory, times the
// GPU's memory in whole GiB.
func gigabytes(instance, gpu uint64) int {
	if gpu == 0 {
		return 0
	}
	eighths := math.Round(float64(instance) / float64(gpu) * 8)
	return int(math.Round(eighths / 8 * math.Ceil(float64(gpu)/(1<<30))))
}

// own reports whether a handle is go-nvml's own. go-nvml's handlers (functions whose names end in V) work only on those. For any other
// implementation of its interface it would call a library that is not loaded, which ends the process.
func own(handle nvml.Device) bool {
	return reflect.TypeOf(handle).PkgPath() == reflect.TypeFor[nvml.EventData]().PkgPath()
}

// text is a C string.
func text(chars []int8) string {
	var b []byte
	for _, c := range chars {
		if c == 0 {
			break
		}
		b = append(b, byte(c))
	}
	return string(b)
}
