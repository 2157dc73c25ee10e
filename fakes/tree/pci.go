package tree

import (
	"fmt"
	"path/filepath"
	"strings"

	"gpufabric.io/fakes/profile"
)

// pciFunction is one function on the bus, bridges included.
type pciFunction struct {
	address   profile.PCIAddress
	bridges   []string
	class     uint32 // 24 bits
	id        profile.PCIID
	subsystem profile.PCIID
	revision  byte
	driver    string
	numa      int
	// extra are further files of the directory.
	extra map[string]string
	vpd   []byte // Vital Product Data; nil: it has none
	// generation and width of the link; zero leaves the link's files out.
	generation, width int
}

// PCI classes.
const (
	class3D         = 0x030200
	classInfiniBand = 0x020700
	classEthernet   = 0x020000
	classBridge     = 0x060400
	classOtherBrdge = 0x068000
)

// path is where the function's directory is below the tree's root.
func (f pciFunction) path() string {
	parts := append([]string{"sys/devices", rootBusName(f)}, f.bridges...)
	return filepath.Join(append(parts, f.address.String())...)
}

// rootBusName is the name of the host bridge's directory, pciDDDD:BB.
func rootBusName(f pciFunction) string {
	first := f.address
	if len(f.bridges) > 0 {
		if a, err := profile.ParsePCI(f.bridges[0]); err == nil {
			first = a
		}
	}
	return fmt.Sprintf("pci%04x:%02x", first.Domain, first.Bus)
}

// pciBus collects functions and then writes them with the bridges above them.
type pciBus struct {
	node      *profile.Node
	functions []pciFunction
	bridges   map[string]*bridge
	order     []string
}

// bridge is a PCI bridge with the range of buses behind it.
type bridge struct {
	pciFunction
	secondary, subordinate uint32
}

func newPCIBus(n *profile.Node) *pciBus {
	return &pciBus{node: n, bridges: map[string]*bridge{}}
}

func (p *pciBus) add(f pciFunction) {
	p.functions = append(p.functions, f)
	for i, name := range f.bridges {
		next := f.address
		if i+1 < len(f.bridges) {
			next, _ = profile.ParsePCI(f.bridges[i+1]) // the profile's check has seen to the form
		}
		b, ok := p.bridges[name]
		if !ok {
			a, _ := profile.ParsePCI(name) // likewise
			b = &bridge{pciFunction: pciFunction{address: a, bridges: f.bridges[:i], class: classBridge, id: bridgeID(i),
				driver: "pcieport", numa: f.numa}, secondary: next.Bus}
			p.bridges[name] = b
			p.order = append(p.order, name)
		}
		b.subordinate = max(b.subordinate, f.address.Bus)
	}
}

// bridgeID makes root ports differ from the switches below them.
func bridgeID(depth int) profile.PCIID {
	if depth == 0 {
		return profile.PCIID{Vendor: 0x10de, Device: 0x22b1}
	}
	return profile.PCIID{Vendor: 0x15b3, Device: 0x1979}
}

func (p *pciBus) write(w *writer) {
	for i, name := range p.order {
		b := p.bridges[name]
		config := configSpace(b.pciFunction)
		config[0x0e] = 1 // header type: bridge
		config[0x18], config[0x19], config[0x1a] = byte(b.address.Bus), byte(b.secondary), byte(b.subordinate)
		p.writeFunction(w, b.pciFunction, config, i)
	}
	for i, f := range p.functions {
		p.writeFunction(w, f, configSpace(f), len(p.order)+i)
	}
}

