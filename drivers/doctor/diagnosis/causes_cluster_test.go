package diagnosis_test

import (
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/drivers/doctor/diagnosis"
	"gpufabric.io/drivers/gpu/devices"
)

// refusedByServer tries to create a pod as the DaemonSet's controller would, and writes the API server's message into the
// controller's Event.
func refusedByServer(g *ground, p *corev1.Pod, set string) {
	g.t.Helper()
	// The API server's admission sees a quota when its watch has it.
	var err error
	for deadline := time.Now().Add(5 * time.Minute); err == nil; time.Sleep(20 * time.Millisecond) {
		if err = g.client.Create(g.t.Context(), p.DeepCopy(), client.DryRunAll); err == nil && time.Now().After(deadline) {
			g.t.Fatal("the API server takes the pod")
		}
	}
	g.put(event("DaemonSet", p.Namespace, set, "", "daemonset-controller", "FailedCreate", "Error creating: "+err.Error()))
	change(g, system, set, func(d *appsv1.DaemonSet) {
		d.Status.CurrentNumberScheduled, d.Status.NumberReady, d.Status.NumberAvailable = 2, 2, 2
	})
}

// fewer makes a pod of a DaemonSet missing.
func fewer(g *ground, set string) {
	change(g, system, set, func(d *appsv1.DaemonSet) { d.Status.NumberReady = 2; d.Status.NumberAvailable = 2 })
}

func waitingContainer(p *corev1.Pod, reason, message string) {
	p.Status = corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{Name: "main",
		Image: "registry.example.com/x:1",
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}}}
}

