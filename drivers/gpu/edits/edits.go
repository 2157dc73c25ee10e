// Package edits finds the parts of a node that a container needs to use a GPU: device nodes, the driver's libraries and programs, hooks.
// nvcdi finds them once, when the plugin starts or the hardware changes. Preparing a claim only picks from the result.
package edits

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi/transform"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi/transform/root"
	"github.com/go-logr/logr"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/hardware/driver"
)

// Options define where to look.
type Options struct {
	NVML nvml.Interface
	// DriverRoot is the driver's root as this process sees it, HostDriverRoot as the container runtime sees it; empty: the same.
	DriverRoot, HostDriverRoot string
	// DevRoot is the directory in place of /dev as this process sees it, HostDevRoot as the container runtime sees it; empty: the
	// same.
	DevRoot, HostDevRoot string
	// ProcDevices is the file in place of /proc/devices.
	ProcDevices string
	// HookPath is nvidia-cdi-hook on the host. Without one no hooks are injected: containers then find the driver's libraries only
	// where their own loader searches.
	HookPath string
	// Extra is added to every container.
	Extra specs.ContainerEdits
	Log   logr.Logger
}

// Set is the result of a search.
type Set struct {
	common specs.ContainerEdits
	gpus   map[string]specs.ContainerEdits
	// Problems lists the files that could not be found; containers do without them.
	Problems []error
	// lacking are the missing device nodes without which no container can work, by GPU; under "" those of every GPU.
	lacking map[string][]error
	// seen are the files as last read; a change causes another search.
	seen traces
}

// Find searches for everything that the node's GPUs need.
func Find(n *inventory.Node, o Options) (*Set, error) {
	if o.HostDriverRoot == "" {
		o.HostDriverRoot = o.DriverRoot
	}
	if o.HostDevRoot == "" {
		o.HostDevRoot = o.DevRoot
	}
	s := &Set{gpus: make(map[string]specs.ContainerEdits, len(n.GPUs)), lacking: map[string][]error{}}
	ldconfig, without := o.ldconfig()
	if without != nil && o.HookPath != "" {
		s.Problems = append(s.Problems, without)
	}
	lib, err := o.library(ldconfig, without == nil)
	if err != nil {
		return nil, err
	}
	if found, err := lib.GetCommonEdits(); err == nil {
		s.common = *found.ContainerEdits
		if err := o.whole(s.common.Mounts, n.DriverVersion); err != nil {
			s.Problems = append(s.Problems, err)
		}
	} else {
		s.Problems = append(s.Problems, fmt.Errorf("the driver under %s is incomplete, so containers get the parts of it that exist: %s",
			o.DriverRoot, strings.Join(strings.Split(err.Error(), "\n"), "; ")))
		s.common = o.parts()
	}
	s.common.Mounts = slices.DeleteFunc(s.common.Mounts, func(m *specs.Mount) bool {
		return strings.HasSuffix(m.ContainerPath, "/tmp/nvidia-mps") // the host's own MPS daemon is not for tenants; a claim has its own
	})
	s.common.Env = slices.DeleteFunc(s.common.Env, func(e string) bool { return strings.HasPrefix(e, "NVIDIA_VISIBLE_DEVICES=") })
	// A container runtime that injects GPUs by environment then ignores this container.
	s.common.Env = append(s.common.Env, "NVIDIA_VISIBLE_DEVICES=void")
	if o.HookPath == "" {
		s.common.Mounts = append(s.common.Mounts, links(s.common.Mounts)...)
	}
	for _, g := range n.GPUs {
		s.gpus[g.UUID] = s.find(lib, g)
	}
	s.seen = o.trace(s.common, slices.Collect(maps.Values(s.gpus))...)
	if err := o.toHost(s); err != nil {
		return nil, err
	}
	known := s.seen.majors
	number(s.common.DeviceNodes, known)
	for _, e := range s.gpus {
		number(e.DeviceNodes, known)
	}
	s.complete(o, n)
	Merge(&s.common, o.Extra)
	return s, nil
}

