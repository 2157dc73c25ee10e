package rdmakernel

import (
	"context"
	"fmt"
	"os/exec"
)

// machine is the emulated computer. The guest's tests recognise its parts by MAC addresses, which
// drivers/rdma/kerneltest/machine_test.go has too.
//
//	bus 0           two network controllers, for software devices
//	NUMA node 0     a PCIe switch with a network controller and a display controller behind it
//	NUMA node 1     a network controller with up to seven virtual functions, and two more network controllers
func (d debian) machine(ctx context.Context, initramfs string, arguments ...string) *exec.Cmd {
	command := "console=ttyS0 quiet panic=-1 mitigations=off net.ifnames=0 --"
	for _, argument := range arguments {
		command += " " + argument
	}
	args := []string{
		"-L", d.path("usr/share/qemu"), "-L", d.path("usr/share/seabios"), "-L", d.path("usr/lib/ipxe/qemu"),
		"-accel", "tcg,thread=multi", "-machine", "q35", "-cpu", "max", "-smp", "2", "-m", "768M",
		"-display", "none", "-no-reboot", "-nodefaults", "-serial", "stdio",
		"-kernel", d.path("boot/vmlinuz-" + d.kernel), "-initrd", initramfs, "-append", command,
		"-object", "memory-backend-ram,id=memory0,size=384M", "-object", "memory-backend-ram,id=memory1,size=384M",
		"-numa", "node,nodeid=0,memdev=memory0,cpus=0", "-numa", "node,nodeid=1,memdev=memory1,cpus=1",
		"-device", "pxb-pcie,id=numa0,bus=pcie.0,addr=10,bus_nr=64,numa_node=0", "-device",
		"pxb-pcie,id=numa1,bus=pcie.0,addr=11,bus_nr=128,numa_node=1",
		"-device", "pcie-root-port,id=root0,bus=numa0,chassis=1,slot=1", "-device", "x3130-upstream,id=switch,bus=root0",
		"-device", "xio3130-downstream,id=down0,bus=switch,chassis=2,slot=0", "-device",
		"xio3130-downstream,id=down1,bus=switch,chassis=2,slot=1",
		"-device", "bochs-display,bus=down1",
	}
	for i, bus := range []string{"root1", "root2", "root3"} {
		args = append(args, "-device", fmt.Sprintf("pcie-root-port,id=%s,bus=numa1,chassis=%d,slot=%d", bus, i+3, i+1))
	}
	for i, nic := range []struct{ model, bus string }{
		{"e1000e", "pcie.0,addr=3"}, {"e1000e", "pcie.0,addr=4"}, {"e1000e", "down0"}, {"igb", "root1"}, {"e1000e", "root2"}, {"e1000e", "root3"},
	} {
		// All are on one hub, so that each can send packets to every other.
		args = append(args, "-netdev", fmt.Sprintf("hubport,hubid=0,id=net%d", i),
			"-device", fmt.Sprintf("%s,netdev=net%d,romfile=,mac=52:54:00:00:00:%02x,bus=%s", nic.model, i, i+1, nic.bus))
	}
	return d.command(ctx, "usr/bin/qemu-system-x86_64", args...)
}