func installCauses() []cause {
	pluginPodName := "gpufabric-gpu-plugin-n1"
	return []cause{
		{"install", "the chart is not installed", install(), "NotInstalled", nil, func(g *ground) {
			for _, d := range []string{"gpu-plugin", "compute-domain-plugin", "rdma-plugin"} {
				g.remove(&appsv1.DaemonSet{}, system, "gpufabric-"+d)
			}
		}},
		{"install", "PodSecurity refuses the plugin's pods", install(), "PodSecurityRefuses", nil, func(g *ground) {
			change(g, "", system, func(n *corev1.Namespace) { n.Labels["pod-security.kubernetes.io/enforce"] = "restricted" })
			p := pluginPod("gpu-plugin", "n1")
			p.Name += "-2"
			p.Spec.Volumes = []corev1.Volume{{Name: "h", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/dev"}}}}
			refusedByServer(g, p, "gpufabric-gpu-plugin")
		}},
		{"install", "a quota has no room for the plugin's pods", install(), "QuotaExceeded", nil, func(g *ground) {
			hard := corev1.ResourceList{corev1.ResourcePods: resource.MustParse("1")}
			g.put(&corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "small"}, Spec: corev1.ResourceQuotaSpec{Hard: hard},
				Status: corev1.ResourceQuotaStatus{Hard: hard, Used: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("1")}}})
			p := pluginPod("rdma-plugin", "n1")
			p.Name += "-2"
			refusedByServer(g, p, "gpufabric-rdma-plugin")
		}},
		{"install", "the image cannot be pulled", install(), "ImageNotPulled", nil, func(g *ground) {
			change(g, system, pluginPodName, func(p *corev1.Pod) { waitingContainer(p, "ImagePullBackOff", "Back-off pulling image") })
			fewer(g, "gpufabric-gpu-plugin")
		}},
		{"install", "the image cannot be pulled, and an earlier pod was refused", install(), "ImageNotPulled", nil, func(g *ground) {
			g.put(event("DaemonSet", system, "gpufabric-gpu-plugin", "", "daemonset-controller", "FailedCreate",
				"Error creating: pods \"x\" is forbidden: exceeded quota: small"))
			change(g, system, pluginPodName, func(p *corev1.Pod) { waitingContainer(p, "ImagePullBackOff", "Back-off pulling image") })
			fewer(g, "gpufabric-gpu-plugin")
		}},
		{"install", "a plugin crashes", install(), "PluginCrashes", nil, func(g *ground) {
			change(g, system, pluginPodName, func(p *corev1.Pod) {
				waitingContainer(p, "CrashLoopBackOff", "")
				p.Status.ContainerStatuses[0].RestartCount = 7
				p.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 2, Message: "panic: x"}
			})
			fewer(g, "gpufabric-gpu-plugin")
		}},
		{"install", "a plugin is not ready", install(), "PluginNotReady", nil, func(g *ground) {
			change(g, system, pluginPodName, func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse })
			fewer(g, "gpufabric-gpu-plugin")
		}},
		{"install", "the plugins select no node", install(), "PluginNotPlaced", nil, func(g *ground) {
			change(g, system, "gpufabric-rdma-plugin", func(d *appsv1.DaemonSet) {
				d.Spec.Template.Spec.NodeSelector = map[string]string{"rack": "none"}
				d.Status = appsv1.DaemonSetStatus{ObservedGeneration: 99}
			})
		}},
		{"install", "the controller does not run", install(), "ControllerNotReady", nil, func(g *ground) {
			change(g, system, "gpufabric-controller", func(d *appsv1.Deployment) { d.Status = appsv1.DeploymentStatus{Replicas: 1} })
		}},
		{"install", "another DRA driver runs", install(), "OtherDriver", nil,
			func(g *ground) { g.put(foreign("nvidia-dra-driver-gpu-kubelet-plugin")) }},
		{"install", "a device plugin runs beside", install(), "OtherDevicePlugin", nil,
			func(g *ground) { g.put(foreign("nvidia-device-plugin-daemonset")) }},
		{"install", "a kubelet is too old", install(), "KubeletTooOld", nil, func(g *ground) {
			change(g, "", "n1", func(n *corev1.Node) { n.Status.NodeInfo.KubeletVersion = "v1.33.4" })
		}},
		{"install", "a node's clock is ahead", install(), "ClockSkew", nil, func(g *ground) { g.put(lease("n1", time.Hour)) }},
		{"install", "a node is not ready, and its image is missing too", install(), "ImageNotPulled", []string{"NodeNotReady"}, func(g *ground) {
			notReady(g, "n2")
			change(g, system, pluginPodName, func(p *corev1.Pod) { waitingContainer(p, "ErrImagePull", "") })
			fewer(g, "gpufabric-gpu-plugin")
		}},
		{"install", "another driver runs, and a kubelet is too old", install(), "KubeletTooOld", []string{"OtherDriver"}, func(g *ground) {
			g.put(foreign("k8s-dra-driver-gpu"))
			change(g, "", "n1", func(n *corev1.Node) { n.Status.NodeInfo.KubeletVersion = "v1.33.9" })
		}},
	}
}

func foreign(name string) *appsv1.DaemonSet {
	labels := map[string]string{"app": name}
	t := template(labels, "main")
	t.Spec.Containers[0].Image = "nvcr.io/nvidia/" + name + ":1"
	return &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name}, Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: t}}
}

func lease(node string, ahead time.Duration) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: node},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &node, RenewTime: ptr.To(metav1.NewMicroTime(time.Now().Add(ahead)))}}
}

func notReady(g *ground, node string) {
	change(g, "", node, func(n *corev1.Node) {
		n.Status.Conditions[0] = corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown",
			Message: "Kubelet stopped posting node status."}
	})
}

// takeAll gives the node's GPUs to claims of others.
func takeAll(g *ground, nodes ...string) {
	for _, n := range nodes {
		names := []string{"gpu-0", "gpu-1", "gpu-2", "gpu-3"}
		g.put(allocated(claim("held-"+n, "gpu.nvidia.com", 4), devices.Driver, devices.PoolName(n), names...))
	}
}

