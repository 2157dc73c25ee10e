package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"gpufabric.io/drivers/gpu/limiter"
	"gpufabric.io/drivers/gpu/memorylimits"
)

// once runs one process.
func (o *Options) once(ctx context.Context, name, gpu string) (_ figures, err error) {
	todo := order{CUDA: o.CUDA, Most: o.Bytes, Repeats: o.Repeats}
	process := o.process(ctx, gpu)
	limit := limiter.Limit{UUID: gpu, Bytes: int64(o.Bytes)} //nolint:gosec // less than a GPU has
	switch name {
	case noLimit:
	case byCores:
		limit.Cores = 100 // the GPU is otherwise idle, so the gate is open
		places, err := o.seats(true)
		if err != nil {
			return figures{}, err
		}
		defer func() { err = errors.Join(err, places.end()) }()
		if todo.Seats, err = places.open("launches", limit); err != nil {
			return figures{}, err
		}
		fallthrough
	case byLibrary:
		defer removeEmpty(missing(stages()...))
		if err := o.preload(process, &todo, limit); err != nil {
			return figures{}, err
		}
	case byDriver:
		cgroup, remove, err := o.limit(gpu)
		if err != nil {
			return figures{}, err
		}
		got, err := start(ctx, process, todo, cgroup)
		return got, errors.Join(err, remove())
	}
	return start(ctx, process, todo, "")
}

// process is a worker that sees one GPU.
func (o *Options) process(ctx context.Context, gpu string) *exec.Cmd {
	process := exec.CommandContext(ctx, o.Program, o.Arguments...)
	process.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "LD_PRELOAD=") }),
		"CUDA_VISIBLE_DEVICES="+gpu, "LD_LIBRARY_PATH="+o.libraries)
	return process
}

// preload puts a worker under the library's limit.
func (o *Options) preload(process *exec.Cmd, todo *order, limit limiter.Limit) error {
	if o.Library == "" {
		return fmt.Errorf("%w: --limiter-library is empty", errAbsent)
	}
	if _, err := os.Stat(o.Library); err != nil {
		return fmt.Errorf("%w: find this project's library: %w", errAbsent, err)
	}
	text, err := limiter.Text([]limiter.Limit{limit}, true)
	if err != nil {
		return err
	}
	todo.Limits = string(text)
	process.Env = append(process.Env, "LD_PRELOAD="+o.Library)
	process.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	return nil
}

// unprivileged marks the error of a worker without the right to mount.
func unprivileged(process *exec.Cmd, err error) error {
	if process.SysProcAttr != nil && errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: its process needs mounts of its own, which takes CAP_SYS_ADMIN: %w", errAbsent, err)
	}
	return err
}

// stages are the directories over which the worker mounts its own.
func stages() []string { return []string{filepath.Dir(limiter.File), limiter.Region} }

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

// limit makes a cgroup with the driver's memory limit.
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
func start(ctx context.Context, process *exec.Cmd, todo order, cgroup string) (got figures, err error) {
	err = converse(ctx, process, func(in io.WriteCloser, out *json.Decoder) error {
		if cgroup != "" {
			err := os.WriteFile(filepath.Join(cgroup, "cgroup.procs"), fmt.Appendln(nil, process.Process.Pid), 0o600)
			if err != nil {
				return err
			}
		}
		if err := json.NewEncoder(in).Encode(todo); err != nil {
			return err
		}
		if err := in.Close(); err != nil {
			return err
		}
		if err := out.Decode(&got); err != nil {
			return fmt.Errorf("read the measurement: %w", err)
		}
		return nil
	})
	return got, err
}

// converse starts a worker, exchanges messages with it, and waits for its end. The worker ends with its standard input, and is killed when
// ctx ends.
func converse(ctx context.Context, process *exec.Cmd, talk func(in io.WriteCloser, out *json.Decoder) error) error {
	var wrong bytes.Buffer
	process.Stderr = &wrong
	in, err := process.StdinPipe()
	if err != nil {
		return err
	}
	out, err := process.StdoutPipe()
	if err != nil {
		return err
	}
	if err := process.Start(); err != nil {
		return fmt.Errorf("start a process that measures: %w", unprivileged(process, err))
	}
	stop := context.AfterFunc(ctx, func() { _ = process.Process.Kill() }) // its error does not matter here
	defer stop()
	err = talk(in, json.NewDecoder(out))
	_ = in.Close() // talk may have closed it
	if err != nil {
		_ = process.Process.Kill() // it may wait for a message that will not come; otherwise it has ended
	}
	failed := process.Wait()
	switch said := strings.TrimSpace(wrong.String()); {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case said != "" && (failed != nil || err != nil): // its own message describes the fault best
		return fmt.Errorf("a process that measures: %.500s", said)
	case err != nil:
		return err
	case failed != nil:
		return fmt.Errorf("a process that measures: %w", failed)
	}
	return nil
}
