package passthrough

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"gpufabric.io/drivers/hardware/pci"
)

// InUseError is a GPU, or its group of VFIO, that processes have open. The kernel's write to unbind would not return before they
// close it: nv_pci_remove of NVIDIA's driver waits for its usage count, and vfio_unregister_group_dev (drivers/vfio/vfio_main.c) for
// the virtual machine.
type InUseError struct {
	GPU   pci.Address
	Users []Process
}

// Process is one that has a device open.
type Process struct {
	PID  int
	Name string // as /proc/PID/comm has it
}

func (e *InUseError) Error() string {
	words := make([]string, len(e.Users))
	for i, u := range e.Users {
		words[i] = fmt.Sprintf("%s (process %d)", u.Name, u.PID)
	}
	return fmt.Sprintf("GPU %s is open in %s: it changes its driver once they have closed it", e.GPU, strings.Join(words, ", "))
}

// maxUsers bounds the processes that an error names.
const maxUsers = 5

// users returns the processes that have one of the files open. A file is below Dev, where it may not exist. Processes of other PID
// namespaces are seen in HostProc only.
func (p Places) users(ctx context.Context, files ...string) ([]Process, error) {
	var numbers []uint64
	for _, f := range files {
		var s syscall.Stat_t
		if err := syscall.Stat(filepath.Join(p.Dev, f), &s); err == nil && s.Mode&syscall.S_IFMT == syscall.S_IFCHR {
			numbers = append(numbers, s.Rdev)
		}
	}
	entries, err := os.ReadDir(p.HostProc)
	switch {
	case ended(err):
		return nil, fmt.Errorf("%w: %w (--host-proc is the node's /proc)", errUnseen, err)
	case err != nil:
		return nil, fmt.Errorf("look for processes that use the GPU: %w", err)
	}
	var out []Process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if len(out) == maxUsers {
			break
		}
		user, err := p.opens(e.Name(), files, numbers)
		if err != nil {
			return nil, fmt.Errorf("look for processes that use the GPU: %w", err)
		}
		if !user {
			continue
		}
		name, err := os.ReadFile(filepath.Join(p.HostProc, e.Name(), "comm"))
		switch {
		case ended(err):
			continue
		case err != nil:
			return nil, fmt.Errorf("look for processes that use the GPU: %w", err)
		}
		out = append(out, Process{PID: pid, Name: strings.TrimSpace(string(name))})
	}
	return out, nil
}

// errUnseen is wrapped by the error for a node whose processes cannot be seen at all.
var errUnseen = errors.New("the processes that use the GPU cannot be listed")

// ended reports whether an error of a file of /proc or sysfs means that a process, a device or a mount does not exist, or is never
// readable by this process. Any other error, such as EMFILE, is no answer: the process may have the GPU open.
func ended(err error) bool {
	for _, absent := range []error{syscall.ENOENT, syscall.ESRCH, syscall.EACCES, syscall.EPERM} {
		if errors.Is(err, absent) {
			return true
		}
	}
	return false
}

// opens reports whether a process has one of the files, or a character device of one of the numbers, open.
func (p Places) opens(pid string, files []string, numbers []uint64) (bool, error) {
	dir := filepath.Join(p.HostProc, pid, "fd")
	descriptors, err := os.ReadDir(dir)
	if err != nil && !ended(err) {
		return false, err
	}
	for _, d := range descriptors {
		path := filepath.Join(dir, d.Name())
		target, err := os.Readlink(path)
		switch {
		case ended(err):
			continue // it has closed the file
		case err != nil:
			return false, err
		case slices.ContainsFunc(files, func(f string) bool { return target == filepath.Join("/dev", f) }):
			return true, nil
		case !strings.HasPrefix(target, "/") || len(numbers) == 0 || !strings.Contains(target, "/nvidia") && !strings.Contains(target, "/vfio"):
			continue // a socket, a pipe, another file
		}
		var s syscall.Stat_t
		if err := syscall.Stat(path, &s); err != nil && !ended(err) {
			return false, &os.PathError{Op: "stat", Path: path, Err: err}
		} else if err == nil && s.Mode&syscall.S_IFMT == syscall.S_IFCHR && slices.Contains(numbers, s.Rdev) {
			return true, nil
		}
	}
	return false, nil
}

// free returns the processes that keep the GPU's present driver from releasing it, as an error.
func (p Places) free(ctx context.Context, gpu pci.Address, group int) error {
	var files []string
	switch driver, err := p.driverOf(gpu); {
	case err != nil:
		return err
	case passes(driver):
		nodes, err := p.nodesOf(gpu)
		if err != nil {
			return err
		}
		files = []string{fmt.Sprintf("vfio/%d", group)}
		for _, name := range nodes {
			files = append(files, filepath.Join("vfio/devices", name))
		}
	default:
		minor, err := p.information(gpu, "Device Minor") // the N of /dev/nvidiaN
		if err != nil {
			return err
		}
		if minor != "" {
			files = append(files, "nvidia"+minor)
		}
	}
	if len(files) == 0 {
		return nil
	}
	found, err := p.users(ctx, files...)
	if err != nil || len(found) == 0 {
		return err
	}
	return &InUseError{GPU: gpu, Users: found}
}

// driverOf is the driver of a function; empty: it has none.
func (p Places) driverOf(a pci.Address) (string, error) {
	target, err := os.Readlink(p.function(a, "driver"))
	if errors.Is(err, os.ErrNotExist) {
		if _, gone := os.Lstat(p.function(a, "")); gone != nil {
			return "", fmt.Errorf("PCI function %s is no longer on the bus", a)
		}
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the driver of %s: %w", a, err)
	}
	return filepath.Base(target), nil
}

// overrideOf is the driver that a function is kept to; empty: none. The kernel writes "(null)" for none
// (drivers/pci/pci-sysfs.c, driver_override_show).
func (p Places) overrideOf(a pci.Address) (string, error) {
	text, err := os.ReadFile(p.function(a, "driver_override"))
	if err != nil {
		return "", fmt.Errorf("read the driver override of %s: %w", a, err)
	}
	if name := strings.TrimSpace(string(text)); name != "(null)" {
		return name, nil
	}
	return "", nil
}

// nodesOf are the names of a function's nodes below /dev/vfio/devices, which kernels from 6.6 have (drivers/vfio/device_cdev.c).
func (p Places) nodesOf(a pci.Address) ([]string, error) {
	entries, err := os.ReadDir(p.function(a, "vfio-dev"))
	if err != nil && !ended(err) {
		return nil, fmt.Errorf("look for the device nodes of %s: %w", a, err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out, nil
}
