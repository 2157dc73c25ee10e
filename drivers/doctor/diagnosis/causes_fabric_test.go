package diagnosis_test

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
	"gpufabric.io/drivers/doctor/diagnosis"
	"gpufabric.io/drivers/gpu/devices"
	rdma "gpufabric.io/drivers/rdma/dra"
)

// reshape publishes all nodes' GPUs in another form.
func reshape(g *ground, form string) {
	for i := range 3 {
		g.remove(&resourceapi.ResourceSlice{}, "", nodeName(i)+"-gpu-0")
		g.put(gpuSlices(nodeName(i), form, nil)...)
	}
}

func share(name, memory string) *resourceapi.ResourceClaim {
	c := claim(name, "gpu-share.gpufabric.io", 1)
	c.Spec.Devices.Requests[0].Exactly.Capacity = &resourceapi.CapacityRequirements{
		Requests: map[resourceapi.QualifiedName]resource.Quantity{devices.CapMemory: resource.MustParse(memory)}}
	return c
}

func shareCauses() []cause {
	const part = "MIG and shares"
	mig := func(g *ground) { g.put(claim("c", "mig.nvidia.com", 1), pod("p", "", "c")) }
	refused := func(code string) cause {
		return cause{part, "a prepare was refused: " + code, ofPod("p"), code, nil, func(g *ground) {
			refusedClaim(g, code,
				"as the message says")
		}}
	}
	layout := func(reason string) cause {
		return cause{part, "a MIGLayout is not applied: " + reason, install(), reason, nil, func(g *ground) {
			g.put(&v1alpha1.MIGLayout{ObjectMeta: metav1.ObjectMeta{Name: "l"}, Spec: migLayout(),
				Status: v1alpha1.MIGLayoutStatus{Conditions: []metav1.Condition{{
					Type: "Ready", Status: metav1.ConditionFalse, Reason: reason, Message: "as the message says", LastTransitionTime: metav1.Now()}}}})
		}}
	}
	return []cause{
		{part, "MIG is asked for, and GPUs are whole", ofPod("p"), "NoSuchForm", nil, mig},
		{part, "a whole GPU is asked for, and GPUs are cut", ofPod("p"), "NoSuchForm", nil, func(g *ground) {
			reshape(g, "mig_1g.5gb")
			g.put(claim("c", "gpu.nvidia.com", 1), pod("p", "", "c"))
		}},
		{part, "a whole GPU is asked for, and those of the pod's node are cut", ofPod("p"), "NoSuchForm", []string{"NodesExcluded"},
			func(g *ground) {
				g.remove(&resourceapi.ResourceSlice{}, "", "n1-gpu-0")
				g.put(gpuSlices("n1", "mig_1g.5gb", nil)...)
				p := pod("p", "", "c")
				p.Spec.NodeSelector = map[string]string{"kubernetes.io/hostname": "n1"}
				g.put(claim("c", "gpu.nvidia.com", 1), p)
			}},
		{part, "a share is asked for, and GPUs are whole", ofPod("p"), "NoSuchForm", nil, func(g *ground) {
			g.put(share("c", "10Gi"), pod("p",
				"", "c"))
		}},
		{part, "a share larger than any GPU", ofPod("p"), "ShareTooLarge", nil, func(g *ground) {
			reshape(g, "shareable")
			g.put(share("c", "200Gi"), pod("p", "", "c"))
		}},
		{part, "a MIG profile that no GPU has", ofPod("p"), "NoSuchDevice", nil, func(g *ground) {
			reshape(g, "mig_1g.5gb")
			g.put(claim("c", "mig.nvidia.com", 1, `device.attributes["gpu.nvidia.com"].profile == "3g.20gb"`), pod("p", "", "c"))
		}},
		{part, "the forms of a node contradict", onNode("n1"), "FormsContradict", nil, func(g *ground) {
			change(g, "", "n1", func(n *corev1.Node) {
				n.Status.Conditions[2] = corev1.NodeCondition{Type: "GPUForms", Status: corev1.ConditionFalse, Reason: "FormsContradict",
					Message: "two rules"}
			})
		}},
		layout("InvalidSpec"), layout("NoNodes"), layout("Failed"),
		{part, "a MIG device is asked for, and a GPU is being cut for it", ofPod("p"), "GPUBeingCut", []string{"NoSuchForm"}, func(g *ground) {
			beingCut(g, time.Now().Add(-4*time.Second))
			mig(g)
		}},
		{part, "the cut of a GPU by demand does not end", install(), "GPUBeingCut", nil, func(g *ground) {
			beingCut(g, time.Now().Add(-10*time.Minute))
		}},
		refused("PlacementOccupied"), refused("GPUPartitioned"), refused("MPSNotStarted"), refused("InvalidConfig"),
		{part, "a MIG form is refused, and the layout selects no node", install(), "FormNotOnGPU", []string{"NoNodes"}, func(g *ground) {
			change(g, "", "n1", func(n *corev1.Node) {
				n.Status.Conditions[2] = corev1.NodeCondition{Type: "GPUForms", Status: corev1.ConditionFalse, Reason: "FormNotOnGPU", Message: "no 9g"}
			})
			layout("NoNodes").inject(g)
		}},
	}
}

