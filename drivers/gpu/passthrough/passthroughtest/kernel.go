// Package passthroughtest simulates the part of a kernel that changes the drivers of PCI functions, as strictly as the kernel. Each
// rule has its source in Linux 6.12.
package passthroughtest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"gpufabric.io/drivers/gpu/passthrough"
	"gpufabric.io/drivers/hardware/sysfstest"
)

// Kernel is a node: its sysfs, /dev, /proc and the rules of bind and unbind. It is safe for concurrent use.
type Kernel struct {
	*sysfstest.Tree
	t    testing.TB
	Proc string
	// Before is called before each write takes effect; the write returns its error. nil: no call.
	Before func(path, text string) error

	mu        sync.Mutex
	functions map[string]*function
	loaded    map[string]bool
	// users are the open files of a function, by address: of /dev/nvidiaN, or of its VFIO group.
	users   map[string]int
	changed *sync.Cond
	pids    int
	// Writes are those that took effect, as "ATTRIBUTE TEXT".
	Writes []string
	vfio   int
}

type function struct {
	path   string // below sysfs
	native string // the driver whose table of IDs has it
	group  int    // 0: the IOMMU is off
	minor  string
	vfs    int
}

// New makes a node with the drivers nvidia, snd_hda_intel, mlx5_core and vfio-pci loaded.
func New(t testing.TB) *Kernel {
	k := &Kernel{Tree: sysfstest.New(t), t: t, functions: map[string]*function{}, loaded: map[string]bool{}, users: map[string]int{}}
	k.changed = sync.NewCond(&k.mu)
	k.Proc = filepath.Join(filepath.Dir(k.Sys), "proc")
	k.must(os.MkdirAll(k.Proc, 0o755))
	k.must(os.MkdirAll(filepath.Join(k.Sys, "kernel/iommu_groups"), 0o755)) // iommu.c makes it at boot, IOMMU or not
	for _, driver := range []string{"nvidia", "snd_hda_intel", "mlx5_core", "pcieport", "nouveau", passthrough.Driver} {
		k.Load(driver)
	}
	k.Write1("bus/pci/drivers_probe", "")
	k.device("vfio/vfio") // the module vfio makes it when it is loaded
	return k
}

// Places are the node's.
func (k *Kernel) Places() passthrough.Places {
	return passthrough.Places{Sysfs: k.Sys, Dev: k.Dev, Proc: k.Proc, HostProc: k.Proc}
}

func (k *Kernel) must(err error) {
	k.t.Helper()
	if err != nil {
		k.t.Fatal(err)
	}
}

// Write1 makes an attribute of sysfs.
func (k *Kernel) Write1(path, text string) { k.Tree.Write(path, text) }

func (k *Kernel) device(below string) {
	path := filepath.Join(k.Dev, below)
	k.must(os.MkdirAll(filepath.Dir(path), 0o755))
	k.must(os.WriteFile(path, nil, 0o600))
}

// Load loads a driver. Unload takes it away with its functions' binding.
func (k *Kernel) Load(driver string) {
	for _, attribute := range []string{"bind", "unbind", "new_id"} {
		k.Write1(filepath.Join("bus/pci/drivers", driver, attribute), "")
	}
	k.loaded[driver] = true
}

// Unload unloads a driver: its functions have none.
func (k *Kernel) Unload(driver string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for address := range k.functions {
		if k.driverOf(address) == driver {
			k.detach(address, driver)
		}
	}
	delete(k.loaded, driver)
	k.must(os.RemoveAll(filepath.Join(k.Sys, "bus/pci/drivers", driver)))
}

// Function is a PCI function. Group 0: the machine's IOMMU is off.
type Function struct {
	Address, Vendor, Device, Class string
	// Driver is the driver whose table of IDs has the function, and which has it.
	Driver string
	Group  int
	VFs    int
	Root   string // pci0000:3a where empty
}

// Add adds a function.
func (k *Kernel) Add(f Function) {
	k.t.Helper()
	if f.Root == "" {
		f.Root = "pci0000:3a"
	}
	total := 0
	if f.VFs > 0 {
		total = 16
	}
	path := k.AddFunction(sysfstest.Function{Parent: f.Root, Address: f.Address, Vendor: f.Vendor, Device: f.Device, Class: f.Class,
		Driver: "-", NUMANode: "0", TotalVFs: total, VFs: f.VFs})
	k.Write1(path+"/driver_override", "(null)")
	own := &function{path: path, native: f.Driver, group: f.Group, vfs: f.VFs}
	if f.Driver == "nvidia" {
		own.minor = strconv.Itoa(k.minors())
	}
	k.functions[f.Address] = own
	if f.Group > 0 {
		group := fmt.Sprintf("kernel/iommu_groups/%d", f.Group)
		k.Link(group+"/devices/"+f.Address, path)
		k.Link(path+"/iommu_group", group)
	}
	if f.Driver != "" {
		k.must(k.attach(f.Address, f.Driver))
	}
}