func (o Options) library(ldconfig string, cached bool) (nvcdi.Interface, error) {
	opts := []nvcdi.Option{
		nvcdi.WithMode(nvcdi.ModeNvml), nvcdi.WithNvmlLib(o.NVML), nvcdi.WithDeviceLib(device.New(o.NVML)),
		nvcdi.WithDriverRoot(o.DriverRoot), nvcdi.WithDevRoot(filepath.Dir(filepath.Clean(o.DevRoot))),
		nvcdi.WithLogger(logger{o.Log}), nvcdi.WithFeatureFlags(nvcdi.FeatureDisableNvsandboxUtils),
	}
	if directory := o.unusual(); directory != "" {
		opts = append(opts, nvcdi.WithLibrarySearchPaths([]string{directory}))
	}
	if o.HookPath == "" {
		opts = append(opts, nvcdi.WithDisabledHooks(nvcdi.AllHooks))
	} else {
		opts = append(opts, nvcdi.WithNVIDIACDIHookPath(o.HookPath), nvcdi.WithLdconfigPath(ldconfig))
		if !cached {
			opts = append(opts, nvcdi.WithDisabledHooks(nvcdi.HookName("update-ldcache")))
		}
	}
	lib, err := nvcdi.New(opts...)
	if err != nil {
		return nil, fmt.Errorf("start nvcdi on the driver under %s: %w", o.DriverRoot, err)
	}
	return lib, nil
}

// unusual is the directory of the driver's libraries where nvcdi does not look for them, as on Talos and on Bottlerocket; else it is empty.
// nvcdi looks in the directories of its pkg/lookup/library.go, and in the loader's cache, which is not mounted here.
func (o Options) unusual() string {
	library, err := driver.Here(o.DriverRoot).Library()
	if err != nil {
		return ""
	}
	below, err := filepath.Rel(o.DriverRoot, filepath.Dir(library))
	if err != nil {
		return ""
	}
	switch below {
	case ".", "usr/lib64", "lib64":
		return ""
	}
	for _, arch := range []string{"x86_64-linux-gnu", "aarch64-linux-gnu"} {
		for _, lib := range []string{"usr/lib/", "lib/"} {
			if below == lib+arch || below == lib+arch+"/nvidia/current" {
				return ""
			}
		}
	}
	return filepath.Dir(library)
}

// find gets one GPU's edits from nvcdi.
func (s *Set) find(lib nvcdi.Interface, g *inventory.GPU) specs.ContainerEdits {
	var e specs.ContainerEdits
	if devices, err := lib.GetDeviceSpecsByID(g.UUID); err != nil {
		s.Problems = append(s.Problems, fmt.Errorf("%s: find its container edits: %w", g.UUID, err))
	} else {
		for _, d := range devices {
			Merge(&e, d.ContainerEdits)
		}
	}
	return e
}

// parts collects the files of a driver root without libcuda, by name. complete handles the device nodes.
func (o Options) parts() specs.ContainerEdits {
	var e specs.ContainerEdits
	for _, pattern := range []string{"usr/lib64/libnvidia-*.so*", "usr/lib64/libcuda.so*", "usr/lib/*-linux-gnu/libnvidia-*.so*",
		"usr/lib/*-linux-gnu/libcuda.so*", "usr/bin/nvidia-smi"} {
		found, err := filepath.Glob(filepath.Join(o.DriverRoot, pattern))
		if err != nil {
			continue
		}
		for _, host := range found {
			e.Mounts = append(e.Mounts, &specs.Mount{
				HostPath: host, ContainerPath: strings.TrimPrefix(host, filepath.Clean(o.DriverRoot)),
				Options: []string{"ro", "nosuid", "nodev", "rbind", "rprivate"},
			})
		}
	}
	return e
}

// links are mounts in place of the symbolic links that a hook would make: programs look for libnvidia-ml.so.1, but the mounted file
// is libnvidia-ml.so.570.158.01.
func links(mounts []*specs.Mount) []*specs.Mount {
	var out []*specs.Mount
	there := map[string]bool{}
	for _, m := range mounts {
		there[m.ContainerPath] = true
	}
	for _, m := range mounts {
		stem, _, isLibrary := strings.Cut(filepath.Base(m.HostPath), ".so.")
		if !isLibrary {
			continue
		}
		library, err := os.Stat(m.HostPath)
		if err != nil {
			continue
		}
		names, err := filepath.Glob(filepath.Join(filepath.Dir(m.HostPath), stem+".so*"))
		if err != nil {
			continue
		}
		for _, name := range names {
			path := filepath.Join(filepath.Dir(m.ContainerPath), filepath.Base(name))
			target, err := os.Stat(name)
			if err != nil || there[path] || !os.SameFile(library, target) {
				continue
			}
			there[path] = true
			link := *m
			link.HostPath, link.ContainerPath = name, path
			out = append(out, &link)
		}
	}
	return out
}