// beingCut makes the layout by demand of a node, whose GPU is being cut since then.
func beingCut(g *ground, since time.Time) {
	l := &v1alpha1.MIGLayout{ObjectMeta: metav1.ObjectMeta{Name: "auto-n1", Labels: map[string]string{v1alpha1.MIGByDemandLabel: "uid"}}}
	l.Spec.GPUs = []v1alpha1.MIGLayoutGPU{{UUID: "GPU-1"}}
	l.Status.Nodes = []v1alpha1.MIGLayoutNode{{Name: "n1", State: v1alpha1.MIGLayoutApplied}}
	if err := l.SetCuts([]v1alpha1.MIGCut{{UUID: "GPU-1", Device: "gpu-0", Since: since, Instances: []v1alpha1.MIGLayoutInstance{
		{Profile: "1g.5gb"}}, Reason: "cut for 1g.5gb: 1 wait, 0 are free"}}); err != nil {
		g.t.Fatal(err)
	}
	g.put(l)
}

func migLayout() v1alpha1.MIGLayoutSpec {
	return v1alpha1.MIGLayoutSpec{Layout: "all", Config: v1alpha1.MIGPartedConfig{Version: "v1", Layouts: map[string][]v1alpha1.MIGPartedEntry{
		"all": {}}}}
}

func aDomain(nodes int, reason, message string, members ...string) *v1beta1.ComputeDomain {
	d := &v1beta1.ComputeDomain{ObjectMeta: metav1.ObjectMeta{Namespace: tenant, Name: "d"}, Spec: v1beta1.ComputeDomainSpec{NumNodes: nodes,
		Channel: v1beta1.ComputeDomainChannelSpec{ResourceClaimTemplate: v1beta1.ComputeDomainResourceClaimTemplate{Name: "d-channel"}}}}
	d.Status.Status = v1beta1.NotReady
	d.Status.Conditions = []metav1.Condition{{Type: v1beta1.ConditionReady, Status: metav1.ConditionFalse, Reason: reason, Message: message,
		LastTransitionTime: metav1.Now()}}
	for i, m := range members {
		d.Status.Nodes = append(d.Status.Nodes, v1beta1.ComputeDomainNode{Name: m, IPAddress: "10.0.0.1", Index: i, Status: v1beta1.NotReady})
	}
	return d
}

// readyDomain is a domain that needs no number of nodes, and so is Ready whatever else it says.
func readyDomain(more ...metav1.Condition) *v1beta1.ComputeDomain {
	d := aDomain(0, "NoNodesRequired", "the domain asks for no number of nodes")
	d.Status.Status, d.Status.Conditions[0].Status = v1beta1.Ready, metav1.ConditionTrue
	d.Status.Conditions = append(d.Status.Conditions, more...)
	return d
}

// daemonPod is an IMEX daemon's pod that is not ready.
func daemonPod(d *v1beta1.ComputeDomain, node string, state corev1.ContainerState) *corev1.Pod {
	p := pod("daemon-"+node, node)
	p.Namespace, p.Labels = system, map[string]string{v1beta1.LabelComputeDomain: string(d.UID)}
	p.Spec.Containers[0].Name = computedomain.DaemonContainer
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady,
		Status: corev1.ConditionFalse}},
		ContainerStatuses: []corev1.ContainerStatus{{Name: computedomain.DaemonContainer, Image: "gpufabric", State: state}}}
	return p
}

