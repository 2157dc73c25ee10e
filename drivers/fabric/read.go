package fabric

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/api/resource/cliques"
	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/rdma/dra"
)

// Drivers are those whose devices the picture shows.
func Drivers() []string { return []string{devices.Driver, dra.Driver, computedomain.Driver} }

const standard = "resource.kubernetes.io/"

// OfSlice makes facts from a ResourceSlice; those of other drivers have no devices.
func OfSlice(s *resourceapi.ResourceSlice) *Slice {
	out := &Slice{ObjectMeta: named(s), Driver: word(s.Spec.Driver), Pool: word(s.Spec.Pool.Name), Generation: s.Spec.Pool.Generation,
		Count: s.Spec.Pool.ResourceSliceCount}
	if s.Spec.NodeName != nil {
		out.NodeName = word(*s.Spec.NodeName)
	}
	for _, set := range s.Spec.SharedCounters {
		for name := range set.Counters {
			if devices.IsMemorySlice(name) {
				if out.MemorySlices == nil {
					out.MemorySlices = map[string]int{}
				}
				out.MemorySlices[word(set.Name)]++
			}
		}
	}
	described := map[string]bool{}
	for i := range s.Spec.Devices {
		d := &s.Spec.Devices[i]
		switch s.Spec.Driver {
		case devices.Driver:
			out.addGPU(d, described)
		case dra.Driver:
			out.Ports = append(out.Ports, portOf(d))
		case computedomain.Driver:
			out.IMEX = append(out.IMEX, NamedDevice{Device: word(d.Name), Clique: text(d, computedomain.AttributeClique), Taints: taintsOf(d)})
		}
	}
	out.GPUs, out.Placements, out.Ports = slices.Clip(out.GPUs), slices.Clip(out.Placements), slices.Clip(out.Ports)
	return out
}

func (s *Slice) addGPU(d *resourceapi.Device, described map[string]bool) {
	facts := gpuOf(d)
	if text(d, devices.AttrType) != string(devices.MIG) {
		s.GPUs = append(s.GPUs, facts)
		return
	}
	start, size := memorySlices(d)
	s.Placements = append(s.Placements, Placement{GPU: facts.GPU, Device: word(d.Name), Profile: text(d, devices.AttrProfile),
		Memory: facts.Memory, Start: start, Size: size, Taints: taintsOf(d)})
	if !described[facts.GPU] {
		described[facts.GPU] = true
		// Memory and cores of a placement are its own; its taints may be, too.
		facts.Device, facts.Form, facts.Memory, facts.Cores, facts.Taints = "", "", 0, 0, nil
		facts.UUID = text(d, devices.AttrParentUUID)
		s.GPUs = append(s.GPUs, facts)
	}
}

func gpuOf(d *resourceapi.Device) GPUFacts {
	facts := GPUFacts{
		GPU: word(devices.GPUOf(d.Name)), Device: word(d.Name), UUID: text(d, devices.AttrUUID), Product: text(d, devices.AttrProductName),
		Index: number(d, devices.AttrIndex), Clique: text(d, devices.AttrCliqueID), NVLink: text(d, devices.AttrNVLinkDomain),
		Address: text(d, standard+"pciBusID"), Switch: text(d, devices.AttrPCIeSwitch), Root: text(d, standard+"pcieRoot"),
		NUMA: number(d, devices.AttrNUMANode), Driver: text(d, devices.AttrDriverVersion), Compute: text(d, devices.AttrComputeCapability),
		Memory: capacity(d, devices.CapMemory), Taints: taintsOf(d),
		Multiple: d.AllowMultipleAllocations != nil && *d.AllowMultipleAllocations,
	}
	if facts.Multiple {
		facts.Cores, facts.Shares = capacity(d, devices.CapCores), capacity(d, devices.CapShares)
		facts.ExclusiveByMemory = facts.Shares == 0
	}
	switch profile := text(d, devices.AttrVGPUProfile); {
	case profile != "":
		facts.Form = word("shares of " + profile)
	case text(d, devices.AttrType) == string(devices.Shared):
		facts.Form = "shares"
	default:
		facts.Form = word(devices.DescribeWhole(*d))
	}
	return facts
}

// memorySlices returns the memory slices that a placement uses, by its counters.
func memorySlices(d *resourceapi.Device) (start, size int) {
	start = -1
	for _, set := range d.ConsumesCounters {
		for name := range set.Counters {
			if !devices.IsMemorySlice(name) {
				continue
			}
			n := 0
			for _, digit := range strings.TrimPrefix(name, "memory-slice-") {
				if digit < '0' || digit > '9' || n > 64 {
					n = -1
					break
				}
				n = n*10 + int(digit-'0')
			}
			if n < 0 {
				continue
			}
			size++
			if start < 0 || n < start {
				start = n
			}
		}
	}
	return max(start, 0), size
}