// withdrawFull has claims use all shares of a node's GPUs, which gpu-plugin then does not publish.
func withdrawFull(g *ground, node string) {
	g.remove(&resourceapi.ResourceSlice{}, "", node+"-gpu-0")
	g.put(slice(node+"-gpu-0", devices.Driver, devices.PoolName(node), node, 1, nil, nil))
	c := allocated(claim("full-"+node, "gpu.nvidia.com", 4), devices.Driver, devices.PoolName(node), "gpu-0", "gpu-1", "gpu-2", "gpu-3")
	for i := range c.Status.Allocation.Devices.Results {
		c.Status.Allocation.Devices.Results[i].ShareID = ptr.To(types.UID(fmt.Sprintf("5b7f4d5e-0000-4000-8000-00000000000%d", i)))
	}
	g.put(c)
}

func schedulingCauses() []cause {
	const part = "scheduling"
	all := func(g *ground, to func(*corev1.Node)) {
		for i := range 3 {
			change(g, "", nodeName(i), to)
		}
	}
	wants := func(count int64, selectors ...string) func(*ground) {
		return func(g *ground) {
			g.put(claim("c", "gpu.nvidia.com", count, selectors...), pod("p", "", "c"))
		}
	}
	return []cause{
		{part, "all GPUs are held", ofPod("p"), "DevicesTaken", nil, func(g *ground) { takeAll(g, "n0", "n1", "n2"); wants(1)(g) }},
		{part, "all GPUs are full of shares, and not published meanwhile", ofPod("p"), "DevicesTaken", nil, func(g *ground) {
			for i := range 3 {
				withdrawFull(g, nodeName(i))
			}
			wants(1)(g)
		}},
		{part, "a MIG profile is asked for where full GPUs are not published", ofPod("p"), "NoSuchDevice", nil, func(g *ground) {
			for i := range 3 {
				withdrawFull(g, nodeName(i))
			}
			g.put(claim("c", "mig.nvidia.com", 1), pod("p", "", "c"))
		}},
		{part, "more GPUs are asked for than a node has", ofPod("p"), "DevicesTooFew", nil, wants(5)},
		{part, "the class is not there", ofPod("p"), "ClassMissing", nil, func(g *ground) {
			g.put(claim("c", "gpu.nvidia.cmo", 1), pod("p", "",
				"c"))
		}},
		{part, "the claim is not there", ofPod("p"), "ClaimMissing", nil, func(g *ground) { g.put(pod("p", "", "c")) }},
		{part, "the claim template is not there", ofPod("p"), "ClaimTemplateMissing", nil, func(g *ground) {
			p := pod("p", "", "c")
			p.Spec.ResourceClaims[0] = corev1.PodResourceClaim{Name: "c", ResourceClaimTemplateName: ptr.To("one-gup")}
			g.put(p)
		}},
		{part, "a scheduling gate is not removed", ofPod("p"), "PodGated", nil, func(g *ground) {
			p := pod("p", "", "c")
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "kueue.x-k8s.io/admission"}}
			g.put(claim("c", "gpu.nvidia.com", 1), p)
		}},
		{part, "the scheduler of that name does not run", ofPod("p"), "SchedulerMissing", nil, func(g *ground) {
			p := pod("p", "", "c")
			p.Spec.SchedulerName = "volcano"
			g.put(claim("c", "gpu.nvidia.com", 1), p)
		}},
		{part, "all nodes are cordoned", ofPod("p"), "NodeCordoned", nil, func(g *ground) {
			all(g, func(n *corev1.Node) { n.Spec.Unschedulable = true })
			wants(1)(g)
		}},
		{part, "all nodes have a taint", ofPod("p"), "NodeTaintNotTolerated", nil, func(g *ground) {
			all(g, func(n *corev1.Node) {
				n.Spec.Taints = []corev1.Taint{{Key: "team", Value: "a", Effect: corev1.TaintEffectNoSchedule}}
			})
			wants(1)(g)
		}},
		{part, "the pod's selector excludes the nodes", ofPod("p"), "NodesExcluded", nil, func(g *ground) {
			p := pod("p", "", "c")
			p.Spec.NodeSelector = map[string]string{"rack": "7"}
			g.put(claim("c", "gpu.nvidia.com", 1), p)
		}},
		{part, "a selector names an attribute that is not there", ofPod("p"), "SelectorFails", nil,
			wants(1, `device.attributes["gpu.nvidia.com"].model == "x"`)},
		{part, "a selector selects another model", ofPod("p"), "NoSuchDevice", nil, wants(1,
			`device.attributes["gpu.nvidia.com"].productName == "NVIDIA H100"`)},
		{part, "an extended resource is spelt wrong", ofPod("p"), "ExtendedResourceMissing", nil, func(g *ground) {
			p := pod("p", "")
			limits := corev1.ResourceList{"nvidia.com/gpus": resource.MustParse("1")}
			p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Limits: limits, Requests: limits}
			g.put(p)
		}},
		{part, "the pod is larger than any node", ofPod("p"), "NoRoomForPod", nil, func(g *ground) {
			p := pod("p", "", "c")
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500")}
			g.put(claim("c", "gpu.nvidia.com", 1), p)
		}},
		{part, "a claim is allocated where its second pod cannot go", ofPod("p"), "ClaimInUse", nil, func(g *ground) {
			p := pod("p", "", "c")
			p.Spec.NodeSelector = map[string]string{"kubernetes.io/hostname": "n1"}
			g.put(allocated(claim("c", "gpu.nvidia.com", 1), devices.Driver, devices.PoolName("n0"), "gpu-0"), p)
		}},
		{part, "a pod is bound to a node whose GPUs are held", ofPod("p"), "DevicesTaken", []string{"NodesExcluded"}, func(g *ground) {
			takeAll(g, "n1")
			p := pod("p", "", "c")
			p.Spec.NodeSelector = map[string]string{"kubernetes.io/hostname": "n1"}
			g.put(claim("c", "gpu.nvidia.com", 1), p)
		}},
		{part, "a gate, and all GPUs are held", ofPod("p"), "PodGated", []string{"DevicesTaken"}, func(g *ground) {
			takeAll(g, "n0", "n1", "n2")
			p := pod("p", "", "c")
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "queue"}}
			g.put(claim("c", "gpu.nvidia.com", 1), p)
		}},
		{part, "two nodes are cordoned, and the third is full", ofPod("p"), "NodeCordoned", []string{"DevicesTaken"}, func(g *ground) {
			for _, n := range []string{"n0", "n1"} {
				change(g, "", n, func(n *corev1.Node) { n.Spec.Unschedulable = true })
			}
			takeAll(g, "n2")
			wants(1)(g)
		}},
	}
}

