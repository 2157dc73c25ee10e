package tree

import (
	"fmt"

	"gpufabric.io/fakes/profile"
)

func writeDev(w *writer, n *profile.Node) {
	w.dir("dev")
	if len(n.GPUs) > 0 {
		writeGPUDevices(w, n)
	}
	if len(n.NICs) > 0 {
		w.device("dev/infiniband/rdma_cm", rdmaCMMajor, rdmaCMMinor)
	}
	for _, nic := range n.NICs {
		w.device(fmt.Sprintf("dev/infiniband/uverbs%d", nic.Index), infinibandMajor, uverbsMinor+nic.Index)
		w.device(fmt.Sprintf("dev/infiniband/umad%d", nic.Index), infinibandMajor, nic.Index)
		if nic.Link == "InfiniBand" {
			w.device(fmt.Sprintf("dev/infiniband/issm%d", nic.Index), infinibandMajor, issmMinor+nic.Index)
		}
	}
}

func writeGPUDevices(w *writer, n *profile.Node) {
	m := n.Profile.Driver.MajorsOrDefault()
	for _, g := range n.GPUs {
		w.device(fmt.Sprintf("dev/nvidia%d", g.Minor), m.NVIDIA, g.Minor)
	}
	w.device("dev/nvidiactl", m.NVIDIA, 255)
	w.device("dev/nvidia-modeset", m.NVIDIA, 254)
	w.device("dev/nvidia-uvm", m.UVM, 0)
	w.device("dev/nvidia-uvm-tools", m.UVM, 1)
	// Neither capability nodes nor channels: their users make them, as nvidia-modprobe does (open-gpu-kernel-modules, nv-reg.h,
	// ImexChannelCount: "the NVIDIA driver will not attempt to create the /dev nodes"). The exception is channel 0 where the module
	// was loaded with NVreg_CreateImexChannel0=1.
	if x := n.Profile.IMEX; x != nil && x.CreateChannel0 {
		w.device("dev/nvidia-caps-imex-channels/channel0", m.IMEXChannels, 0)
	}
	if l := n.Profile.GPUs.NVLink; l != nil && len(l.Switches) > 0 {
		w.device("dev/nvidia-nvswitchctl", m.NVSwitch, 255)
		for i := range l.Switches {
			w.device(fmt.Sprintf("dev/nvidia-nvswitch%d", i), m.NVSwitch, i)
		}
	}
}
