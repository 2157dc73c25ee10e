// Package bench is `gpufabric vgpu bench`: it measures what limits of a GPU's memory and cores cost on this node, and how exact they are.
//
// It runs the same work in one process after another: without a limit, under this project's library, under the same with a limit of
// cores, and under NVIDIA's own driver where that can limit memory. The work is what a limit can slow down or stop: allocations with
// their frees, launches of an empty kernel and of a graph of such, and allocations up to the limit and above it.
//
// Then it measures cores: processes that always have work for the GPU, alone and two at a time, with percentages of it. What one did
// counts beside what one without a limit did in the same time. The turns are given by an arbiter of this program, which is the plugins':
// theirs serves the containers of this node alone, and lends or not as this node is set.
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

// Options say what is measured.
type Options struct {
	// NVML is the driver's, initialised.
	NVML nvml.Interface
	// GPU is the UUID of the measured GPU; empty: the first.
	GPU string
	// CUDA is the driver's libcuda.so.1.
	CUDA string
	// Library is this project's libvgpu.so; empty: it is not measured.
	Library string
	// Cgroups is where the driver's own limit is set.
	Cgroups memorylimits.Tree
	// Bytes is the limit.
	Bytes uint64
	// Seconds is how long each percentage of the GPU's cores is measured; 0: none is.
	Seconds uint
	// LoadAverage is the kernel's file with the machine's load, /proc/loadavg.
	LoadAverage string
	// Together are the percentages that are measured.
	Together []Together
	// InUse has cores measured beside other processes that use the GPU.
	InUse bool
	// Progress is told what is measured, a line each time.
	Progress io.Writer
	// Repeats is how often each operation runs in a batch, Rounds how often each process runs.
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
	// absent says why it was not measured.
	absent error
	rounds []figures
}

// Result is what was measured.
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
	inTurns   = "library, cores"
	byDriver  = "driver"
)

// Run measures. It leaves out a way to limit that the node does not have, and the table says why. Where only cores could not be
// measured, it returns an error with the rest.
func Run(ctx context.Context, o Options) (*Result, error) {
	r, err := o.look()
	if err != nil {
		return nil, err
	}
	if o.libraries, err = gather(o.CUDA); err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(o.libraries) }() // links, in a directory for temporary files
	r.ways = []*way{{name: noLimit}, {name: byLibrary}, {name: inTurns}, {name: byDriver}}
	o.tell("Measuring limits of memory, and launches")
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

// tell says what is done now.
func (o *Options) tell(what string) {
	if o.Progress != nil {
		_, _ = fmt.Fprintln(o.Progress, what) // the measurement goes on whoever reads it
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
		return nil, fmt.Errorf("a limit of %d MiB of GPU %s, of which %d MiB are free: 4 to that many are allowed", o.Bytes>>20, r.gpu,
			memory.Free>>20)
	}
	if mode, _, ret := gpu.GetMigMode(); ret == nvml.SUCCESS && mode == nvml.DEVICE_MIG_ENABLE {
		return nil, fmt.Errorf("GPU %s is divided by MIG, and its hardware keeps its instances apart: choose a GPU without MIG by --gpu", r.gpu)
	}
	processes, ret := gpu.GetComputeRunningProcesses()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("find out who uses GPU %s: %w", r.gpu, ret)
	}
	r.others = len(processes)
	r.product, _ = gpu.GetName()                  // these are for the reader alone
	r.driver, _ = o.NVML.SystemGetDriverVersion() // as above
	if version, ret := o.NVML.SystemGetCudaDriverVersion(); ret == nvml.SUCCESS {
		r.cuda = fmt.Sprintf("%d.%d", version/1000, version%1000/10)
	}
	if content, err := os.ReadFile(o.Library); err == nil { // each process says why it cannot be had
		r.library = fmt.Sprintf("%s (SHA-256 %.6x)", o.Library, sha256.Sum256(content))
	}
	return r, nil
}

// gather makes a directory with links to the driver's libraries that libcuda.so.1 loads by name, such as its compiler. Their own
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

// errAbsent marks a way that the node does not have.
var errAbsent = errors.New("not measured")
