// Package nvmlstate is go-nvml's interface in Go over a fake node's state file. It is for simulations with many nodes in one
// process, where go-nvml's own library cannot be used, since it can be loaded only once. It implements the functions of the C
// library, with one exception because of go-nvml's types: functions that return a versioned handler (names in V, such as
// GetGpuFabricInfoV) would call C when the handler is used, so they must not be called on it; their plain forms must.
//
// It exists beside the C library for tests of drivers at the size of a cluster: the simulated one runs the plugins of hundreds of
// nodes in one process. Everything else is left to the mock, which answers NOT_SUPPORTED; the tests compare the rest with the C
// library.
package nvmlstate

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/state"
	"gpufabric.io/fakes/tree"
)

// New returns the node under root. It opens nothing before Init; with a root without a node Init answers DRIVER_NOT_LOADED.
func New(root string, options ...Option) nvml.Interface {
	l := &library{
		Interface: unsupported(&mock.Interface{}),
		devices:   unsupported(&mock.Device{}),
		instances: unsupported(&mock.GpuInstance{}),
		computes:  unsupported(&mock.ComputeInstance{}),
		sets:      unsupported(&mock.EventSet{}),
		root:      root,
		tickets:   map[target]*ticket{},
	}
	for _, o := range options {
		o(l)
	}
	return l
}

// Option changes how a client of the library runs.
type Option func(*library)

// ReadOnlyDev is a client that cannot write to its /dev, like a container with the host's /dev mounted read-only: no node of a MIG
// capability appears there (see tree.MakeMIGNodes).
func ReadOnlyDev(l *library) { l.readOnlyDev = true }

// library answers for one node. The mocks behind it return the values of functions that are not implemented; they are made once and
// shared by all handles.
type library struct {
	*mock.Interface
	devices   *mock.Device
	instances *mock.GpuInstance
	computes  *mock.ComputeInstance
	sets      *mock.EventSet
	root      string

	mu    sync.Mutex
	file  *state.File // stays open between Shutdown and Init; the garbage collector closes one that was replaced
	inits int
	// readOnlyDev: the client cannot write to its /dev.
	readOnlyDev bool
	// tickets are the handles that go-nvml's handlers took to C.
	tickets map[target]*ticket
}

var _ nvml.Interface = (*library)(nil)

func (l *library) Init() nvml.Return { return l.InitWithFlags(0) }

func (l *library) InitWithFlags(uint32) nvml.Return {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.refresh(); err != nil {
		return nvml.ERROR_DRIVER_NOT_LOADED
	}
	if !l.ofThisDriver() {
		return nvml.ERROR_LIB_RM_VERSION_MISMATCH
	}
	if l.inits == 0 && l.file.HoldAsClient() != nil {
		return nvml.ERROR_UNKNOWN
	}
	l.inits++
	return nvml.SUCCESS
}

// ofThisDriver reports whether the node's libnvidia-ml.so.1 has the version of the kernel's modules, by its file's name; l.mu must be
// held. A node without libraries has none of another version.
func (l *library) ofThisDriver() bool {
	file, err := filepath.EvalSymlinks(filepath.Join(l.root, "driver/usr/lib64/libnvidia-ml.so.1"))
	_, version, found := strings.Cut(filepath.Base(file), ".so.")
	if err != nil || !found || !strings.Contains(version, ".") {
		return true
	}
	same := false
	l.file.Peek(func(b *state.Body) { same = state.String(b.Node.DriverVersion[:]) == version })
	return same
}

// refresh opens the state file unless the open one is the newest; l.mu must be held.
func (l *library) refresh() error {
	if l.file != nil && !l.file.Replaced() {
		return nil
	}
	f, err := state.Open(l.root)
	if err != nil {
		return err
	}
	l.file = f
	if l.inits > 0 {
		return f.HoldAsClient()
	}
	return nil
}

func (l *library) Shutdown() nvml.Return {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.inits == 0 {
		return nvml.ERROR_UNINITIALIZED
	}
	l.inits--
	if l.inits == 0 {
		l.dropTickets()
		if l.file.ReleaseAsClient() != nil {
			return nvml.ERROR_UNKNOWN
		}
	}
	return nvml.SUCCESS
}

// open returns the newest state file.
func (l *library) open() (*state.File, nvml.Return) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.inits == 0 {
		return nil, nvml.ERROR_UNINITIALIZED
	}
	if err := l.refresh(); err != nil {
		return nil, nvml.ERROR_UNKNOWN
	}
	return l.file, nvml.SUCCESS
}

// call opens the state for one call of the named function, after the delay that the node has for it.
func (l *library) call(function string) (*state.File, nvml.Return) {
	f, r := l.open()
	if r != nvml.SUCCESS {
		return nil, r
	}
	var delay time.Duration
	f.Peek(func(b *state.Body) {
		delay = 0
		if b.Node.DelayCount != 0 {
			delay = b.Node.Delay("nvml" + function)
		}
	})
	if delay == 0 {
		return f, r
	}
	time.Sleep(delay) // the delay is intended, and cannot be interrupted, as in NVML
	return l.open()
}

// read runs fn on the state for one call of the named function. fn must only copy values out, and may run twice.
func (l *library) read(function string, fn func(*state.Body) nvml.Return) nvml.Return {
	f, r := l.call(function)
	if r != nvml.SUCCESS {
		return r
	}
	f.Peek(func(b *state.Body) { r = fn(b) }) // call has just checked that the file is whole
	return r
}