func (k *Kernel) minors() int {
	n := 0
	for _, f := range k.functions {
		if f.minor != "" {
			n++
		}
	}
	return n
}

// GPU adds a GPU with its audio function in an IOMMU group of their own.
func (k *Kernel) GPU(slot string, group int) {
	k.t.Helper()
	k.Add(Function{Address: slot + ".0", Vendor: "0x10de", Device: "0x2684", Class: "0x030000", Driver: "nvidia", Group: group})
	k.Add(Function{Address: slot + ".1", Vendor: "0x10de", Device: "0x22ba", Class: "0x040300", Driver: "snd_hda_intel", Group: group})
}

// Open has a process of a name open a function's device, until the returned function is called.
func (k *Kernel) Open(process, address string) (closeIt func()) {
	k.t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	f := k.functions[address]
	target := "/dev/nvidia" + f.minor
	if vfio(k.driverOf(address)) {
		target = fmt.Sprintf("/dev/vfio/%d", f.group)
	}
	k.users[address]++
	k.pids++
	pid := filepath.Join(k.Proc, strconv.Itoa(4000+k.pids))
	k.must(os.MkdirAll(filepath.Join(pid, "fd"), 0o755))
	k.must(os.WriteFile(filepath.Join(pid, "comm"), []byte(process+"\n"), 0o600))
	k.must(os.Symlink(target, filepath.Join(pid, "fd/7")))
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.must(os.RemoveAll(pid))
		k.users[address]--
		k.changed.Broadcast()
	}
}

// Driver is the driver of a function; empty: none.
func (k *Kernel) Driver(address string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.driverOf(address)
}

func (k *Kernel) driverOf(address string) string {
	target, err := os.Readlink(filepath.Join(k.Sys, k.functions[address].path, "driver"))
	if err != nil {
		return ""
	}
	return filepath.Base(target)
}

// Override is the driver to which a function is kept, as sysfs shows it.
func (k *Kernel) Override(address string) string {
	text, err := os.ReadFile(filepath.Join(k.Sys, k.functions[address].path, "driver_override"))
	k.must(err)
	return strings.TrimSpace(string(text))
}

// Write is one write(2) to an attribute.
func (k *Kernel) Write(path, text string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.Before != nil {
		if err := k.Before(path, text); err != nil {
			return err
		}
	}
	below, err := filepath.Rel(k.Sys, path)
	if err != nil {
		return err
	}
	if _, err := os.Stat(path); err != nil {
		return &os.PathError{Op: "open", Path: path, Err: syscall.ENOENT}
	}
	if err := k.write(below, text); err != nil {
		return &os.PathError{Op: "write", Path: path, Err: err}
	}
	k.Writes = append(k.Writes, filepath.Base(filepath.Dir(below))+"/"+filepath.Base(below)+" "+strings.TrimSpace(text))
	return nil
}

func (k *Kernel) write(below, text string) error {
	name := strings.TrimSpace(text)
	switch attribute := filepath.Base(below); attribute {
	case "driver_override":
		return k.override(filepath.Base(filepath.Dir(below)), text)
	case "drivers_probe":
		// drivers_probe_store: a function that has a driver stays as it is.
		f := k.functions[name]
		if f == nil {
			return syscall.ENODEV
		}
		if k.driverOf(name) != "" || !k.loaded[f.native] || k.Override(name) != "(null)" && k.Override(name) != f.native {
			return nil
		}
		return k.attach(name, f.native)
	case "bind", "unbind":
		driver := filepath.Base(filepath.Dir(below))
		if k.functions[name] == nil {
			return syscall.ENODEV
		}
		if attribute == "unbind" {
			return k.unbind(name, driver)
		}
		return k.bind(name, driver)
	}
	return syscall.EACCES
}

// override is driver_set_override of drivers/base/driver.c: a name of less than a page; a line break alone, or nothing, clears it.
func (k *Kernel) override(address, text string) error {
	if len(text) >= os.Getpagesize()-1 {
		return syscall.EINVAL
	}
	name, _, _ := strings.Cut(text, "\n")
	if name == "" {
		name = "(null)"
	}
	return os.WriteFile(filepath.Join(k.Sys, k.functions[address].path, "driver_override"), []byte(name+"\n"), 0o600)
}