func running() corev1.ContainerState {
	return corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}
}

func domainCauses() []cause {
	const part = "compute domain"
	domain := diagnosis.Subject{Kind: diagnosis.Domain, Namespace: tenant, Name: "d"}
	fabric := func(value string) cause {
		return cause{part, "a node's fabric cannot be used: " + value, domain, value, []string{"WaitingForDaemons"}, func(g *ground) {
			d := aDomain(2, "WaitingForDaemons", "n1", "n0", "n1")
			g.put(daemonPod(putDomain(g, d), "n1", running()))
			g.remove(&resourceapi.ResourceSlice{}, "", "n1-channel")
			g.put(channelSlice("n1", value))
		}}
	}
	return []cause{
		{part, "no pod of the domain has come", domain, "WaitingForNodes", nil, func(g *ground) {
			g.put(aDomain(2, "WaitingForNodes",
				"2 more nodes must join"))
		}},
		{part, "the domain asks for more nodes than the clique has", domain, "FewerNodesInClique", []string{"WaitingForNodes"}, func(g *ground) {
			for i := range 3 {
				change(g, "", nodeName(i), func(n *corev1.Node) { n.Labels[v1beta1.LabelClique] = "rack-1.3" })
			}
			g.put(aDomain(4, "WaitingForNodes", "4 more nodes must join"))
		}},
		{part, "a daemon's peers are not reached", domain, "WaitingForDaemons", []string{"DaemonNotReady"}, func(g *ground) {
			d := aDomain(2, "WaitingForDaemons", "n1", "n0", "n1")
			g.put(daemonPod(putDomain(g, d), "n1", running()))
		}},
		{part, "a daemon's image cannot be pulled", domain, "ImageNotPulled", nil, func(g *ground) {
			d := aDomain(2, "WaitingForDaemons", "n1", "n0", "n1")
			g.put(daemonPod(putDomain(g, d), "n1", corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}))
		}},
		{part, "nvidia-imex ends", domain, "WaitingForDaemons", []string{"IMEXDaemonFailed"}, func(g *ground) {
			d := aDomain(2, "WaitingForDaemons", "n1", "n0", "n1")
			p := daemonPod(putDomain(g, d), "n1", running())
			g.put(p)
			g.put(event("Pod", system, p.Name, p.UID, "imex-daemon", "IMEXDaemonFailed", "exit status 1: bad config"))
		}},
		{part, "a node gives nvidia-imex no processor", domain, "WaitingForDaemons", []string{"IMEXDaemonStarved"}, func(g *ground) {
			d := aDomain(2, "WaitingForDaemons", "n1", "n0", "n1")
			p := daemonPod(putDomain(g, d), "n1", running())
			g.put(p)
			g.put(event("Pod", system, p.Name, p.UID, "imex-daemon", "IMEXDaemonStarved", "nvidia-imex does not answer: it waits for a processor"))
		}},
		{part, "a node of a Ready domain is interrupted", domain, "NodesInterrupted", nil, func(g *ground) {
			g.put(readyDomain(metav1.Condition{Type: v1beta1.ConditionDegraded, Status: metav1.ConditionTrue, Reason: "NodesInterrupted",
				Message: "1 of 2 nodes was ready and is not: n1", LastTransitionTime: metav1.Now()}))
		}},
		{part, "IMEX daemons that are READY are not connected", domain, "DaemonsDisconnected", nil, func(g *ground) {
			g.put(readyDomain(metav1.Condition{Type: v1beta1.ConditionDegraded, Status: metav1.ConditionTrue, Reason: "DaemonsDisconnected",
				Message: "IMEX daemons that are READY are not connected: n1 with n0 (RECOVERING)", LastTransitionTime: metav1.Now()}))
		}},
		{part, "an IMEX session ended under the domain's pods", domain, "IMEXSessionEnded", nil, func(g *ground) {
			d := putDomain(g, readyDomain())
			g.put(event("ComputeDomain", tenant, "d", d.UID, "compute-domain-plugin", "IMEXSessionEnded", "the IMEX session of node n1 ended"))
		}},
		{part, "the domain's template name is taken", domain, "TemplateNameTaken", nil, func(g *ground) {
			g.put(aDomain(2, "TemplateNameTaken",
				"d-channel"))
		}},
		{part, "the controller has not looked at the domain", domain, "ControllerNotReady", nil, func(g *ground) {
			d := aDomain(2, "", "")
			d.Status = v1beta1.ComputeDomainStatus{}
			g.put(d)
		}},
		fabric("HostIMEXRunning"), fabric("HostIMEXNotRunning"), fabric("HostIMEXNotReady"),
		fabric("DriverTooOld"), fabric("CliquesDisagree"), fabric("Joining"),
		{part, "a pod's channel claim is of another namespace", ofPod("p"), "NotInDomainNamespace", nil, func(g *ground) {
			refusedClaim(g, "NotInDomainNamespace", "another namespace")
		}},
		{part, "the domain's pods wait for a node that is not ready", domain, "NodeNotReady", []string{"WaitingForNodes"}, func(g *ground) {
			g.put(aDomain(3, "WaitingForNodes", "3 more"))
			g.put(&resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: tenant, Name: "d-channel"},
				Spec: resourceapi.ResourceClaimTemplateSpec{Spec: claim("x", "compute-domain-default-channel.nvidia.com", 1).Spec}})
			p := pod("w", "", "c")
			p.Spec.ResourceClaims[0] = corev1.PodResourceClaim{Name: "c", ResourceClaimTemplateName: ptr.To("d-channel")}
			p.Spec.NodeSelector = map[string]string{"kubernetes.io/hostname": "n2"}
			g.put(p)
			notReady(g, "n2")
		}},
	}
}

