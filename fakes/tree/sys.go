package tree

import (
	"fmt"
	"path/filepath"
	"strings"

	"gpufabric.io/fakes/profile"
)

func writeSys(w *writer, n *profile.Node) {
	w.dir("sys/bus/pci/devices")
	w.dir("sys/class/net")
	bus := newPCIBus(n)
	for _, g := range n.GPUs {
		bus.add(gpuFunction(n, g))
	}
	addSwitches(bus, n)
	rdma := newRDMA(n)
	for _, nic := range n.NICs {
		f := nicFunction(nic)
		bus.add(f)
		rdma.add(w, nic, f)
		addDataDirect(bus, nic, f)
	}
	bus.write(w)
	rdma.finish(w)
	linkVirtualFunctions(w, n)
	writeHost(w, n)
}

func gpuFunction(n *profile.Node, g profile.NodeGPU) pciFunction {
	m := n.Profile.GPUs.Model
	return pciFunction{
		address: g.Address, bridges: g.Place().Bridges, class: class3D, id: m.ID(), subsystem: m.Subsystem(), revision: 0xa1,
		driver: "nvidia", numa: g.NUMA, generation: m.PCIe.Generation, width: m.PCIe.Width,
	}
}

// addSwitches puts NVSwitches that the node itself sees on the bus.
func addSwitches(bus *pciBus, n *profile.Node) {
	if n.Profile.GPUs == nil || n.Profile.GPUs.NVLink == nil {
		return
	}
	l := n.Profile.GPUs.NVLink
	id := l.SwitchID()
	for _, s := range l.Switches {
		a, err := profile.ParsePCI(s)
		if err != nil {
			continue // the profile's check has seen to the form
		}
		bus.add(pciFunction{address: a, bridges: profile.BridgeChain(a, nil), class: classOtherBrdge, id: id,
			subsystem: id, revision: 0xa1, driver: "nvidia-nvswitch", numa: -1, generation: 4, width: 2})
	}
}

// writeHost writes NUMA nodes, CPUs and the firmware's files.
func writeHost(w *writer, n *profile.Node) {
	var online, withCPU []string
	cpus := 0
	for _, m := range n.Profile.Host.Nodes() {
		dir := fmt.Sprintf("sys/devices/system/node/node%d", m.Node)
		w.files(dir, map[string]string{
			"cpulist":  m.CPUs,
			"cpumap":   cpuMask(m.CPUs),
			"distance": distances(n, m.Node),
			"meminfo": fmt.Sprintf("Node %[1]d MemTotal:       %[2]d kB\nNode %[1]d MemFree:        %[3]d kB\nNode %[1]d MemUsed:        %[4]d kB",
				m.Node, m.MemoryMiB*1024, m.MemoryMiB*1024*9/10, m.MemoryMiB*1024/10),
		})
		online = append(online, fmt.Sprint(m.Node))
		if m.CPUs != "" {
			withCPU = append(withCPU, fmt.Sprint(m.Node))
		}
		list, err := profile.ParseList(m.CPUs)
		if err == nil && len(list) > 0 {
			cpus = max(cpus, list[len(list)-1]+1)
			writeCPU(w, list[0], m)
		}
	}
	all := strings.Join(online, ",")
	w.files("sys/devices/system/node", map[string]string{"online": all, "possible": all, "has_cpu": strings.Join(withCPU, ","),
		"has_memory": all})
	if cpus > 0 {
		list := fmt.Sprintf("0-%d", cpus-1)
		w.files("sys/devices/system/cpu", map[string]string{"online": list, "possible": list, "present": list})
	}
	w.files("sys/class/dmi/id", map[string]string{
		"sys_vendor": n.Profile.Host.Vendor, "product_name": n.Profile.Host.Product,
		"product_uuid": profile.FormatUUID(profile.ParseUUID(n.MachineID)),
	})
}

// writeCPU writes the topology of one CPU. Only the first of each NUMA node has one: that is enough for hwloc to place devices, and
// hundreds of CPUs would double the size of a node.
func writeCPU(w *writer, cpu int, m profile.NUMANode) {
	self, socket := cpuMask(fmt.Sprint(cpu)), cpuMask(m.CPUs)
	w.files(fmt.Sprintf("sys/devices/system/cpu/cpu%d/topology", cpu), map[string]string{
		"physical_package_id": fmt.Sprint(m.Node), "core_id": fmt.Sprint(cpu), "thread_siblings": self, "core_cpus": self,
		"core_siblings": socket, "package_cpus": socket,
	})
}

// distances is one row of the node's distance table: 10 to itself, 40 elsewhere, as two-socket machines of this kind show.
func distances(n *profile.Node, from int) string {
	var row []string
	for _, m := range n.Profile.Host.Nodes() {
		d := "40"
		if m.Node == from {
			d = "10"
		}
		row = append(row, d)
	}
	return strings.Join(row, " ")
}

// linkClass makes sys/class/<class>/<name> point at the device's directory and back.
func linkClass(w *writer, class, name, dir string) {
	w.link(filepath.Join("sys/class", class, name), dir)
	w.link(filepath.Join(dir, "subsystem"), filepath.Join("sys/class", class))
}
