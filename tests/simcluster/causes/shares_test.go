//go:build causes

package causes

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"gpufabric.io/drivers/gpu/devices"

	"gpufabric.io/tests/simcluster/fixture"
)

// forms offers the GPUs of node number i in other forms.
func (g *ground) forms(i int, value string) {
	g.t.Helper()
	g.label(i, devices.FormsLabel, value)
}

// shaped waits until the node's condition says that it offers the forms of its label.
func (g *ground) shaped(i int, value string) {
	g.t.Helper()
	g.forms(i, value)
	g.until(nodeName(i)+" offers "+value, func(ctx context.Context) bool {
		n, err := g.Client.CoreV1().Nodes().Get(ctx, nodeName(i), metav1.GetOptions{})
		if err != nil {
			return false
		}
		for _, c := range n.Status.Conditions {
			if c.Type == "GPUForms" {
				return c.Reason == "NodeLabel"
			}
		}
		return false
	})
}

// object makes an object of gpufabric's own group for the time of the cause.
func (g *ground) object(resource, kind, name, spec string) {
	g.t.Helper()
	g.RemoveAtEnd(schema.GroupVersionResource{Group: "gpufabric.io", Version: "v1alpha1", Resource: resource}, "", name)
	g.Apply("{apiVersion: gpufabric.io/v1alpha1, kind: %s, metadata: {name: %s}, spec: %s}", kind, name, spec)
}

func (g *ground) layout(selector, devices string) {
	g.t.Helper()
	g.object("miglayouts", "MIGLayout", "l", fmt.Sprintf(
		`{nodeSelector: {matchLabels: %s}, layout: a, config: {version: v1, mig-configs: {a: [{devices: all, mig-enabled: true, `+
			`mig-devices: %s}]}}}`,
		selector, devices))
}

// mig makes a pod with a MIG device of node number i.
func (g *ground) mig(i int, selectors ...string) {
	g.t.Helper()
	g.claim("c", "mig.nvidia.com", 1, selectors...)
	g.pod("p", on(i), "c")
}

func shareCauses() []cause {
	const part = "MIG and shares"
	node := []string{"node", nodeName(1)}
	return []cause{
		{part, "MIG is asked for, and GPUs are whole", waits(), "NoSuchForm", nil, func(g *ground) {
			g.claim("c", "mig.nvidia.com", 1)
			g.pod("p", "", "c")
		}},
		{part, "a share is asked for, and GPUs are whole", waits(), "NoSuchForm", nil, func(g *ground) {
			g.share("c", "10Gi")
			g.pod("p", "", "c")
		}},
		{part, "a whole GPU is asked for, and the node's are cut", waits(), "NoSuchForm", nil, func(g *ground) {
			g.shaped(1, "mig_1g.23gb")
			g.claim("c", "gpu.nvidia.com", 1)
			g.pod("p", on(1), "c")
		}},
		{part, "a share is larger than any GPU", waits(), "ShareTooLarge", nil, func(g *ground) {
			g.shaped(1, "shareable")
			g.share("c", "2000Gi")
			g.pod("p", "", "c")
		}},
		{part, "all memory of the shared GPUs is held", waits(), "DevicesTaken", nil, func(g *ground) {
			g.shaped(1, "shareable")
			for i := range gpusPerNode {
				name := fmt.Sprintf("holder-%d", i)
				g.share(name, "180Gi")
				g.pod(name, "", name)
				g.AwaitPod(name, fixture.Running)
			}
			g.share("c", "20Gi")
			g.pod("p", "", "c")
		}},
		{part, "a MIG profile that no GPU has", waits(), "NoSuchDevice", nil, func(g *ground) {
			g.shaped(1, "mig_1g.23gb")
			g.claim("c", "mig.nvidia.com", 1, `device.attributes["gpu.nvidia.com"].profile == "3g.20gb"`)
			g.pod("p", "", "c")
		}},
		{part, "two rules of the chart contradict", node, "FormsContradict", nil, func(g *ground) { g.label(1, contradictory, "true") }},
		{part, "a node's label names a profile that its GPUs lack", node, "FormNotOnGPU", nil, func(g *ground) { g.forms(1, "mig_9g.999gb") }},
		{part, "a MIGLayout selects no node", nil, "NoNodes", nil, func(g *ground) { g.layout("{rack: none}", `{"1g.23gb": 7}`) }},
		{part, "a MIGLayout that no GPU can have", nil, "Failed", nil, func(g *ground) {
			g.remade(1)
			g.layout("{kubernetes.io/hostname: "+nodeName(1)+"}", `{"3g.93gb": 7}`)
		}},
		{part, "a MIGLayout waits for a claim's end", nil, "Waiting", nil, func(g *ground) {
			g.remade(1)
			g.holdAll(1)
			g.layout("{kubernetes.io/hostname: "+nodeName(1)+"}", `{"1g.23gb": 7}`)
		}},
		{part, "a VGPUProfile fits no GPU", nil, "NothingFits", nil, func(g *ground) {
			g.object("vgpuprofiles", "VGPUProfile", "v", `{mode: Software, memory: 10Gi, cores: 10, productNames: ["NVIDIA T4"]}`)
		}},
		{part, "MIG mode cannot be changed while the GPU is in use", waits(), "GPUNeedsReset", nil, func(g *ground) {
			g.remade(1)
			g.shaped(1, "mig_1g.23gb")
			for j := range gpusPerNode {
				g.fault(1, "mig-busy", with(gpu(j), "busy", "true"), "")
			}
			g.mig(1)
		}},
		{part, "a MIG form that GPUs lack, and a layout that selects no node", nil, "FormNotOnGPU", []string{"NoNodes"}, func(g *ground) {
			g.forms(1, "mig_9g.999gb")
			g.layout("{rack: none}", `{"1g.23gb": 7}`)
		}},
		{part, "a share where GPUs are whole, and the pod's node is cordoned", waits(), "NoSuchForm", nil, func(g *ground) {
			g.cordon(1)
			g.share("c", "10Gi")
			g.pod("p", on(1), "c")
		}},
	}
}