// putDomain puts a domain, so that it has a UID, and returns it.
func putDomain(g *ground, d *v1beta1.ComputeDomain) *v1beta1.ComputeDomain {
	g.put(d)
	return d
}

func rdmaCauses() []cause {
	const part = "RDMA"
	text := func(s string) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{StringValue: &s} }
	nic := func(name, code string, with func(*resourceapi.Device)) cause {
		return cause{part, name, install(), code, nil, func(g *ground) {
			g.remove(&resourceapi.ResourceSlice{}, "", "n1-rdma")
			g.put(nicSlice("n1", with))
		}}
	}
	pool := func(reason string, conflicting bool) cause {
		kind, status := v1alpha1.RDMAPoolReady, metav1.ConditionFalse
		if conflicting {
			kind, status = v1alpha1.RDMAPoolConflicting, metav1.ConditionTrue
		}
		return cause{part, "a pool is not ready: " + reason, diagnosis.Subject{Kind: diagnosis.Pool, Name: "rail"}, reason, nil, func(g *ground) {
			g.put(&v1alpha1.RDMAPool{ObjectMeta: metav1.ObjectMeta{Name: "rail"},
				Spec: v1alpha1.RDMAPoolSpec{RDMAPoolConfig: v1alpha1.RDMAPoolConfig{
					ResourceName: "a", RDMAHCAMax: 1, Selectors: &v1alpha1.RDMASelectors{IsRDMA: true}}}, Status: v1alpha1.RDMAPoolStatus{
					Conditions: []metav1.Condition{{Type: kind, Status: status, Reason: reason, Message: "as the message says",
						LastTransitionTime: metav1.Now()}}}})
		}}
	}
	down := func(d *resourceapi.Device) {
		d.Taints = []resourceapi.DeviceTaint{{Key: rdma.TaintPortDown, Value: "Down", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	}
	return []cause{
		nic("a port is down", rdma.TaintPortDown, down),
		nic("an MTU differs on a rail", "RailMTUDiffers", func(d *resourceapi.Device) {
			d.Attributes[rdma.AttrMTU] = resourceapi.DeviceAttribute{IntValue: ptr.To[int64](1500)}
		}),
		{part, "an MTU differs among boards of one slot, and no rail has them", install(), "RailMTUDiffers", nil, func(g *ground) {
			for i, mtu := range []int64{9000, 1500, 9000} {
				g.remove(&resourceapi.ResourceSlice{}, "", nodeName(i)+"-rdma")
				g.put(nicSlice(nodeName(i), func(d *resourceapi.Device) {
					delete(d.Attributes, rdma.AttrRail)
					d.Attributes[rdma.AttrPCIBusID] = text("0000:03:00.0")
					d.Attributes[rdma.AttrMTU] = resourceapi.DeviceAttribute{IntValue: &mtu}
				}))
			}
		}},
		nic("a link came up slower", "RailRateDiffers", func(d *resourceapi.Device) {
			d.Attributes[rdma.AttrRate] = resourceapi.DeviceAttribute{IntValue: ptr.To[int64](200)}
		}),
		nic("a link layer differs", "RailLinkLayerDiffers", func(d *resourceapi.Device) { d.Attributes[rdma.AttrLinkLayer] = text("Ethernet") }),
		nic("a firmware differs", "NICFirmwareDiffers", func(d *resourceapi.Device) { d.Attributes[rdma.AttrFirmware] = text("28.39.1002") }),
		nic("a node has neither peermem nor dma-buf", "NoGPUDirect",
			func(d *resourceapi.Device) { d.Attributes[rdma.AttrGPUDirect] = text("none") }),
		pool("NoMatchingDevices", false), pool("DevicesDown", false), pool("NoUnits", false), pool("InvalidSpec", false),
		pool("ExclusiveMode", false), pool("ClaimedByOthers", true),
		{part, "a port of a pool is down", diagnosis.Subject{Kind: diagnosis.Pool, Name: "rail"}, rdma.TaintPortDown, []string{"DevicesDown"},
			func(g *ground) {
				g.remove(&resourceapi.ResourceSlice{}, "", "n1-rdma")
				g.put(nicSlice("n1", down))
				pool("DevicesDown", false).inject(g)
				change(g, "", "rail", func(p *v1alpha1.RDMAPool) { p.Status.Nodes = []v1alpha1.RDMAPoolNode{{Name: "n1", Devices: 1}} })
			}},
		{part, "another pool has all devices", diagnosis.Subject{Kind: diagnosis.Pool, Name: "rail"}, "ClaimedByOthers",
			[]string{"NoMatchingDevices"}, func(g *ground) {
				pool("NoMatchingDevices", false).inject(g)
				change(g, "", "rail", func(p *v1alpha1.RDMAPool) {
					p.Status.Conditions = append(p.Status.Conditions, metav1.Condition{Type: v1alpha1.RDMAPoolConflicting, Status: metav1.ConditionTrue,
						Reason: "ClaimedByOthers", Message: "as the message says", LastTransitionTime: metav1.Now()})
				})
			}},
		{part, "all ports are down for a claim", ofPod("p"), rdma.TaintPortDown, nil, func(g *ground) {
			for i := range 3 {
				g.remove(&resourceapi.ResourceSlice{}, "", nodeName(i)+"-rdma")
				g.put(nicSlice(nodeName(i), down))
			}
			g.put(claim("c", "rdma.gpufabric.io", 1, `device.attributes["rdma.gpufabric.io"].rail == 0`), pod("p", "", "c"))
		}},
		{part, "a port is down, and another NIC has another firmware", install(), rdma.TaintPortDown, []string{"NICFirmwareDiffers"},
			func(g *ground) {
				g.remove(&resourceapi.ResourceSlice{}, "", "n1-rdma")
				g.remove(&resourceapi.ResourceSlice{}, "", "n2-rdma")
				g.put(nicSlice("n1", down), nicSlice("n2", func(d *resourceapi.Device) { d.Attributes[rdma.AttrFirmware] = text("28.39.1002") }))
			}},
		{part, "the rate and the MTU of a NIC differ", install(), "RailMTUDiffers", []string{"RailRateDiffers"}, func(g *ground) {
			g.remove(&resourceapi.ResourceSlice{}, "", "n1-rdma")
			g.put(nicSlice("n1", func(d *resourceapi.Device) {
				d.Attributes[rdma.AttrMTU] = resourceapi.DeviceAttribute{IntValue: ptr.To[int64](1500)}
				d.Attributes[rdma.AttrRate] = resourceapi.DeviceAttribute{IntValue: ptr.To[int64](100)}
			}))
		}},
	}
}