func portOf(d *resourceapi.Device) PortFacts {
	return PortFacts{
		Device: word(d.Name), RDMADevice: text(d, dra.AttrRDMADevice), Number: number(d, dra.AttrPort), Interface: text(d, dra.AttrInterface),
		LinkLayer: text(d, dra.AttrLinkLayer), RateGbps: max(number(d, dra.AttrRate), 0), MTU: max(number(d, dra.AttrMTU), 0),
		Rail: number(d, dra.AttrRail), NUMA: number(d, dra.AttrNUMANode), Address: text(d, dra.AttrPCIBusID),
		Switch: text(d, dra.AttrPCIeSwitch), Root: text(d, dra.AttrPCIeRoot), Pool: text(d, dra.AttrPool), Firmware: text(d, dra.AttrFirmware),
		GPUDirect: text(d, dra.AttrGPUDirect), Slots: capacity(d, dra.CapSlots),
		Multiple: d.AllowMultipleAllocations != nil && *d.AllowMultipleAllocations, Taints: taintsOf(d),
	}
}

func text(d *resourceapi.Device, name resourceapi.QualifiedName) string {
	switch a := d.Attributes[name]; {
	case a.StringValue != nil:
		return word(*a.StringValue)
	case a.VersionValue != nil:
		return word(*a.VersionValue)
	}
	return ""
}

// number is -1 where the device lacks the attribute.
func number(d *resourceapi.Device, name resourceapi.QualifiedName) int {
	if a := d.Attributes[name]; a.IntValue != nil {
		return int(*a.IntValue)
	}
	return -1
}

func capacity(d *resourceapi.Device, name resourceapi.QualifiedName) int64 {
	c := d.Capacity[name]
	return c.Value.Value()
}

func taintsOf(d *resourceapi.Device) []Taint {
	var out []Taint
	for _, t := range d.Taints {
		out = append(out, Taint{Key: word(t.Key), Value: word(t.Value), Effect: word(string(t.Effect))})
	}
	return out
}

// OfClaim makes facts of a ResourceClaim.
func OfClaim(c *resourceapi.ResourceClaim) *Claim {
	out := &Claim{ObjectMeta: named(c), Created: c.CreationTimestamp.Time, Allocated: c.Status.Allocation != nil,
		Domain: c.Annotations[computedomain.AnnotationName]}
	for _, user := range c.Status.ReservedFor {
		if user.APIGroup == "" && user.Resource == "pods" {
			out.Pods = append(out.Pods, user.Name)
		}
	}
	if c.Status.Allocation == nil {
		return out
	}
	for i := range c.Status.Allocation.Devices.Results {
		r := &c.Status.Allocation.Devices.Results[i]
		if !slices.Contains(Drivers(), r.Driver) {
			continue
		}
		consumed := func(name resourceapi.QualifiedName) int64 {
			q := r.ConsumedCapacity[name]
			return q.Value()
		}
		result := Result{Request: word(r.Request), Driver: word(r.Driver), Pool: word(r.Pool), Device: word(r.Device),
			Admin:  r.AdminAccess != nil && *r.AdminAccess,
			Memory: consumed(devices.CapMemory), Cores: consumed(devices.CapCores), Shares: consumed(devices.CapShares),
			Slots: consumed(dra.CapSlots), Bandwidth: consumed(dra.CapBandwidth)}
		if r.ShareID != nil {
			result.ShareID = string(*r.ShareID)
		}
		out.Results = append(out.Results, result)
	}
	return out
}

