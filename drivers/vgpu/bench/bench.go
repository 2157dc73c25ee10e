// Package bench is `gpufabric vgpu bench`: it measures what a limit of a GPU's memory costs on this node, and how exact it is.
//
// It runs the same work in one process after another: without a limit, under this project's library, and under NVIDIA's own driver
// where that can limit memory. The work is what a limit can slow down or stop: allocations with their frees, launches of an empty
// kernel, and allocations up to the limit and above it. It does not measure cores.
package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpufabric.io/drivers/gpu/limiter"
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
	gpu, product, driver string
	bytes                uint64
	ways                 []*way
}

// Run measures. It leaves out a way to limit memory that the node does not have, and the table says why.
func Run(ctx context.Context, o Options) (*Result, error) {
	r, err := o.look()
	if err != nil {
		return nil, err
	}
	if o.libraries, err = gather(o.CUDA); err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(o.libraries) }() // links, in a directory for temporary files
	without, library, native := &way{name: "no limit"}, &way{name: "library"}, &way{name: "driver"}
	r.ways = []*way{without, library, native}
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
	return r, nil
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
	r.product, _ = gpu.GetName()                  // for the reader alone
	r.driver, _ = o.NVML.SystemGetDriverVersion() // for the reader alone
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

// once runs one process.
func (o *Options) once(ctx context.Context, name, gpu string) (figures, error) {
	todo := order{CUDA: o.CUDA, Most: o.Bytes, Repeats: o.Repeats}
	process := exec.CommandContext(ctx, o.Program, o.Arguments...)
	process.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "LD_PRELOAD=") }),
		"CUDA_VISIBLE_DEVICES="+gpu, "LD_LIBRARY_PATH="+o.libraries)
	switch name {
	case "library":
		if _, err := os.Stat(o.Library); err != nil {
			return figures{}, fmt.Errorf("%w: %w", errAbsent, err)
		}
		text, err := limiter.Text([]limiter.Limit{{UUID: gpu, Bytes: int64(o.Bytes)}}, true) //nolint:gosec // less than a GPU has
		if err != nil {
			return figures{}, err
		}
		todo.Limits = string(text)
		process.Env = append(process.Env, "LD_PRELOAD="+o.Library)
		process.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		defer removeEmpty(missing(stages()...))
	case "driver":
		cgroup, remove, err := o.limit(gpu)
		if err != nil {
			return figures{}, err
		}
		got, err := start(process, todo, cgroup)
		return got, errors.Join(err, remove())
	}
	got, err := start(process, todo, "")
	if name == "library" && errors.Is(err, fs.ErrPermission) {
		err = fmt.Errorf("%w: its process needs mounts of its own, which takes CAP_SYS_ADMIN: %w", errAbsent, err)
	}
	return got, err
}

// stages are the directories over which the worker mounts its own.
func stages() []string { return []string{filepath.Dir(limiter.File), limiter.Accounts} }

func missing(directories ...string) (out []string) {
	for _, directory := range directories {
		if _, err := os.Lstat(directory); errors.Is(err, fs.ErrNotExist) {
			out = append(out, directory)
		}
	}
	return out
}

// removeEmpty removes the mount points that a worker made. It leaves directories with content, or that the worker did not make.
func removeEmpty(directories []string) {
	for _, directory := range directories {
		_ = os.Remove(directory)
	}
}

// limit makes a cgroup, and lets the driver limit it.
func (o *Options) limit(gpu string) (cgroup string, remove func() error, err error) {
	driver, limit := memorylimits.Driver{NVML: o.NVML, Cgroups: o.Cgroups}, memorylimits.Limit{UUID: gpu, Bytes: o.Bytes}
	if err := driver.Available(gpu); err != nil {
		return "", nil, fmt.Errorf("%w: %w", errAbsent, err)
	}
	own, err := o.Cgroups.Own()
	if err != nil {
		return "", nil, err
	}
	if cgroup, err = os.MkdirTemp(filepath.Join(o.Cgroups.Root, own), "gpufabric-bench-"); err != nil {
		return "", nil, fmt.Errorf("make a cgroup: %w", err)
	}
	if err := driver.Set(cgroup, limit); err != nil {
		return "", nil, errors.Join(err, os.Remove(cgroup))
	}
	return cgroup, func() error {
		return errors.Join(driver.GiveUp(cgroup, limit), os.Remove(cgroup))
	}, nil
}

// start runs a worker in a cgroup, and returns its measurements.
func start(process *exec.Cmd, todo order, cgroup string) (got figures, err error) {
	var said, wrong bytes.Buffer
	process.Stdout, process.Stderr = &said, &wrong
	in, err := process.StdinPipe()
	if err != nil {
		return got, err
	}
	if err := process.Start(); err != nil {
		return got, fmt.Errorf("start a process that measures: %w", err)
	}
	if cgroup != "" {
		err = os.WriteFile(filepath.Join(cgroup, "cgroup.procs"), fmt.Appendln(nil, process.Process.Pid), 0o600)
	}
	if err == nil {
		err = json.NewEncoder(in).Encode(todo)
	}
	err = errors.Join(err, in.Close()) // without an order it ends
	if failed := process.Wait(); failed != nil {
		err = errors.Join(err, fmt.Errorf("%w: %.500s", failed, wrong.String()))
	}
	if err != nil {
		return got, err
	}
	if err := json.Unmarshal(said.Bytes(), &got); err != nil {
		return got, fmt.Errorf("read what was measured: %w", err)
	}
	return got, nil
}