// unbind is unbind_store of drivers/base/bus.c: ENODEV where the function has another driver. The remove function of nvidia
// (nv_pci_remove) and of vfio-pci (vfio_unregister_group_dev) waits for the last user.
func (k *Kernel) unbind(address, driver string) error {
	if k.driverOf(address) != driver {
		return syscall.ENODEV
	}
	for k.users[address] > 0 {
		k.changed.Wait()
	}
	k.detach(address, driver)
	return nil
}

// bind is bind_store of drivers/base/bus.c and device_driver_attach of dd.c: ENODEV where the driver does not match, EBUSY where the
// function has a driver. A match is one of pci_match_device (drivers/pci/pci-driver.c): driver_override excludes every other driver,
// and matches without a table of IDs; vfio-pci's table (PCI_DRIVER_OVERRIDE_DEVICE_VFIO) is for driver_override alone.
func (k *Kernel) bind(address, driver string) error {
	f, kept := k.functions[address], k.Override(address)
	switch {
	case kept != "(null)" && kept != driver, kept == "(null)" && (vfio(driver) || f.native != driver):
		return syscall.ENODEV
	case k.driverOf(address) != "":
		return syscall.EBUSY
	}
	return k.attach(address, driver)
}

// vfio reports whether a driver is one of VFIO's.
func vfio(driver string) bool {
	return driver == passthrough.Driver || driver == passthrough.GraceDriver
}

// attach probes a driver on a function.
func (k *Kernel) attach(address, driver string) error {
	f := k.functions[address]
	if vfio(driver) {
		switch {
		case f.group == 0:
			return syscall.EINVAL // vfio_group_find_or_alloc: no group
		case f.vfs > 0:
			return syscall.EBUSY // vfio_pci_core_register_device: SR-IOV is enabled
		}
		k.device(fmt.Sprintf("vfio/%d", f.group))
		name := fmt.Sprintf("vfio%d", k.vfio)
		k.vfio++
		k.must(os.MkdirAll(filepath.Join(k.Sys, f.path, "vfio-dev", name), 0o755))
		k.device("vfio/devices/" + name)
	} else if k.owned(f.group) {
		return syscall.EBUSY // iommu_device_use_default_domain: a virtual machine has the group
	}
	if f.minor != "" && driver == "nvidia" {
		info := filepath.Join(k.Proc, "driver/nvidia/gpus", address, "information")
		k.must(os.MkdirAll(filepath.Dir(info), 0o755))
		k.must(os.WriteFile(info, []byte("Model: \t\t NVIDIA GeForce RTX 4090\nGPU UUID: \t GPU-00000000-0000-4000-8000-00000000000"+f.minor+
			"\nDevice Minor: \t "+f.minor+"\n"), 0o600))
	}
	k.Link(f.path+"/driver", "bus/pci/drivers/"+driver)
	k.Link(filepath.Join("bus/pci/drivers", driver, address), f.path)
	return nil
}

// owned reports whether a virtual machine has a function of a group open.
func (k *Kernel) owned(group int) bool {
	for address, f := range k.functions {
		if group > 0 && f.group == group && vfio(k.driverOf(address)) && k.users[address] > 0 {
			return true
		}
	}
	return false
}

func (k *Kernel) detach(address, driver string) {
	f := k.functions[address]
	if vfio(driver) {
		dir := filepath.Join(k.Sys, f.path, "vfio-dev")
		entries, err := os.ReadDir(dir)
		k.must(err)
		for _, e := range entries {
			k.must(os.Remove(filepath.Join(k.Dev, "vfio/devices", e.Name())))
		}
		k.must(os.RemoveAll(dir))
	}
	k.must(os.RemoveAll(filepath.Join(k.Proc, "driver/nvidia/gpus", address)))
	k.must(os.Remove(filepath.Join(k.Sys, f.path, "driver")))
	k.must(os.Remove(filepath.Join(k.Sys, "bus/pci/drivers", driver, address)))
	if vfio(driver) && !slices.ContainsFunc(k.members(f.group), func(a string) bool { return vfio(k.driverOf(a)) }) {
		k.must(os.Remove(filepath.Join(k.Dev, fmt.Sprintf("vfio/%d", f.group))))
	}
}

func (k *Kernel) members(group int) []string {
	var out []string
	for address, f := range k.functions {
		if f.group == group {
			out = append(out, address)
		}
	}
	return out
}