// noDriver writes the node's condition GPUDriver as gpu-plugin does, and removes what the plugin then cannot publish.
func noDriver(g *ground, node, reason, message string) {
	change(g, "", node, func(n *corev1.Node) {
		n.Status.Conditions[1] = corev1.NodeCondition{Type: "GPUDriver", Status: corev1.ConditionFalse, Reason: reason, Message: message}
	})
	g.remove(&resourceapi.ResourceSlice{}, "", node+"-gpu-0")
}

func taintGPUs(g *ground, node, key, value string) {
	g.remove(&resourceapi.ResourceSlice{}, "", node+"-gpu-0")
	g.put(gpuSlices(node, "whole", &resourceapi.DeviceTaint{Key: key, Value: value, Effect: resourceapi.DeviceTaintEffectNoSchedule})...)
}

func onNode(name string) diagnosis.Subject {
	return diagnosis.Subject{Kind: diagnosis.Node, Name: name}
}

func gpuCauses() []cause {
	const part = "GPU"
	one := func(g *ground) { g.put(claim("c", "gpu.nvidia.com", 1), pod("p", "", "c")) }
	out := []cause{
		{part, "no node has a driver", ofPod("p"), "DriverNotFound", []string{"NoSuchDevice"}, func(g *ground) {
			for i := range 3 {
				noDriver(g, nodeName(i), "DriverNotFound", "no libnvidia-ml.so.1 under /host")
			}
			one(g)
		}},
		{part, "the driver is not loaded", onNode("n1"), "DriverNotLoaded", nil, func(g *ground) {
			noDriver(g, "n1", "DriverNotLoaded",
				"no /proc/driver/nvidia")
		}},
		{part, "the driver's files and modules differ", onNode("n1"), "DriverVersionsDiffer", nil, func(g *ground) {
			noDriver(g, "n1", "DriverVersionsDiffer", "files 580.95.5, modules 570.158.1")
		}},
		{part, "GPUs are missing", onNode("n1"), "GPUsIncomplete", nil, func(g *ground) { noDriver(g, "n1", "GPUsIncomplete", "3 of 4 GPUs") }},
		{part, "nodes of one clique have two drivers", install(), "DriverVersionsAcrossNodes", nil, func(g *ground) {
			for i := range 3 {
				g.remove(&resourceapi.ResourceSlice{}, "", nodeName(i)+"-gpu-0")
				g.put(gpuSlicesOf(nodeName(i), "whole", map[bool]string{true: "570.158.1", false: "580.95.5"}[i == 1], "rack-1.3", nil)...)
			}
		}},
		{part, "the plugin runs and publishes nothing", onNode("n1"), "SlicesMissing", nil, func(g *ground) {
			g.remove(&resourceapi.ResourceSlice{}, "", "n1-gpu-0")
		}},
		{part, "a part of a pool's slices is missing", onNode("n1"), "SlicesIncomplete", nil, func(g *ground) {
			change(g, "", "n1-gpu-0", func(s *resourceapi.ResourceSlice) { s.Spec.Pool.ResourceSliceCount = 2 })
		}},
		{part, "the plugin's pod is missing on a node", onNode("n1"), "PluginNotRunning", nil, func(g *ground) {
			g.remove(&corev1.Pod{}, system, "gpufabric-gpu-plugin-n1")
		}},
		{part, "the container runtime reads no CDI", onNode("n1"), "ContainerRuntimeReadsNoCDI", nil, func(g *ground) {
			g.put(event("Node", "", "n1", "n1", "gpu-plugin", "ContainerRuntimeReadsNoCDI", "nobody has read the spec"))
		}},
		{part, "containerd does not find the CDI device", ofPod("p"), "CDIDeviceUnresolved", nil, func(g *ground) {
			p := pod("p", "n1", "c")
			waitingContainer(p, "CreateContainerError", "CDI device injection failed: unresolvable CDI devices gpu.nvidia.com/claim=x")
			g.put(allocated(claim("c", "gpu.nvidia.com", 1), devices.Driver, devices.PoolName("n1"), "gpu-0"), p)
		}},
		{part, "a secondary network has no address left", ofPod("p"), "SecondaryNetworkExhausted", nil, func(g *ground) {
			p := pod("p", "n1", "c")
			g.put(allocated(claim("c", "gpu.nvidia.com", 1), devices.Driver, devices.PoolName("n1"), "gpu-0"), p)
			g.put(event("Pod", tenant, "p", p.UID, "kubelet", "FailedCreatePodSandBox", "Failed to create pod sandbox: plugin type=\"multus\" "+
				"failed (add): Could not allocate IP in range: ip: 10.56.0.1 / - 10.56.0.6 / range: 10.56.0.0/29 / excludeRanges: []"))
		}},
		{part, "the IPPool of a secondary network has no address left", ofPod("p"), "SecondaryNetworkExhausted", nil, func(g *ground) {
			p := pod("p", "n1", "c")
			g.put(allocated(claim("c", "gpu.nvidia.com", 1), devices.Driver, devices.PoolName("n1"), "gpu-0"), p)
			g.put(event("Pod", tenant, "p", p.UID, "kubelet", "FailedCreatePodSandBox", "Failed to create pod sandbox: plugin type=\"nv-ipam\" "+
				"failed (add): rpc error: code = ResourceExhausted desc = no free addresses in the pool \"rail-1\", poolType \"ippool\""))
		}},
		{part, "the kubelet does not know the driver", ofPod("p"), "PluginNotRunning", []string{"PluginNotRegistered"}, func(g *ground) {
			g.remove(&corev1.Pod{}, system, "gpufabric-gpu-plugin-n1")
			p := pod("p", "n1", "c")
			g.put(allocated(claim("c", "gpu.nvidia.com", 1), devices.Driver, devices.PoolName("n1"), "gpu-0"), p)
			g.put(event("Pod", tenant, "p", p.UID, "kubelet", "FailedPrepareDynamicResources",
				"Failed to prepare dynamic resources: prepare dynamic resources: DRA driver gpu.nvidia.com is not registered"))
		}},
		{part, "a driver is missing, and its node is cordoned", onNode("n1"), "DriverNotFound", nil, func(g *ground) {
			noDriver(g, "n1", "DriverNotFound", "no library")
			change(g, "", "n2", func(n *corev1.Node) { n.Spec.Unschedulable = true })
		}},
		{part, "the GPU of a pod that runs has broken", ofPod("p"), "gpu.nvidia.com/ecc", nil, func(g *ground) {
			g.put(allocated(claim("c", "gpu.nvidia.com", 1), devices.Driver, devices.PoolName("n1"), "gpu-0"))
			p := pod("p", "n1", "c")
			p.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady,
				Status: corev1.ConditionTrue}}}
			g.put(p)
			taintGPUs(g, "n1", "gpu.nvidia.com/ecc", "48")
		}},
		{part, "a pod is bound to a node whose GPUs have XIDs", ofPod("p"), "gpu.nvidia.com/xid", []string{"NodesExcluded"}, func(g *ground) {
			taintGPUs(g, "n1", "gpu.nvidia.com/xid", "119")
			p := pod("p", "", "c")
			p.Spec.NodeSelector = map[string]string{"kubernetes.io/hostname": "n1"}
			g.put(claim("c", "gpu.nvidia.com", 1), p)
		}},
		{part, "a GPU fell off the bus, and its node's fabric cannot be read", onNode("n1"), "gpu.nvidia.com/lost", []string{"GPUTrouble"},
			func(g *ground) {
				taintGPUs(g, "n1", "gpu.nvidia.com/lost", "79")
				g.remove(&resourceapi.ResourceSlice{}, "", "n1-channel")
				g.put(channelSlice("n1", "GPUTrouble"))
			}},
		{part, "a claim's sharing was refused on the node", ofPod("p"), "SharingContradicts", nil, func(g *ground) {
			refusedClaim(g,
				"SharingContradicts", "two ways")
		}},
		{part, "two nodes' GPUs have XIDs, and the third's are held", ofPod("p"), "gpu.nvidia.com/xid", []string{"DevicesTaken"},
			func(g *ground) {
				taintGPUs(g, "n0", "gpu.nvidia.com/xid", "79")
				taintGPUs(g, "n1", "gpu.nvidia.com/xid", "79")
				takeAll(g, "n2")
				one(g)
			}},
	}
	for _, kind := range []string{"xid", "nvlink", "lost"} {
		out = append(out, cause{part, "all GPUs have the fault " + kind, ofPod("p"), "gpu.nvidia.com/" + kind, nil, func(g *ground) {
			for i := range 3 {
				taintGPUs(g, nodeName(i), "gpu.nvidia.com/"+kind, "79")
			}
			one(g)
		}})
	}
	return out
}

// refusedClaim is a claim whose prepare failed: the condition is draplugin's.
func refusedClaim(g *ground, reason, message string) {
	c := allocated(claim("c", "gpu.nvidia.com", 1), devices.Driver, devices.PoolName("n1"), "gpu-0")
	c.Status.Devices = []resourceapi.AllocatedDeviceStatus{{Driver: devices.Driver, Pool: devices.PoolName("n1"), Device: "gpu-0",
		Conditions: []metav1.Condition{{Type: "Ready", Status: metav1.ConditionFalse, Reason: reason, Message: fmt.Sprintf("refused: %s",
			message),
			LastTransitionTime: metav1.Now()}}}}
	g.put(c, pod("p", "n1", "c"))
}