// write runs fn on the state as the only writer; the state changes only if it returns SUCCESS.
func (l *library) write(function string, fn func(*state.Body) nvml.Return) nvml.Return {
	f, r := l.call(function)
	if r != nvml.SUCCESS {
		return r
	}
	err := f.Update(func(b *state.Body) error {
		if r = fn(b); r != nvml.SUCCESS {
			return errors.New("refused")
		}
		return nil
	})
	if err != nil && r == nvml.SUCCESS {
		return nvml.ERROR_NO_PERMISSION
	}
	return r
}

// syncMIG writes, after a change of the MIG layout, the files that the kernel makes in /proc and NVML in its own /dev.
func (l *library) syncMIG() {
	f, r := l.open()
	if r != nvml.SUCCESS {
		return
	}
	if b, err := f.Read(); err == nil {
		// A tree that cannot be written to is left to the agent, as the C library does.
		_ = tree.SyncMIG(l.root, b)
		if !l.readOnlyDev {
			_ = tree.MakeMIGNodes(l.root, b)
		}
	}
}

func (l *library) Extensions() nvml.ExtendedInterface { return l }

// LookupSymbol finds the NVML functions that the library of a driver of the node's version has.
func (l *library) LookupSymbol(name string) error {
	version, r := l.SystemGetDriverVersion()
	if !strings.HasPrefix(name, "nvml") || r == nvml.SUCCESS && tree.Lacks(version, name) {
		return fmt.Errorf("no symbol %s", name)
	}
	return nil
}

func (l *library) ErrorString(r nvml.Return) string { return r.Error() }

func (l *library) SystemGetDriverVersion() (string, nvml.Return) {
	var s string
	r := l.read("SystemGetDriverVersion", func(b *state.Body) nvml.Return {
		s = state.String(b.Node.DriverVersion[:])
		return nvml.SUCCESS
	})
	return s, r
}

func (l *library) SystemGetNVMLVersion() (string, nvml.Return) {
	var s string
	r := l.read("SystemGetNVMLVersion", func(b *state.Body) nvml.Return {
		s = state.String(b.Node.NVMLVersion[:])
		return nvml.SUCCESS
	})
	return s, r
}

func (l *library) SystemGetCudaDriverVersion() (int, nvml.Return) {
	return l.SystemGetCudaDriverVersion_v2()
}

func (l *library) SystemGetCudaDriverVersion_v2() (int, nvml.Return) {
	var v int
	r := l.read("SystemGetCudaDriverVersion_v2", func(b *state.Body) nvml.Return {
		v = int(b.Node.CUDAVersion)
		return nvml.SUCCESS
	})
	return v, r
}

func (l *library) DeviceGetCount() (int, nvml.Return) {
	var n int
	r := l.read("DeviceGetCount_v2", func(b *state.Body) nvml.Return {
		n = len(b.GPUs)
		return nvml.SUCCESS
	})
	return n, r
}

func (l *library) DeviceGetHandleByIndex(i int) (nvml.Device, nvml.Return) {
	r := l.read("DeviceGetHandleByIndex_v2", func(b *state.Body) nvml.Return {
		if i < 0 || i >= len(b.GPUs) {
			return nvml.ERROR_INVALID_ARGUMENT
		}
		return alive(b.GPUs[i])
	})
	if r != nvml.SUCCESS {
		return nil, r
	}
	return l.device(i), r
}

func alive(g *state.GPU) nvml.Return {
	if g.Core.Lost != 0 {
		return nvml.ERROR_GPU_IS_LOST
	}
	return nvml.SUCCESS
}

// find gives the first GPU that matches.
func (l *library) find(function string, match func(*state.GPU) bool) (nvml.Device, nvml.Return) {
	var found int
	r := l.read(function, func(b *state.Body) nvml.Return {
		for i, g := range b.GPUs {
			if match(g) {
				found = i
				return alive(g)
			}
		}
		return nvml.ERROR_NOT_FOUND
	})
	if r != nvml.SUCCESS {
		return nil, r
	}
	return l.device(found), r
}

func (l *library) DeviceGetHandleByUUID(uuid string) (nvml.Device, nvml.Return) {
	const function = "DeviceGetHandleByUUID"
	bytes := profile.ParseUUID(uuid)
	switch {
	case strings.HasPrefix(uuid, "GPU-"):
		return l.find(function, func(g *state.GPU) bool { return g.Core.UUID == bytes })
	case strings.HasPrefix(uuid, "MIG-"):
		return l.findMIG(function, bytes)
	}
	return nil, nvml.ERROR_INVALID_ARGUMENT
}

func (l *library) DeviceGetHandleBySerial(serial string) (nvml.Device, nvml.Return) {
	return l.find("DeviceGetHandleBySerial", func(g *state.GPU) bool { return state.String(g.Core.Serial[:]) == serial })
}

func (l *library) DeviceGetHandleByPciBusId(id string) (nvml.Device, nvml.Return) {
	domain, rest, ok := strings.Cut(id, ":")
	if ok && !strings.Contains(rest, ":") {
		domain, rest = "0", id
	}
	bus, slot, ok := strings.Cut(rest, ":")
	device, function, _ := strings.Cut(slot, ".")
	if function == "" {
		function = "0"
	}
	var n [4]uint64
	for i, part := range []string{domain, bus, device, function} {
		v, err := strconv.ParseUint(part, 16, 32)
		if err != nil || !ok {
			return nil, nvml.ERROR_INVALID_ARGUMENT
		}
		n[i] = v
	}
	return l.find("DeviceGetHandleByPciBusId_v2", func(g *state.GPU) bool {
		c := &g.Core
		return uint64(c.Domain) == n[0] && uint64(c.Bus) == n[1] && uint64(c.Device) == n[2] && uint64(c.Function) == n[3]
	})
}
