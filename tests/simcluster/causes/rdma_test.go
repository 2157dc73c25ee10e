//go:build causes

package causes

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"gpufabric.io/fakes/fault"
)

func nic(device string) fault.Arguments { return fault.Arguments{"device": device} }

// write replaces a file of the node's /sys or /proc, as the kernel would show another value.
func (g *ground) write(i int, pattern, text string) {
	g.t.Helper()
	found, err := filepath.Glob(filepath.Join(hardware(i), pattern))
	if err != nil || len(found) != 1 {
		g.t.Fatalf("%s is %v on %s (%v)", pattern, found, nodeName(i), err)
	}
	before, err := os.ReadFile(found[0])
	if err == nil {
		err = os.WriteFile(found[0], []byte(text), 0o644)
	}
	if err != nil {
		g.t.Fatal(err)
	}
	g.later(func(context.Context) error { return os.WriteFile(found[0], before, 0o644) })
}

func rdmaCauses() []cause {
	const part = "RDMA"
	pool := []string{"pool", "rail"}
	firmware := func(g *ground, i int) {
		g.fault(i, "firmware-change", fault.Arguments{"device": "mlx5_1", "version": "28.39.1002"}, "")
		g.later(func(context.Context) error {
			return fault.Apply(hardware(i), "firmware-change", fault.Arguments{"device": "mlx5_1", "version": "28.44.2524"})
		})
	}
	down := func(g *ground, i int, device string) { g.fault(i, "port-down", nic(device), "port-up") }
	return []cause{
		{part, "a port is down", nil, "rdma.gpufabric.io/port-down", nil, func(g *ground) { down(g, 1, "mlx5_0") }},
		{part, "an interface has another MTU than its like", nil, "RailMTUDiffers", nil, func(g *ground) {
			g.write(1, "sys/class/infiniband/mlx5_0/device/net/*/mtu", "1500\n")
		}},
		{part, "a link came up slower", nil, "RailRateDiffers", nil, func(g *ground) {
			g.write(1, "sys/class/infiniband/mlx5_0/ports/1/rate", "200 Gb/sec (4X HDR)\n")
		}},
		{part, "a NIC has another link layer", nil, "RailLinkLayerDiffers", nil, func(g *ground) {
			g.write(1, "sys/class/infiniband/mlx5_0/ports/1/link_layer", "Ethernet\n")
		}},
		{part, "a NIC has another firmware", nil, "NICFirmwareDiffers", nil, func(g *ground) { firmware(g, 1) }},
		{part, "a node has neither peermem nor dma-buf", nil, "NoGPUDirect", nil, func(g *ground) {
			g.write(1, "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX aarch64 Kernel Module  580.95.05\n")
		}},
		{part, "a pool's selectors match no device", pool, "NoMatchingDevices", nil, func(g *ground) {
			g.Pool("rail", `{resourceName: rail, rdmaHcaMax: 1, selectors: {deviceIDs: ["ffff"]}}`)
		}},
		{part, "a pool's devices are all down", pool, "rdma.gpufabric.io/port-down", []string{"DevicesDown"}, func(g *ground) {
			for i := range nodes {
				down(g, i, "mlx5_0")
			}
			g.Pool("rail", `{resourceName: rail, rdmaHcaMax: 1, selectors: {ifNames: [ibp3s0]}}`)
		}},
		{part, "some of a pool's devices are down", pool, "rdma.gpufabric.io/port-down", []string{"DevicesDown"}, func(g *ground) {
			down(g, 2, "mlx5_0")
			g.Pool("rail", `{resourceName: rail, rdmaHcaMax: 1, selectors: {ifNames: [ibp3s0]}}`)
		}},
		{part, "two pools want the same devices", pool, "ClaimedByOthers", nil, func(g *ground) {
			g.Pool("first", `{resourceName: first, mode: Exclusive, selectors: {vendors: ["15b3"]}}`)
			g.Pool("rail", `{resourceName: rail, mode: Exclusive, selectors: {vendors: ["15b3"]}}`)
		}},
		{part, "all ports of a pod's rail are down", waits(), "rdma.gpufabric.io/port-down", nil, func(g *ground) {
			for i := range nodes {
				down(g, i, "mlx5_0")
			}
			g.claim("c", "rdma.gpufabric.io", 1, `device.attributes["rdma.gpufabric.io"].rdmaDevice == "mlx5_0"`)
			g.pod("p", "", "c")
		}},
		{part, "more NICs are asked for than a node has", waits(), "DevicesTooFew", nil, func(g *ground) {
			g.claim("c", "rdma.gpufabric.io", 30, fmt.Sprintf(`device.attributes["rdma.gpufabric.io"].linkLayer == %q`, "InfiniBand"))
			g.pod("p", "", "c")
		}},
		{part, "a port is down, and another NIC has another firmware", nil, "rdma.gpufabric.io/port-down", []string{"NICFirmwareDiffers"},
			func(g *ground) {
				down(g, 1, "mlx5_0")
				firmware(g, 2)
			}},
		{part, "the rate and the MTU of a NIC differ", nil, "RailMTUDiffers", []string{"RailRateDiffers"}, func(g *ground) {
			g.write(1, "sys/class/infiniband/mlx5_0/device/net/*/mtu", "1500\n")
			g.write(1, "sys/class/infiniband/mlx5_0/ports/1/rate", "100 Gb/sec (4X EDR)\n")
		}},
	}
}
