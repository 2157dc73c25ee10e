package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/hardware/driver"
	hardware "gpufabric.io/drivers/hardware/nvml"
)

// machine has the places to read, and the results of the first steps.
type machine struct {
	search             driver.Search
	at                 driver.Location
	proc, sys          string
	standIn, out, self string
	library            nvml.Interface // nil until NVML started
	node               *inventory.Node
}

// step is one check of the machine.
type step struct {
	name  string
	limit time.Duration
	// changes: the step changes a setting of a GPU while it runs, and restores it.
	changes bool
	run     func(context.Context, *machine) result
}

// steps are in the order in which they build on each other. Each is bounded, all of them by less than the program's own limit.
func steps() []step {
	return []step{
		{name: "driver", limit: 30 * time.Second, run: findDriver},
		{name: "inventory", limit: time.Minute, run: readInventory},
		{name: "profile", limit: time.Minute, run: compareProfile},
		{name: "cdi", limit: time.Minute, run: findEdits},
		{name: "xid", limit: 10 * time.Second, run: registerEvents},
		{name: "nvlink", limit: 10 * time.Second, run: readLinks},
		{name: "fabric", limit: 10 * time.Second, run: readFabric},
		{name: "cuda", limit: 30 * time.Second, run: compareCUDA},
		{name: "time slice", limit: 30 * time.Second, changes: true, run: setTimeSlice},
		{name: "mps", limit: time.Minute, run: shareByMPS},
		{name: "mig", limit: 2 * time.Minute, changes: true, run: partitionGPU},
	}
}

// errNoNVML is why a step cannot run where NVML did not start.
var errNoNVML = errors.New("NVML did not start, see the steps driver and inventory")

func (m *machine) close() {
	if m.library != nil {
		_ = m.library.Shutdown() // the process ends
	}
}

// findDriver reports which driver is installed and which is loaded.
func findDriver(_ context.Context, m *machine) result {
	if m.at.Library == "" {
		return result{state: failed, text: fmt.Sprintf("no %s below %s in any of %s; is the driver installed, and is -driver-root right?",
			driver.Library, m.search.Roots[0].Path, strings.Join(driver.LibraryDirs(), ", "))}
	}
	version, err := os.ReadFile(filepath.Join(m.proc, "driver/nvidia/version"))
	if err != nil {
		return refused(fmt.Errorf("%s is installed, but the kernel has no driver loaded: %w", m.at.Library, err))
	}
	loaded, _, _ := strings.Cut(string(version), "\n")
	_, installed, _ := strings.Cut(filepath.Base(m.at.Library), ".so.")
	if !slices.Contains(strings.Fields(loaded), installed) {
		return result{state: failed, text: fmt.Sprintf("the library %s is of another version than the kernel's driver: %s", m.at.Library, loaded)}
	}
	return fine("%s; device nodes in %s; %s", m.at.Library, m.at.Dev.Path, strings.Join(strings.Fields(loaded), " "))
}

// readInventory is the GPU driver's own reading of the node.
func readInventory(ctx context.Context, m *machine) result {
	library := hardware.Load(m.search)
	if r := library.Init(); r != nvml.SUCCESS {
		return refused(fmt.Errorf("NVML does not start: %w", r))
	}
	m.library = library
	locate, err := inventory.Locator(ctx, m.sys)
	if err != nil {
		return refused(fmt.Errorf("look for GPUs in %s: %w", m.sys, err))
	}
	m.node, err = inventory.Reader{NVML: library, Locate: locate}.Read()
	if err != nil {
		return refused(err)
	}
	if len(m.node.GPUs) == 0 {
		return result{state: failed, text: "NVML counts no GPU that could be read", more: sentences(m.node.Problems)}
	}
	var lines []string
	for _, g := range m.node.GPUs {
		mig := "no MIG"
		if g.MIG != nil {
			mig = fmt.Sprintf("MIG %t, %d profiles", g.MIG.Enabled, len(g.MIG.Profiles))
		}
		lines = append(lines, fmt.Sprintf("GPU %d: %s, minor %d, %s, NUMA node %d, %d MiB, compute capability %d.%d, %s", g.Index, g.ProductName,
			g.Minor,
			g.Place.BusID, g.Place.NUMANode, g.MemoryBytes>>20, g.ComputeCapability[0], g.ComputeCapability[1], mig))
	}
	if len(m.node.Problems) > 0 {
		return result{state: failed, text: "what could not be read:", more: append(sentences(m.node.Problems), lines...)}
	}
	return result{state: ok, text: fmt.Sprintf("%d GPUs, driver %s, CUDA %d.%d", len(m.node.GPUs), m.node.DriverVersion,
		m.node.CUDAVersion/1000,
		m.node.CUDAVersion%1000/10), more: lines}
}

// command is one of the driver's programs, with the driver's own libraries.
func (m *machine) command(ctx context.Context, name string, args ...string) (*exec.Cmd, error) {
	program, err := m.at.Root.Program(name)
	if err != nil {
		return nil, fmt.Errorf("no %s in the driver's root %s: %w", name, m.at.Root.Path, err)
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Args[0] = name
	cmd.Env = os.Environ()
	if m.at.Root.Path != "/" {
		cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+filepath.Dir(m.at.Library))
	}
	cmd.WaitDelay = 5 * time.Second
	return cmd, nil
}

// smi runs nvidia-smi to its end.
func (m *machine) smi(ctx context.Context, args ...string) (string, error) {
	const name = "nvidia-smi"
	cmd, err := m.command(ctx, name, args...)
	if err != nil {
		return "", err
	}
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(complaint.String()+out.String()))
	}
	return out.String(), nil
}

func sentences(errs []error) []string {
	var all []string
	for _, err := range errs {
		all = append(all, strings.Join(strings.Fields(err.Error()), " "))
	}
	return all
}
