// Package gputest is a machine with GPUs for tests. It has an NVML whose MIG instances follow the hardware's rules, and the files
// that a driver leaves in /sys, /proc, /dev and its root.
package gputest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
)

// Machine is the machine. Its fields may be changed before it is used.
type Machine struct {
	mock.Interface
	mock.ExtendedInterface
	// Root holds sys, proc, dev and driver.
	Root string
	// GPUs are those that NVML lists. A GPU that was plugged in joins them when the library starts.
	GPUs []*GPU

	plugged chan *GPU
	events  chan nvml.EventData
}

// GPU is one GPU of the machine.
type GPU struct {
	mock.Device
	Minor int
	UUID  string
	// BeforeMIG is called before each MIG operation, which waits for it to return; nil: none waits.
	BeforeMIG func()

	mu        sync.Mutex
	mig       bool
	mode      nvml.ComputeMode
	nextID    uint32
	instances map[uint32]*instance
	// FailCompute is how many of the next compute instances cannot be made.
	FailCompute int
	// Busy is how often instances refuse their removal.
	Busy int
	// Recovery is the GPU's recovery action (nvml.GPU_RECOVERY_ACTION_*).
	Recovery uint32
	// Processes is how many processes run on the GPU.
	Processes int
	lost      bool
}

// Machine geometry: an A100-40 as its driver lists it, by NVML's profile number.
type profile struct {
	info nvml.GpuInstanceProfileInfo
	size uint32
	at   []uint32
}

func profiles() map[int]profile {
	p := func(id, most, slices, sm, ce, dec, jpeg, ofa uint32, memory uint64, size uint32, at ...uint32) profile {
		return profile{size: size, at: at, info: nvml.GpuInstanceProfileInfo{
			Id: id, InstanceCount: most, SliceCount: slices, MultiprocessorCount: sm, CopyEngineCount: ce, DecoderCount: dec, JpegCount: jpeg,
			OfaCount: ofa, MemorySizeMB: memory,
		}}
	}
	return map[int]profile{
		nvml.GPU_INSTANCE_PROFILE_1_SLICE:      p(19, 7, 1, 14, 1, 0, 0, 0, 4864, 1, 0, 1, 2, 3, 4, 5, 6),
		nvml.GPU_INSTANCE_PROFILE_2_SLICE:      p(14, 3, 2, 28, 2, 1, 0, 0, 9856, 2, 0, 2, 4),
		nvml.GPU_INSTANCE_PROFILE_3_SLICE:      p(9, 2, 3, 42, 3, 2, 0, 0, 19968, 4, 0, 4),
		nvml.GPU_INSTANCE_PROFILE_4_SLICE:      p(5, 1, 4, 56, 4, 2, 0, 0, 19968, 4, 0),
		nvml.GPU_INSTANCE_PROFILE_7_SLICE:      p(0, 1, 7, 98, 7, 5, 1, 1, 40448, 8, 0),
		nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV1: p(20, 1, 1, 14, 1, 1, 1, 1, 4864, 1, 0, 1, 2, 3, 4, 5, 6),
		nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV2: p(15, 4, 1, 14, 1, 1, 0, 0, 9856, 2, 0, 2, 4, 6),
	}
}

// New makes a machine with n A100-40, four of them to a NUMA node.
func New(t testing.TB, n int) *Machine {
	m := &Machine{Root: t.TempDir(), events: make(chan nvml.EventData, 16), plugged: make(chan *GPU, 16)}
	m.library()
	for minor := range n {
		m.GPUs = append(m.GPUs, newGPU(minor))
		m.files(t, minor)
	}
	for _, path := range []string{"driver/usr/lib64/libnvidia-ml.so.1", "driver/usr/bin/nvidia-smi", "dev/nvidiactl", "dev/nvidia-uvm",
		"proc/devices"} {
		write(t, filepath.Join(m.Root, path), "")
	}
	write(t, filepath.Join(m.Root, "proc/sys/kernel/random/boot_id"), "boot-1\n")
	return m
}

// Boot reboots the machine: its MIG instances are gone.
func (m *Machine) Boot(t testing.TB, id string) {
	write(t, filepath.Join(m.Root, "proc/sys/kernel/random/boot_id"), id+"\n")
	for _, g := range m.GPUs {
		g.mu.Lock()
		g.instances, g.mig = map[uint32]*instance{}, false
		g.mu.Unlock()
	}
}

// Plug adds a GPU to the machine.
func (m *Machine) Plug(t testing.TB) {
	minor := len(m.GPUs) + len(m.plugged)
	m.plugged <- newGPU(minor)
	m.files(t, minor)
}