// OfPod makes facts from a pod. A pod with neither claims nor extended resources has only its name as facts, and is left out of the
// picture.
func OfPod(p *corev1.Pod) *Pod {
	out := &Pod{ObjectMeta: named(p), Created: p.CreationTimestamp.Time, NodeName: word(p.Spec.NodeName), Phase: word(string(p.Status.Phase)),
		Ended: p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed}
	for _, c := range p.Status.ResourceClaimStatuses {
		if c.ResourceClaimName != nil {
			out.Claims = append(out.Claims, *c.ResourceClaimName)
		}
	}
	for _, c := range p.Spec.ResourceClaims {
		if c.ResourceClaimName != nil {
			out.Claims = append(out.Claims, *c.ResourceClaimName)
		}
	}
	if e := p.Status.ExtendedResourceClaimStatus; e != nil {
		out.Claims = append(out.Claims, e.ResourceClaimName)
	}
	for i := range p.Spec.Containers {
		for name, q := range p.Spec.Containers[i].Resources.Requests {
			if extended(name) {
				if out.Extended == nil {
					out.Extended = map[string]int64{}
				}
				out.Extended[word(string(name))] += q.Value()
			}
		}
	}
	if len(p.Spec.ResourceClaims) == 0 && len(out.Claims) == 0 && len(out.Extended) == 0 {
		return &Pod{ObjectMeta: out.ObjectMeta, Ended: true}
	}
	if p.Status.Phase == corev1.PodPending && p.DeletionTimestamp == nil {
		out.Waits, out.Since = waits(p)
	}
	return out
}

// extended reports whether a resource is counted by a device plugin or by DRA: its name has a domain other than Kubernetes' own.
func extended(name corev1.ResourceName) bool {
	domain, _, found := strings.Cut(string(name), "/")
	return found && domain != "kubernetes.io" && !strings.HasSuffix(domain, ".kubernetes.io")
}

// waits returns the reason of a pending pod's wait by its status, and its start.
func waits(p *corev1.Pod) (string, time.Time) {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return cmp.Or(c.Message, c.Reason, "it is not scheduled"), c.LastTransitionTime.Time
		}
	}
	if p.Spec.NodeName == "" {
		return "the scheduler " + p.Spec.SchedulerName + " has not looked at it", p.CreationTimestamp.Time
	}
	since := p.CreationTimestamp.Time
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue {
			since = c.LastTransitionTime.Time
		}
	}
	for i := range p.Status.ContainerStatuses {
		if w := p.Status.ContainerStatuses[i].State.Waiting; w != nil && w.Reason != "" {
			return "its container: " + w.Reason, since
		}
	}
	return "its containers are not made", since
}

// OfNode makes facts of a Node.
func OfNode(n *corev1.Node) *Node {
	out := &Node{ObjectMeta: named(n), Clique: word(n.Labels[v1beta1.LabelClique]), Domain: n.Labels[v1beta1.LabelComputeDomain],
		Cordoned: n.Spec.Unschedulable, Why: "its kubelet has not reported"}
	out.RackLabel = word(cliques.RackOf(n.Labels))
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			out.Ready, out.Why = c.Status == corev1.ConditionTrue, cmp.Or(c.Message, c.Reason)
		}
	}
	if out.Ready {
		out.Why = ""
	}
	for name, q := range n.Status.Allocatable {
		if n := q.Value(); extended(name) && n > 0 {
			if out.Extended == nil {
				out.Extended = map[string]int64{}
			}
			out.Extended[word(string(name))] = n
		}
	}
	return out
}

// OfDomain makes facts of a ComputeDomain.
func OfDomain(d *v1beta1.ComputeDomain) *Domain {
	out := &Domain{ObjectMeta: named(d), Created: d.CreationTimestamp.Time, Wanted: d.Spec.NumNodes, Ready: d.Status.Status == v1beta1.Ready,
		Deleting: d.DeletionTimestamp != nil}
	if c := meta.FindStatusCondition(d.Status.Conditions, v1beta1.ConditionReady); c != nil {
		out.Reason, out.Why = c.Reason, c.Message
	}
	for _, n := range d.Status.Nodes {
		out.Members = append(out.Members, Member{Node: word(n.Name), Clique: word(n.CliqueID), Index: n.Index, Ready: n.Status == v1beta1.Ready})
	}
	return out
}

// OfPool makes facts of an RDMAPool.
func OfPool(p *v1alpha1.RDMAPool) *Pool {
	out := &Pool{ObjectMeta: named(p), Resource: p.Status.Resource, Devices: int(p.Status.Devices), Healthy: int(p.Status.HealthyDevices),
		Nodes: int(p.Status.NodeCount), Why: "no node has reported on it"}
	if c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.RDMAPoolReady); c != nil {
		out.Ready, out.Why = c.Status == metav1.ConditionTrue, c.Message
	}
	return out
}

// OfLayout makes facts from a MIGLayout.
func OfLayout(l *v1alpha1.MIGLayout) *Layout {
	out := &Layout{ObjectMeta: named(l)}
	if l.ByDemand() && len(l.Status.Nodes) > 0 {
		out.Node, out.Decision, out.Cuts = word(l.Status.Nodes[0].Name), l.Annotations[v1alpha1.MIGDecisionAnnotation], l.Cuts()
	}
	return out
}
