package tree

import (
	"fmt"

	"gpufabric.io/fakes/profile"
)

// Device is a character device of a node: its path below the node's directory (dev/nvidia0) and its number.
type Device struct {
	Path         string
	Major, Minor int
}

func writeDev(w *writer, n *profile.Node) {
	w.dir("dev")
	for _, d := range append(NICDevices(n), gpuDevices(n)...) {
		w.device(d.Path, d.Major, d.Minor)
	}
}

// gpuDevices lists the devices that the NVIDIA driver makes.
func gpuDevices(n *profile.Node) []Device {
	if len(n.GPUs) == 0 {
		return nil
	}
	var devices []Device
	for i := range n.GPUs {
		devices = append(devices, GPUDevice(n, i)...)
	}
	return append(append(devices, CommonDevices(n)...), fabricDevices(n)...)
}

// NICDevices lists the RDMA devices of a machine.
func NICDevices(n *profile.Node) []Device {
	var out []Device
	if len(n.NICs) > 0 {
		out = append(out, Device{"dev/infiniband/rdma_cm", rdmaCMMajor, rdmaCMMinor})
	}
	for _, nic := range n.NICs {
		out = append(out, Device{fmt.Sprintf("dev/infiniband/uverbs%d", nic.Index), infinibandMajor, uverbsMinor + nic.Index})
		if nic.Switchdev() {
			continue // raw packets alone: no management datagrams
		}
		out = append(out, Device{fmt.Sprintf("dev/infiniband/umad%d", nic.Index), infinibandMajor, nic.Index})
		if nic.Link == "InfiniBand" {
			out = append(out, Device{fmt.Sprintf("dev/infiniband/issm%d", nic.Index), infinibandMajor, issmMinor + nic.Index})
		}
	}
	return out
}

// GPUDevice is the device of the GPU with that index.
func GPUDevice(n *profile.Node, index int) []Device {
	g := n.GPUs[index]
	return []Device{{fmt.Sprintf("dev/nvidia%d", g.Minor), n.Profile.Driver.MajorsOrDefault().NVIDIA, g.Minor}}
}

// CommonDevices lists the devices that each client of the driver opens beside its GPU's.
func CommonDevices(n *profile.Node) []Device {
	m := n.Profile.Driver.MajorsOrDefault()
	return []Device{{"dev/nvidiactl", m.NVIDIA, 255}, {"dev/nvidia-modeset", m.NVIDIA, 254}, {"dev/nvidia-uvm", m.UVM, 0},
		{"dev/nvidia-uvm-tools", m.UVM, 1}}
}

// fabricDevices lists the devices of NVSwitches and IMEX. Capability nodes are not among them, nor channels: their users make them, as
// nvidia-modprobe does (open-gpu-kernel-modules, nv-reg.h, ImexChannelCount: "the NVIDIA driver will not attempt to create the /dev
// nodes"). The exception is channel 0 where the module was loaded with NVreg_CreateImexChannel0=1.
func fabricDevices(n *profile.Node) []Device {
	var out []Device
	m := n.Profile.Driver.MajorsOrDefault()
	if x := n.Profile.IMEX; x != nil && x.CreateChannel0 {
		out = append(out, Device{"dev/nvidia-caps-imex-channels/channel0", m.IMEXChannels, 0})
	}
	if l := n.Profile.GPUs.NVLink; l != nil && len(l.Switches) > 0 {
		out = append(out, Device{"dev/nvidia-nvswitchctl", m.NVSwitch, 255})
		for i := range l.Switches {
			out = append(out, Device{fmt.Sprintf("dev/nvidia-nvswitch%d", i), m.NVSwitch, i})
		}
	}
	return out
}