// Path is a path under the machine's root.
func (m *Machine) Path(elements ...string) string {
	return filepath.Join(append([]string{m.Root}, elements...)...)
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// files makes the kernel's and the driver's files of one GPU.
func (m *Machine) files(t testing.TB, minor int) {
	device := fmt.Sprintf("devices/pci0000:00/0000:00:%02x.0/0000:%02x:00.0", minor+1, minor+0x10)
	for name, text := range map[string]string{
		"vendor": "0x10de", "device": "0x20b0", "class": "0x030200", "numa_node": fmt.Sprint(minor / 4),
	} {
		write(t, m.Path("sys", device, name), text+"\n")
	}
	link := m.Path("sys/bus/pci/devices", filepath.Base(device))
	if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../../../"+device, link); err != nil {
		t.Fatal(err)
	}
	taken := m.Path("sys/bus/pci/drivers/nvidia", filepath.Base(device))
	if err := os.MkdirAll(filepath.Dir(taken), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../../../../"+device, taken); err != nil {
		t.Fatal(err)
	}
	write(t, m.Path("dev", fmt.Sprintf("nvidia%d", minor)), "")
	// The driver's table: each GPU has capabilities for 15 GPU instances of 8 compute instances.
	var table strings.Builder
	for gi := range 15 {
		next := 3 + minor*135 + gi*9
		fmt.Fprintf(&table, "gpu%d/gi%d/access %d\n", minor, gi, next)
		for ci := range 8 {
			fmt.Fprintf(&table, "gpu%d/gi%d/ci%d/access %d\n", minor, gi, ci, next+1+ci)
		}
		write(t, m.Path("dev/nvidia-caps", fmt.Sprintf("nvidia-cap%d", next)), "")
		write(t, m.Path("dev/nvidia-caps", fmt.Sprintf("nvidia-cap%d", next+1)), "")
	}
	path := m.Path("proc/driver/nvidia-caps/mig-minors")
	before, _ := os.ReadFile(path)
	write(t, path, string(before)+table.String())
}

func (m *Machine) library() {
	m.InitFunc = func() nvml.Return {
		for {
			select {
			case g := <-m.plugged:
				m.GPUs = append(m.GPUs, g)
			default:
				return nvml.SUCCESS
			}
		}
	}
	m.ShutdownFunc = func() nvml.Return { return nvml.SUCCESS }
	m.ExtensionsFunc = func() nvml.ExtendedInterface { return m }
	m.LookupSymbolFunc = func(name string) error {
		switch name {
		case "nvmlDeviceGetMigMode", "nvmlDeviceGetGpuFabricInfo", "nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkRemotePciInfo_v2":
			return nil
		}
		return fmt.Errorf("no symbol %s", name)
	}
	m.SystemGetDriverVersionFunc = func() (string, nvml.Return) { return "570.158.01", nvml.SUCCESS }
	m.SystemGetCudaDriverVersionFunc = func() (int, nvml.Return) { return 12080, nvml.SUCCESS }
	m.DeviceGetCountFunc = func() (int, nvml.Return) { return len(m.GPUs), nvml.SUCCESS }
	m.DeviceGetHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		if i < 0 || i >= len(m.GPUs) {
			return nil, nvml.ERROR_INVALID_ARGUMENT
		}
		return m.GPUs[i], nvml.SUCCESS
	}
	m.DeviceGetHandleByUUIDFunc = func(uuid string) (nvml.Device, nvml.Return) {
		for _, g := range m.GPUs {
			if g.UUID == uuid {
				return g, nvml.SUCCESS
			}
		}
		return nil, nvml.ERROR_NOT_FOUND
	}
	m.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) {
		set := &mock.EventSet{}
		set.FreeFunc = func() nvml.Return { return nvml.SUCCESS }
		set.WaitFunc = func(ms uint32) (nvml.EventData, nvml.Return) {
			select {
			case e := <-m.events:
				return e, nvml.SUCCESS
			case <-time.After(min(waits, time.Duration(ms)*time.Millisecond)):
				return nvml.EventData{}, nvml.ERROR_TIMEOUT
			}
		}
		return set, nvml.SUCCESS
	}
}

// waits is how long a wait for an event takes at most. A plugin cannot end while it waits.
const waits = 20 * time.Millisecond

// Event makes NVML report an event on a whole GPU.
func (m *Machine) Event(minor int, kind, data uint64) {
	m.events <- nvml.EventData{Device: m.GPUs[minor], EventType: kind, EventData: data, GpuInstanceId: 0xFFFFFFFF,
		ComputeInstanceId: 0xFFFFFFFF}
}
