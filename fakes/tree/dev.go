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
	if n.Profile.GPUs.Model.MIG != nil {
		w.device(fmt.Sprintf("dev/nvidia-caps/nvidia-cap%d", capMIGConfig), m.Caps, capMIGConfig)
		w.device(fmt.Sprintf("dev/nvidia-caps/nvidia-cap%d", capMIGMonitor), m.Caps, capMIGMonitor)
	}
	if x := n.Profile.IMEX; x != nil {
		w.dir("dev/nvidia-caps-imex-channels")
		for i := range x.Present {
			w.device(fmt.Sprintf("dev/nvidia-caps-imex-channels/channel%d", i), m.IMEXChannels, i)
		}
	}
	if l := n.Profile.GPUs.NVLink; l != nil && len(l.Switches) > 0 {
		w.device("dev/nvidia-nvswitchctl", m.NVSwitch, 255)
		for i := range l.Switches {
			w.device(fmt.Sprintf("dev/nvidia-nvswitch%d", i), m.NVSwitch, i)
		}
	}
}
