//go:build causes

package causes

import "gpufabric.io/tests/simcluster/fixture"

// waits is the pod that the doctor is asked about.
func waits() []string { return []string{"pod", "p"} }

func all() []int {
	var out []int
	for i := range nodes {
		out = append(out, i)
	}
	return out
}

// wants makes a pod with a claim of this many GPUs.
func wants(count int, selectors ...string) func(*ground) {
	return func(g *ground) {
		g.claim("c", "gpu.nvidia.com", count, selectors...)
		g.pod("p", "", "c")
	}
}

func schedulingCauses() []cause {
	const part = "scheduling"
	return []cause{
		{part, "all GPUs are held", waits(), "DevicesTaken", nil, func(g *ground) {
			g.holdAll(all()...)
			wants(1)(g)
		}},
		{part, "more GPUs are asked for than a node has", waits(), "DevicesTooFew", nil, wants(gpusPerNode + 1)},
		{part, "the class is not there", waits(), "ClassMissing", nil, func(g *ground) {
			g.claim("c", "gpu.nvidia.cmo", 1)
			g.pod("p", "", "c")
		}},
		{part, "the claim is not there", waits(), "ClaimMissing", nil, func(g *ground) { g.pod("p", "", "c") }},
		{part, "the claim template is not there", waits(), "ClaimTemplateMissing", nil, func(g *ground) { g.ClaimPod("p", "", "one-gup") }},
		{part, "a scheduling gate is not removed", waits(), "PodGated", nil, func(g *ground) {
			g.claim("c", "gpu.nvidia.com", 1)
			g.pod("p", "schedulingGates: [{name: example.com/admission}]", "c")
		}},
		{part, "the scheduler of that name does not run", waits(), "SchedulerMissing", nil, func(g *ground) {
			g.claim("c", "gpu.nvidia.com", 1)
			g.pod("p", "schedulerName: volcano", "c")
		}},
		{part, "all nodes are cordoned", waits(), "NodeCordoned", nil, func(g *ground) {
			for i := range nodes {
				g.cordon(i)
			}
			wants(1)(g)
		}},
		{part, "all nodes have a taint", waits(), "NodeTaintNotTolerated", nil, func(g *ground) {
			for i := range nodes {
				g.node(i, `{"spec":{"taints":[{"key":"team","value":"a","effect":"NoSchedule"}]}}`,
					`{"spec":{"taints":null}}`)
			}
			wants(1)(g)
		}},
		{part, "the pod's selector excludes the nodes", waits(), "NodesExcluded", nil, func(g *ground) {
			g.claim("c", "gpu.nvidia.com", 1)
			g.pod("p", `nodeSelector: {rack: "7"}`, "c")
		}},
		{part, "a selector names an attribute that is not there", waits(), "SelectorFails", nil,
			wants(1, `device.attributes["gpu.nvidia.com"].model == "x"`)},
		{part, "a selector selects another model", waits(), "NoSuchDevice", nil,
			wants(1, `device.attributes["gpu.nvidia.com"].productName == "NVIDIA H100"`)},
		{part, "an extended resource is spelt wrong", waits(), "ExtendedResourceMissing", nil,
			func(g *ground) { g.LimitPod("p", "", "nvidia.com/gpus: 1") }},
		{part, "GPUs by nvidia.com/gpu are all held", waits(), "DevicesTaken", nil, func(g *ground) {
			g.holdAll(all()...)
			g.LimitPod("p", "", "nvidia.com/gpu: 1")
		}},
		{part, "the pod is larger than any node", waits(), "NoRoomForPod", nil, func(g *ground) {
			g.Apply(`
apiVersion: v1
kind: Pod
metadata: {name: p}
spec: {containers: [{name: main, image: "ubuntu:24.04", resources: {limits: {nvidia.com/gpu: 1}, requests: {cpu: "500"}}}]}
`)
		}},
		{part, "a claim is allocated where its second pod cannot go", waits(), "ClaimInUse", nil, func(g *ground) {
			g.claim("c", "gpu.nvidia.com", 1)
			g.pod("first", on(0), "c")
			g.AwaitPod("first", fixture.Running)
			g.pod("p", on(1), "c")
		}},
		{part, "the node of the pod is off", waits(), "NodeNotReady", nil, func(g *ground) {
			g.silence(2)
			g.AwaitReady(nodeName(2), false)
			g.claim("c", "gpu.nvidia.com", 1)
			g.pod("p", on(2), "c")
		}},
		{part, "a gate, and all GPUs are held", waits(), "PodGated", []string{"DevicesTaken"}, func(g *ground) {
			g.holdAll(all()...)
			g.claim("c", "gpu.nvidia.com", 1)
			g.pod("p", "schedulingGates: [{name: queue}]", "c")
		}},
		{part, "two nodes are cordoned, and the others are full", waits(), "NodeCordoned", []string{"DevicesTaken"}, func(g *ground) {
			g.holdAll(2, 3)
			g.cordon(0)
			g.cordon(1)
			wants(1)(g)
		}},
		{part, "a node is off, and the others are full", waits(), "NodeNotReady", []string{"DevicesTaken"}, func(g *ground) {
			g.holdAll(0, 1, 2)
			g.silence(3)
			g.AwaitReady(nodeName(3), false)
			wants(1)(g)
		}},
	}
}
