package tree

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"gpufabric.io/fakes/imex"
	"gpufabric.io/fakes/profile"
)

func writeProc(w *writer, n *profile.Node) {
	w.file("proc/devices", procDevices(n))
	if len(n.GPUs) == 0 {
		return
	}
	d := n.Profile.Driver
	w.file("proc/driver/nvidia/version", fmt.Sprintf("NVRM version: NVIDIA UNIX Open Kernel Module for %s  %s  Release Build  "+
		"(fakefabric)\nGCC version:  gcc version 12.2.0\n",
		map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[n.Profile.Host.Architecture], d.Version))
	w.file("proc/driver/nvidia/params", params(n))
	for _, g := range n.GPUs {
		w.file(filepath.Join("proc/driver/nvidia/gpus", g.Address.String(), "information"), fmt.Sprintf(
			"Model: \t\t %s\nIRQ:   \t\t %d\nGPU UUID: \t %s\nVideo BIOS: \t %s\nBus Type: \t PCIe\nDMA Size: \t 52 bits\nDMA Mask: \t "+
				"0xfffffffffffff\nBus Location: \t %s\nDevice Minor: \t %d\nGPU Firmware: \t %s\nGPU Excluded:\t No\n",
			n.Profile.GPUs.Model.Name, 64+g.Index, g.UUID, n.Profile.GPUs.Model.VBIOS, g.Address, g.Minor, d.Version))
	}
	writeCapabilities(w, n)
}

// params lists module parameters as the driver does, without the NVreg_ that they are set by.
func params(n *profile.Node) string {
	channels, channel0 := 0, 0
	if x := n.Profile.IMEX; x != nil {
		channels = x.Channels
		if x.CreateChannel0 {
			channel0 = 1
		}
	}
	return fmt.Sprintf("ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\nImexChannelCount: "+
		"%d\nCreateImexChannel0: %d\n", channels, channel0)
}

// procDevices lists character devices between the two headings, sorted by major as the kernel does.
func procDevices(n *profile.Node) string {
	majors := map[int]string{1: "mem", 5: "/dev/tty", 10: "misc", 136: "pts"}
	if len(n.GPUs) > 0 {
		m := n.Profile.Driver.MajorsOrDefault()
		majors[m.NVIDIA], majors[m.UVM], majors[m.Caps] = "nvidia", "nvidia-uvm", "nvidia-caps"
		if n.Profile.IMEX != nil {
			majors[m.IMEXChannels] = "nvidia-caps-imex-channels"
		}
		if l := n.Profile.GPUs.NVLink; l != nil && len(l.Switches) > 0 {
			majors[m.NVSwitch] = "nvidia-nvswitch"
		}
	}
	if len(n.NICs) > 0 {
		majors[infinibandMajor] = "infiniband_verbs"
	}
	var b strings.Builder
	b.WriteString("Character devices:\n")
	for _, m := range slices.Sorted(maps.Keys(majors)) {
		fmt.Fprintf(&b, "%3d %s\n", m, majors[m])
		if majors[m] == "nvidia" {
			// The driver registers its control and modeset devices under the same major.
			fmt.Fprintf(&b, "%3d nvidiactl\n%3d nvidia-modeset\n", m, m)
		}
	}
	b.WriteString("\nBlock devices:\n  8 sd\n259 blkext\n")
	return b.String()
}

// Minors of nvidia-caps devices. Those of GPU instances follow a fixed table, as in /proc/driver/nvidia-caps/mig-minors.
const (
	capMIGConfig  = 1
	capMIGMonitor = 2
	capFirstGPU   = 3
	capIMEX       = imex.Capability
	// A GPU has 15 instances of 9 minors each: its own and those of 8 compute instances.
	capsPerGPU      = 15 * capsPerInstance
	capsPerInstance = 9
)

// CapabilityMinor is the nvidia-caps minor of a GPU instance (ci < 0) or of one of its compute instances.
func CapabilityMinor(gpu, gi, ci int) int {
	return capFirstGPU + gpu*capsPerGPU + gi*capsPerInstance + 1 + ci
}

func capability(minor int) string {
	return fmt.Sprintf("DeviceFileMinor: %d\nDeviceFileMode: 292\nDeviceFileModify: 1\n", minor)
}

// writeFabricCapability writes the capability to manage the fabric, below a directory that ends in a slash or is empty.
func writeFabricCapability(w *writer, n *profile.Node, directory string) {
	if n.Profile.IMEX != nil {
		w.file(directory+"proc/driver/nvidia/capabilities/fabric-imex-mgmt", capability(capIMEX))
	}
}

func writeCapabilities(w *writer, n *profile.Node) {
	const caps = "proc/driver/nvidia/capabilities"
	writeFabricCapability(w, n, "")
	w.file("proc/driver/nvidia-caps/sys-minors", fmt.Sprintf("fabric-imex-mgmt %d\n", capIMEX))
	if n.Profile.GPUs.Model.MIG == nil {
		return
	}
	w.file(caps+"/mig/config", capability(capMIGConfig))
	w.file(caps+"/mig/monitor", capability(capMIGMonitor))
	var b strings.Builder
	fmt.Fprintf(&b, "config %d\nmonitor %d\n", capMIGConfig, capMIGMonitor)
	for g := range n.GPUs {
		w.dir(fmt.Sprintf("%s/gpu%d/mig", caps, n.GPUs[g].Minor))
		for gi := range 15 {
			fmt.Fprintf(&b, "gpu%d/gi%d/access %d\n", g, gi, CapabilityMinor(g, gi, -1))
			for ci := range 8 {
				fmt.Fprintf(&b, "gpu%d/gi%d/ci%d/access %d\n", g, gi, ci, CapabilityMinor(g, gi, ci))
			}
		}
	}
	w.file("proc/driver/nvidia-caps/mig-minors", b.String())
}