func (p *pciBus) writeFunction(w *writer, f pciFunction, config []byte, number int) {
	dir := f.path()
	modalias := fmt.Sprintf("pci:v%08Xd%08Xsv%08Xsd%08Xbc%02Xsc%02Xi%02X", f.id.Vendor, f.id.Device, f.subsystem.Vendor,
		f.subsystem.Device, f.class>>16, f.class>>8&0xff, f.class&0xff)
	w.files(dir, map[string]string{
		"vendor":    fmt.Sprintf("0x%04x", f.id.Vendor),
		"device":    fmt.Sprintf("0x%04x", f.id.Device),
		"class":     fmt.Sprintf("0x%06x", f.class),
		"revision":  fmt.Sprintf("0x%02x", f.revision),
		"irq":       fmt.Sprint(64 + number),
		"numa_node": fmt.Sprint(f.numa),
		"uevent": fmt.Sprintf("DRIVER=%s\nPCI_CLASS=%X\nPCI_ID=%04X:%04X\nPCI_SUBSYS_ID=%04X:%04X\nPCI_SLOT_NAME=%s\nMODALIAS=%s", f.driver,
			f.class, f.id.Vendor, f.id.Device, f.subsystem.Vendor, f.subsystem.Device, f.address, modalias),
		"subsystem_vendor": fmt.Sprintf("0x%04x", f.subsystem.Vendor),
		"subsystem_device": fmt.Sprintf("0x%04x", f.subsystem.Device),
	})
	if f.class != classBridge {
		// No program reads these from a bridge, and a machine has more bridges than devices.
		w.files(dir, map[string]string{"enable": "1", "modalias": modalias, "local_cpulist": p.cpus(f.numa),
			"local_cpus": cpuMask(p.cpus(f.numa))})
	}
	w.files(dir, f.extra)
	if f.generation > 0 {
		speed := linkSpeed(f.generation)
		w.files(dir, map[string]string{
			"max_link_speed": speed, "current_link_speed": speed,
			"max_link_width": fmt.Sprint(f.width), "current_link_width": fmt.Sprint(f.width),
		})
	}
	w.file(filepath.Join(dir, "resource"), resource(number, f.class != classBridge))
	w.bytes(filepath.Join(dir, "config"), config, 0o644)
	if f.vpd != nil {
		w.bytes(filepath.Join(dir, "vpd"), f.vpd, 0o600)
	}
	w.link(filepath.Join(dir, "subsystem"), "sys/bus/pci")
	w.link(filepath.Join("sys/bus/pci/devices", f.address.String()), dir)
	if f.driver != "" {
		driver := filepath.Join("sys/bus/pci/drivers", f.driver)
		w.dir(driver)
		w.link(filepath.Join(dir, "driver"), driver)
		w.link(filepath.Join(driver, f.address.String()), dir)
	}
	if f.class != classBridge {
		group := filepath.Join("sys/kernel/iommu_groups", fmt.Sprint(number))
		w.link(filepath.Join(group, "devices", f.address.String()), dir)
		w.link(filepath.Join(dir, "iommu_group"), group)
	}
}

// vpdCapability is where the configuration space has the capability Vital Product Data (PCI Local Bus Specification 3.0, appendix I).
const vpdCapability = 0x48

// configSpace is the first 64 bytes that every function has, and the capability Vital Product Data.
func configSpace(f pciFunction) []byte {
	c := make([]byte, 256) // all that there is without extended capabilities; GFD looks for one of NVIDIA's in it
	put := func(at int, v uint16) { c[at], c[at+1] = byte(v), byte(v>>8) }
	put(0x00, f.id.Vendor)
	put(0x02, f.id.Device)
	put(0x04, 0x0406) // memory space, bus master, no legacy interrupts
	put(0x06, 0x0010) // has capabilities
	c[0x08] = f.revision
	c[0x09], c[0x0a], c[0x0b] = byte(f.class), byte(f.class>>8), byte(f.class>>16)
	if f.class != classBridge {
		put(0x2c, f.subsystem.Vendor)
		put(0x2e, f.subsystem.Device)
	}
	if f.vpd != nil {
		c[0x34] = vpdCapability // the list of capabilities has this one
		put(vpdCapability, 0x0003)
	}
	return c
}

// resource gives a function one 64-bit window of 32 MiB of its own, and 12 empty ones.
func resource(number int, has bool) string {
	const empty = "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"
	if !has {
		return strings.Repeat(empty, 13)
	}
	start := uint64(0x200000000000) + uint64(number)<<32
	return fmt.Sprintf("0x%016x 0x%016x 0x000000000014220c\n", start, start+32<<20-1) + strings.Repeat(empty, 12)
}

func linkSpeed(generation int) string {
	speeds := []string{"2.5", "5.0", "8.0", "16.0", "32.0", "64.0", "128.0"}
	return speeds[min(max(generation, 1), len(speeds))-1] + " GT/s PCIe"
}

// cpus is the CPU list of a NUMA node; -1 means all.
func (p *pciBus) cpus(numa int) string {
	var all []string
	for _, n := range p.node.Profile.Host.Nodes() {
		if n.Node == numa {
			return n.CPUs
		}
		if n.CPUs != "" {
			all = append(all, n.CPUs)
		}
	}
	return strings.Join(all, ",")
}

// cpuMask turns 0-3 into the comma-separated 32-bit hex words of local_cpus.
func cpuMask(list string) string {
	numbers, err := profile.ParseList(list)
	if err != nil || len(numbers) == 0 {
		return "0"
	}
	words := make([]uint32, numbers[len(numbers)-1]/32+1)
	for _, n := range numbers {
		if n/32 < len(words) {
			words[n/32] |= 1 << (n % 32)
		}
	}
	var b strings.Builder
	for i := len(words) - 1; i >= 0; i-- {
		fmt.Fprintf(&b, "%08x", words[i])
		if i > 0 {
			b.WriteByte(',')
		}
	}
	return b.String()
}
