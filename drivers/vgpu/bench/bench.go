// Package bench is `gpufabric vgpu bench`: it measures the cost and accuracy of limits of a GPU's memory and cores on this node.
//
// It runs the same work in one process after another: without a limit, under this project's library, under the library with a limit of
// cores, and under NVIDIA's own driver if that can limit memory. The work consists of calls that a limit can slow down or stop: allocations
// with their frees, launches of an empty kernel and of a graph of empty kernels, and allocations up to the limit and above it.
//
// Then it measures cores: processes that always have GPU work, alone and two at a time, with percentages. Each is compared with a process
// without a limit in the same time. The benchmark makes its own order of processes on the GPU, with the plugins' code, because the node's
// order lends or not by the node's settings.
package bench

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpufabric.io/drivers/gpu/memorylimits"
)

// Options configure a measurement.
type Options struct {
	// NVML is the driver's library, initialised.
	NVML nvml.Interface
	// GPU is the UUID of the measured GPU; empty: the first.
	GPU string
	// CUDA is the driver's libcuda.so.1.
	CUDA string
	// Library is this project's libvgpu.so; empty: do not measure it.
	Library string
	// Cgroups is the cgroup directory for the driver's own limit.
	Cgroups memorylimits.Tree
	// Bytes is the memory limit.
	Bytes uint64
	// Seconds is the time for each percentage of the GPU's cores; 0: do not measure cores.
	Seconds uint
	// LoadAverage is the kernel's file with the machine's load, /proc/loadavg.
	LoadAverage string
	// Together are the percentages to measure.
	Together []Together
	// InUse measures cores even while other processes use the GPU.
	InUse bool
	// Progress gets a line for each measurement.
	Progress io.Writer
	// Repeats is the number of operations in a batch, Rounds the number of runs of each process.
	Repeats, Rounds uint
	// Program is this program; Arguments make it a worker.
	Program   string
	Arguments []string

	// libraries has links to the driver's other libraries.
	libraries string
}

// way is a way to limit a process, or none.
type way struct {
	name string
	// absent is the reason why it was not measured.
	absent error
	rounds []figures
}

// Result has the measurements.
type Result struct {
	gpu, product, driver, cuda, library string
	bytes                               uint64
	others                              int // processes that use the GPU
	ways                                []*way
	cores                               shares
}

// The ways.
const (
	noLimit   = "no limit"
	byLibrary = "library"
	byCores   = "library, cores"
	byDriver  = "driver"
)

// Run measures. It leaves out limits that the node does not have, and the table has the reason. If only cores could not be measured, it
// returns the other results with an error.
func Run(ctx context.Context, o Options) (*Result, error) {
	r, err := o.look()
	if err != nil {
		return nil, err
	}
	if o.libraries, err = gather(o.CUDA); err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(o.libraries) }() // links, in a directory for temporary files
	r.ways = []*way{{name: noLimit}, {name: byLibrary}, {name: byCores}, {name: byDriver}}
	o.progress("Measuring limits of memory, and launches")
	for range o.Rounds { // interleaved in each round, so that other load on the node slows all of them
		for _, w := range r.ways {
			if w.absent != nil {
				continue
			}
			got, err := o.once(ctx, w.name, r.gpu)
			if errors.Is(err, errAbsent) {
				w.absent = err
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", w.name, err)
			}
			w.rounds = append(w.rounds, got)
		}
	}
	if err := o.shares(ctx, r); err != nil {
		return r, fmt.Errorf("measure cores: %w", err)
	}
	return r, nil
}

// progress writes a line of progress.
func (o *Options) progress(what string) {
	if o.Progress != nil {
		_, _ = fmt.Fprintln(o.Progress, what) // an error of the progress writer does not end the measurement
	}
}

// look finds the GPU.
func (o *Options) look() (*Result, error) {
	r := &Result{gpu: o.GPU, bytes: o.Bytes}
	gpu, ret := o.NVML.DeviceGetHandleByIndex(0)
	if o.GPU != "" {
		gpu, ret = o.NVML.DeviceGetHandleByUUID(o.GPU)
	}
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("find the GPU %q: %w", o.GPU, ret)
	}
	if r.gpu, ret = gpu.GetUUID(); ret != nvml.SUCCESS {
		return nil, fmt.Errorf("find the GPU's UUID: %w", ret)
	}
	memory, ret := gpu.GetMemoryInfo()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("find how much memory GPU %s has: %w", r.gpu, ret)
	}
	if o.Bytes < 2*step || o.Bytes > memory.Free {
		return nil, fmt.Errorf("a limit of %d MiB of GPU %s, of which %d MiB are free: 4 MiB to the free memory are allowed", o.Bytes>>20, r.gpu,
			memory.Free>>20)
	}
	if mode, _, ret := gpu.GetMigMode(); ret == nvml.SUCCESS && mode == nvml.DEVICE_MIG_ENABLE {
		return nil, fmt.Errorf("GPU %s is divided by MIG, and its hardware keeps its instances apart: choose a GPU without MIG by --gpu", r.gpu)
	}
	processes, ret := gpu.GetComputeRunningProcesses()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("list the processes on GPU %s: %w", r.gpu, ret)
	}
	r.others = len(processes)
	r.product, _ = gpu.GetName()                  // for the reader only
	r.driver, _ = o.NVML.SystemGetDriverVersion() // as above
	if version, ret := o.NVML.SystemGetCudaDriverVersion(); ret == nvml.SUCCESS {
		r.cuda = fmt.Sprintf("%d.%d", version/1000, version%1000/10)
	}
	if content, err := os.ReadFile(o.Library); err == nil { // each process reports why it is not available
		r.library = fmt.Sprintf("%s (SHA-256 %.6x)", o.Library, sha256.Sum256(content))
	}
	return r, nil
}

// gather makes a directory with links to the driver's libraries that libcuda.so.1 loads by name, such as its compiler. The libraries' own
// directory may be a host's, with a C library that does not fit this program.
func gather(cuda string) (string, error) {
	directory, err := os.MkdirTemp("", "gpufabric-bench-")
	if err != nil {
		return "", fmt.Errorf("gather the driver's libraries: %w", err)
	}
	found, err := filepath.Glob(filepath.Join(filepath.Dir(cuda), "libnvidia-*.so.*"))
	for _, library := range found {
		err = errors.Join(err, os.Symlink(library, filepath.Join(directory, filepath.Base(library))))
	}
	if err != nil {
		return "", errors.Join(fmt.Errorf("gather the driver's libraries: %w", err), os.RemoveAll(directory))
	}
	return directory, nil
}

// errAbsent marks a limit that the node does not have.
var errAbsent = errors.New("not measured")
