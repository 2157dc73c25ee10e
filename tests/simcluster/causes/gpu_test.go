//go:build causes

package causes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpufabric.io/fakes/fault"

	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/fixture"
)

func gpu(i int) fault.Arguments { return fault.Arguments{"gpu": strconv.Itoa(i)} }

func with(args fault.Arguments, name, value string) fault.Arguments {
	args[name] = value
	return args
}

// remade gives node number i new hardware and a new boot when the cause is undone. That ends faults which only a reset ends.
func (g *ground) remade(i int) {
	g.later(func(ctx context.Context) error {
		dir := cluster.NodeDir(g.Dir, i)
		// The plugin's record of faults is removed too, as by an administrator who replaced the GPUs.
		err := errors.Join(os.Remove(filepath.Join(hardware(i), "state/rendered.json")), os.RemoveAll(filepath.Join(dir, "r/var/lib/gpufabric")))
		before, failed := g.Client.CoreV1().Nodes().Get(ctx, nodeName(i), metav1.GetOptions{})
		if err = errors.Join(err, failed); err != nil {
			return err
		}
		g.Fleet.Reboot(i)
		for ctx.Err() == nil {
			now, err := g.Client.CoreV1().Nodes().Get(ctx, nodeName(i), metav1.GetOptions{})
			if err == nil && now.Status.NodeInfo.BootID != before.Status.NodeInfo.BootID && cluster.NodeReady(now) {
				return nil
			}
		}
		return fmt.Errorf("%s does not come back: %w", nodeName(i), ctx.Err())
	})
}

// move moves a part of a node's hardware away.
func (g *ground) move(i int, path string) {
	g.t.Helper()
	at := filepath.Join(hardware(i), path)
	if err := os.Rename(at, at+".aside"); err != nil {
		g.t.Fatal(err)
	}
	g.later(func(context.Context) error { return os.Rename(at+".aside", at) })
}

// restart replaces gpu-plugin's pod on node number i, as a reboot would, and waits until the new one has reported the state of
// the driver.
func (g *ground) restart(i int) {
	g.t.Helper()
	begin := time.Now()
	g.evict("gpu-plugin", i)
	g.until("gpu-plugin has looked at the driver", func(ctx context.Context) bool {
		n, err := g.Client.CoreV1().Nodes().Get(ctx, nodeName(i), metav1.GetOptions{})
		return err == nil && slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == "GPUDriver" && c.LastTransitionTime.After(begin.Truncate(time.Second))
		}) || time.Since(begin) > patience/2
	})
}

// slicesOf are the ResourceSlices of a driver on node number i.
func (g *ground) slicesOf(ctx context.Context, driver string, i int) []resourceapi.ResourceSlice {
	list, err := g.Client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{
		FieldSelector: "spec.driver=" + driver + ",spec.nodeName=" + nodeName(i)})
	if err != nil {
		g.t.Fatal(err)
	}
	return list.Items
}

// holdsGPU makes a running pod p with a GPU of node number i, and returns the GPU's index.
func (g *ground) holdsGPU(i int) int {
	g.t.Helper()
	g.claim("c", "gpu.nvidia.com", 1)
	g.pod("p", on(i), "c")
	g.AwaitPod("p", fixture.Running)
	got := g.Allocated("p")
	if len(got) != 1 {
		g.t.Fatalf("the pod has %v", got)
	}
	var index int
	if _, err := fmt.Sscanf(got[0].Device, "gpu-%d", &index); err != nil {
		g.t.Fatalf("device %s: %v", got[0].Device, err)
	}
	return index
}

// broken gives all GPUs of a node an XID that only a reset ends.
func (g *ground) broken(i int) {
	g.t.Helper()
	g.remade(i)
	for j := range gpusPerNode {
		g.fault(i, "xid", with(gpu(j), "code", "119"), "")
	}
	g.until(nodeName(i)+" has taints", func(ctx context.Context) bool {
		for _, s := range g.slicesOf(ctx, "gpu.nvidia.com", i) {
			if slices.ContainsFunc(s.Spec.Devices, func(d resourceapi.Device) bool { return len(d.Taints) == 0 }) {
				return false
			}
		}
		return true
	})
}

func gpuCauses() []cause {
	const part = "GPU"
	node := []string{"node", nodeName(1)}
	return []cause{
		{part, "a GPU has an XID", node, "gpu.nvidia.com/xid", nil, func(g *ground) {
			g.remade(1)
			g.fault(1, "xid", with(gpu(2), "code", "119"), "")
		}},
		{part, "a GPU has memory errors that were not corrected", node, "gpu.nvidia.com/ecc", nil, func(g *ground) {
			g.remade(1)
			g.fault(1, "ecc", with(gpu(0), "kind", "uncorrected"), "")
		}},
		{part, "a GPU fell off the bus", node, "gpu.nvidia.com/lost", nil, func(g *ground) {
			g.remade(1)
			g.fault(1, "gpu-lost", gpu(3), "")
		}},
		{part, "an NVLink is down", node, "gpu.nvidia.com/nvlink", nil, func(g *ground) {
			g.fault(1, "nvlink-down", with(gpu(1), "link", "4"), "nvlink-up")
		}},
		{part, "the GPU of a pod that runs has an XID", waits(), "gpu.nvidia.com/xid", nil, func(g *ground) {
			g.remade(1)
			g.fault(1, "xid", with(gpu(g.holdsGPU(1)), "code", "119"), "")
		}},
		{part, "all GPUs of the pod's node have an XID", waits(), "gpu.nvidia.com/xid", nil, func(g *ground) {
			g.broken(1)
			g.claim("c", "gpu.nvidia.com", 1)
			g.pod("p", on(1), "c")
		}},
		{part, "kernel modules of another version are loaded", node, "DriverVersionsDiffer", nil, func(g *ground) {
			g.remade(1)
			g.fault(1, "driver-version", fault.Arguments{"version": "570.158.01"}, "")
		}},
		{part, "the driver's files are gone", node, "DriverNotFound", nil, func(g *ground) {
			g.move(1, "driver/usr")
			g.restart(1)
		}},
		{part, "the node's pod of the plugin is missing", node, "PluginNotRunning", nil, func(g *ground) {
			g.forbid()
			g.evict("gpu-plugin", 1)
		}},
		{part, "the kubelet does not know the driver of the pod's claim", waits(), "PluginNotRunning", []string{"PluginNotRegistered"},
			func(g *ground) {
				g.forbid()
				g.evict("gpu-plugin", 1)
				g.claim("c", "gpu.nvidia.com", 1)
				g.pod("p", on(1), "c")
			}},
		{part, "GPUs of one node have XIDs, and those of the others are held", waits(), "gpu.nvidia.com/xid", []string{"DevicesTaken"},
			func(g *ground) {
				g.holdAll(0, 2, 3)
				g.broken(1)
				wants(1)(g)
			}},
		{part, "a node has no driver, and another is cordoned", nil, "NodeCordoned", []string{"DriverNotFound"}, func(g *ground) {
			g.move(1, "driver/usr")
			g.restart(1)
			g.cordon(2)
		}},
	}
}
