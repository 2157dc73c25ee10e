package fabric

import "fmt"

// SliceFit reports how many equal slices one GPU holds.
type SliceFit struct {
	Slices        int64
	LimitedBy     string // memory, cores or split
	MemoryLeftMiB int64
	CoresLeft     int64
}

// coresPerGPU: cores are percent of a GPU.
const coresPerGPU = 100

// FitSlices computes how many slices of memoryMiB and cores percent a GPU of gpuMemoryMiB can hold, at most split of them. A slice
// of 0 cores uses none, but a GPU without free cores does not take a further slice.
func FitSlices(gpuMemoryMiB, memoryMiB, cores, split int64) (SliceFit, error) {
	switch {
	case gpuMemoryMiB <= 0:
		return SliceFit{}, fmt.Errorf("the GPU's memory is %d MiB: want more than 0", gpuMemoryMiB)
	case memoryMiB <= 0:
		return SliceFit{}, fmt.Errorf("a slice's memory is %d MiB: want more than 0", memoryMiB)
	case memoryMiB > gpuMemoryMiB:
		return SliceFit{}, fmt.Errorf("a slice of %d MiB is more than the GPU's %d MiB", memoryMiB, gpuMemoryMiB)
	case cores < 0 || cores > coresPerGPU:
		return SliceFit{}, fmt.Errorf("a slice has %d cores: want 0 to %d percent of a GPU", cores, coresPerGPU)
	case split <= 0:
		return SliceFit{}, fmt.Errorf("the split is %d: want at least 1 slice a GPU", split)
	}
	fit := SliceFit{Slices: gpuMemoryMiB / memoryMiB, LimitedBy: "memory"}
	if cores > 0 && coresPerGPU/cores < fit.Slices {
		fit.Slices, fit.LimitedBy = coresPerGPU/cores, "cores"
	}
	if split < fit.Slices {
		fit.Slices, fit.LimitedBy = split, "split"
	}
	fit.MemoryLeftMiB, fit.CoresLeft = gpuMemoryMiB-fit.Slices*memoryMiB, coresPerGPU-fit.Slices*cores
	return fit, nil
}