// toHost converts host paths from this process's view of the driver to the container runtime's.
func (o Options) toHost(s *Set) error {
	var steps []transform.Transformer
	// Device nodes first: those below the driver's root belong to that root.
	for _, move := range [][2]string{{o.DevRoot, o.HostDevRoot}, {o.DriverRoot, o.HostDriverRoot}} {
		if from, to := filepath.Clean(move[0]), filepath.Clean(move[1]); from != to {
			steps = append(steps, root.New(root.WithRoot(from), root.WithTargetRoot(to), root.WithRelativeTo("host")))
		}
	}
	if len(steps) == 0 {
		return nil
	}
	apply := func(e specs.ContainerEdits) (specs.ContainerEdits, error) {
		spec := &specs.Spec{ContainerEdits: e}
		err := transform.Merge(steps...).Transform(spec)
		return spec.ContainerEdits, err
	}
	var errs []error
	var err error
	s.common, err = apply(s.common)
	errs = append(errs, err)
	for uuid, e := range s.gpus {
		s.gpus[uuid], err = apply(e)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Common returns the edits of every container with a device of this driver.
func (s *Set) Common() specs.ContainerEdits { return clone(s.common) }

// GPU returns the edits for a whole GPU or a share of one.
func (s *Set) GPU(g *inventory.GPU) specs.ContainerEdits { return clone(s.gpus[g.UUID]) }

// Partition returns the edits for a MIG device: only the parent's node, and the two capability nodes that open the
// device.
func (s *Set) Partition(g *inventory.GPU, capabilities ...*specs.DeviceNode) specs.ContainerEdits {
	var e specs.ContainerEdits
	node := nodePath(g)
	for _, n := range s.gpus[g.UUID].DeviceNodes {
		if n.Path == node {
			e.DeviceNodes = append(e.DeviceNodes, n)
		}
	}
	e.DeviceNodes = append(e.DeviceNodes, capabilities...)
	return e
}

// clone copies the lists, so that a caller may append. Their elements never change.
func clone(e specs.ContainerEdits) specs.ContainerEdits {
	e.Env, e.DeviceNodes, e.Hooks, e.Mounts = slices.Clone(e.Env), slices.Clone(e.DeviceNodes), slices.Clone(e.Hooks), slices.Clone(e.Mounts)
	return e
}

// Merge appends the edits in e to into.
func Merge(into *specs.ContainerEdits, e specs.ContainerEdits) {
	into.Env = append(into.Env, e.Env...)
	into.DeviceNodes = append(into.DeviceNodes, e.DeviceNodes...)
	into.NetDevices = append(into.NetDevices, e.NetDevices...)
	into.Hooks = append(into.Hooks, e.Hooks...)
	into.Mounts = append(into.Mounts, e.Mounts...)
	into.AdditionalGIDs = append(into.AdditionalGIDs, e.AdditionalGIDs...)
	if e.IntelRdt != nil {
		into.IntelRdt = e.IntelRdt
	}
}

// logger lets nvcdi log into a logr.Logger.
type logger struct{ logr.Logger }

func (l logger) Errorf(f string, a ...any)   { l.Error(nil, fmt.Sprintf(f, a...)) }
func (l logger) Warningf(f string, a ...any) { l.V(1).Info(fmt.Sprintf(f, a...)) }
func (l logger) Infof(f string, a ...any)    { l.V(2).Info(fmt.Sprintf(f, a...)) }
func (l logger) Debugf(f string, a ...any)   { l.V(4).Info(fmt.Sprintf(f, a...)) }
func (l logger) Tracef(f string, a ...any)   { l.V(6).Info(fmt.Sprintf(f, a...)) }
