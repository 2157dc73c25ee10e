package diagnosis

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/api/listing"
	"gpufabric.io/drivers/computedomain"
	"gpufabric.io/drivers/doctor/findings"
	"gpufabric.io/drivers/gpu/devices"
)

// named is how many nodes or claims a sentence lists.
const named = 3

func some(all []string) string {
	slices.Sort(all)
	return listing.First(slices.Compact(all), named, ", ")
}

// unscheduled looks for the reason why a pod has no node.
func (e *examination) unscheduled(p *corev1.Pod) {
	object := podObject(p)
	for _, g := range p.Spec.SchedulingGates {
		e.find("PodGated", object, "the pod's spec.schedulingGates", "the scheduling gate %s is not removed", g.Name)
	}
	e.scheduler(p, object)
	all, known := e.podWants(p, object)
	if len(all) > 0 {
		e.cuts(object, 0)
	}
	ok := map[string]int{} // for how many wants a node has enough devices
	counting := ""         // a class of which all devices that match consume counters
	for _, w := range all {
		for node := range e.request(w, p) {
			ok[node]++
		}
		if e.class[w.class] != nil {
			if t := e.counted(w, p); t.matched > 0 && t.counting == t.matched {
				counting = w.class
			}
		}
	}
	before := len(e.found)
	e.room(p, object)
	if before > 0 || len(e.found) > 0 || !known {
		return
	}
	if len(all) > 1 && !slices.Contains(slices.Collect(maps.Values(ok)), len(all)) {
		e.find("DevicesTooFew", object, "ResourceSlices and allocations",
			"nodes have free devices for each of the %d requests, and none has them for all",
			len(all))
		return
	}
	e.schedulersWords(p, object, counting)
}

func podObject(p *corev1.Pod) string { return "pod " + p.Namespace + "/" + p.Name }

// scheduler looks for the scheduler that the pod names: one that has placed or refused a pod, or runs.
func (e *examination) scheduler(p *corev1.Pod, object string) {
	name := p.Spec.SchedulerName
	if name == "" || name == corev1.DefaultSchedulerName {
		return
	}
	for i := range e.Events {
		if v := &e.Events[i]; v.InvolvedObject.UID == p.UID && (v.Source.Component == name || v.ReportingController == name) {
			return
		}
	}
	for i := range e.Deployments {
		d := &e.Deployments[i]
		if (d.Name == name || d.Labels[labelComponent] == "scheduler" || strings.Contains(d.Name, strings.TrimSuffix(name, "-scheduler"))) &&
			d.Status.AvailableReplicas > 0 {
			return
		}
	}
	if e.Reads("deployments.apps") {
		e.find("SchedulerMissing", object, "the pod's spec.schedulerName", "no scheduler of the name %s runs or has spoken of the pod", name)
	}
}

// podWants are the requests of a pod's unallocated claims, and of its extended resources that DRA serves. known is false where a
// claim or template is missing or unread.
func (e *examination) podWants(p *corev1.Pod, object string) (all []want, known bool) {
	known = true
	for _, r := range p.Spec.ResourceClaims {
		c, spec, why := e.claimOf(p, r)
		switch {
		case why != "":
			known = false
			if why != "unread" {
				e.claimMissing(p, r, why, object)
			}
		case c != nil && c.Status.Allocation != nil:
			e.allocatedElsewhere(p, c, object)
		case c != nil:
			all = append(all, wants(&c.Spec, "claim "+c.Namespace+"/"+c.Name, c.Namespace+"/"+c.Name)...)
		default:
			all = append(all, wants(spec, object, "")...)
		}
	}
	return append(all, e.extended(p, object)...), known
}

// claimOf finds a claim of a pod, or the template from which it will be created.
func (e *examination) claimOf(p *corev1.Pod, r corev1.PodResourceClaim) (c *resourceapi.ResourceClaim,
	spec *resourceapi.ResourceClaimSpec, why string) {
	name := ""
	if r.ResourceClaimName != nil {
		name = *r.ResourceClaimName
	}
	for _, s := range p.Status.ResourceClaimStatuses {
		if s.Name == r.Name && s.ResourceClaimName != nil {
			name = *s.ResourceClaimName
		}
	}
	if c = e.claim[types.NamespacedName{Namespace: p.Namespace, Name: name}]; c != nil {
		return c, nil, ""
	}
	if r.ResourceClaimTemplateName != nil {
		if t := e.templates[types.NamespacedName{Namespace: p.Namespace, Name: *r.ResourceClaimTemplateName}]; t != nil {
			return nil, &t.Spec.Spec, ""
		}
		if !e.Reads("resourceclaimtemplates.resource.k8s.io") {
			return nil, nil, "unread"
		}
		return nil, nil, "template " + *r.ResourceClaimTemplateName
	}
	if !e.Reads("resourceclaims.resource.k8s.io") {
		return nil, nil, "unread"
	}
	return nil, nil, "claim " + name
}

// claimMissing records a missing claim or template, and the reason why the claim could not be created if that was reported.
func (e *examination) claimMissing(p *corev1.Pod, r corev1.PodResourceClaim, why, object string) {
	code := "ClaimMissing"
	if strings.HasPrefix(why, "template ") {
		code = "ClaimTemplateMissing"
	}
	text := fmt.Sprintf("namespace %s has no resource%s", p.Namespace, strings.Replace(why, "template ", "claimtemplate ", 1))
	var near []string
	for i := range e.Templates {
		t := &e.Templates[i]
		if code == "ClaimTemplateMissing" && t.Namespace == p.Namespace && distance(t.Name, strings.TrimPrefix(why, "template ")) <= 3 {
			near = append(near, t.Name)
		}
	}
	if len(near) > 0 {
		text += "; there is " + some(near)
	}
	e.find(code, object, "the pod's spec.resourceClaims "+r.Name, "%s", text)
}

// allocatedElsewhere checks whether a pod may go to the node of its claim's devices.
func (e *examination) allocatedElsewhere(p *corev1.Pod, c *resourceapi.ResourceClaim, object string) {
	for _, r := range c.Status.Allocation.Devices.Results {
		pool := e.devices().byDriver[r.Driver][r.Pool]
		if pool == nil || e.nodes[pool.node] == nil {
			continue
		}
		if code, why := keeps(p, e.nodes[pool.node]); code != "" {
			e.find("ClaimInUse", object, "the allocation of claim "+c.Name, "claim %s is allocated on node %s, where the pod cannot go (%s)",
				c.Name, pool.node,
				why)
			return
		}
	}
}

// extended are the pod's extended resources. Attributes that neither a node nor a class has are a finding.
func (e *examination) extended(p *corev1.Pod, object string) []want {
	var out []want
	for _, c := range p.Spec.Containers {
		for _, name := range slices.Sorted(maps.Keys(c.Resources.Limits)) {
			if !strings.Contains(string(name), "/") || strings.Contains(string(name), "kubernetes.io/") {
				continue
			}
			quantity := c.Resources.Limits[name]
			class := ""
			for _, k := range e.Classes {
				if k.Spec.ExtendedResourceName != nil && *k.Spec.ExtendedResourceName == string(name) {
					class = k.Name
				}
			}
			best, offered := int64(0), false
			for _, n := range e.Nodes {
				if q, ok := n.Status.Allocatable[name]; ok {
					offered, best = true, max(best, q.Value())
				}
			}
			from := "the nodes' status.allocatable, and DeviceClasses"
			switch {
			case best >= quantity.Value():
			case class != "":
				out = append(out, want{object: object, name: string(name), class: class, count: int(quantity.Value())})
			case !offered && len(e.Nodes) > 0:
				e.find("ExtendedResourceMissing", object, from, "no node and no DeviceClass offers %s", name)
			case offered:
				e.find("DevicesTooFew", object, from, "the pod asks for %d of %s, and no node has more than %d", quantity.Value(), name, best)
			}
		}
	}
	return out
}

// request looks for the reason why a request is not met, and returns the nodes with enough free devices.
func (e *examination) request(w want, p *corev1.Pod) (enough map[string]bool) {
	enough = map[string]bool{}
	if e.class[w.class] == nil {
		if e.Reads("deviceclasses.resource.k8s.io") {
			e.find("ClassMissing", w.object, "the request "+w.name+" and the list of DeviceClasses", "there is no DeviceClass %s", w.class)
		}
		return enough
	}
	if !e.Reads("resourceslices.resource.k8s.io") {
		return enough
	}
	t := e.counted(w, p)
	for node, free := range t.free {
		if free >= w.count || w.all && free == t.most[node] {
			enough[node] = true
		}
	}
	if len(enough) > 0 || t.unknown != "" && t.matched > 0 && t.failed == "" {
		return enough
	}
	e.unmet(w, t, p)
	return enough
}

// unmet returns the reason for which a request gets no devices.
func (e *examination) unmet(w want, t tally, p *corev1.Pod) {
	from := "the ResourceSlices and allocations, by class " + w.class + " and request " + w.name
	switch {
	case t.failed != "" && t.matched == 0:
		e.find("SelectorFails", w.object, "the CEL selectors of request "+w.name,
			"a selector ends with an error, and the scheduler gives the claim nothing: %s",
			t.failed)
		return
	case t.matched == 0:
		e.unpublished(w, t, p, from)
		return
	}
	if len(t.excluded) > 0 && len(t.most) == len(t.excluded) {
		e.elsewhere(w, t, p, from)
		return
	}
	matched, on := t.wanted()
	most := 0
	for _, n := range on {
		most = max(most, n)
	}
	if most < w.count {
		e.find("DevicesTooFew", w.object, from, "the request asks for %d devices, and no node has more than %d that match", w.count, most)
	}
	if t.tooSmall == t.matched {
		e.find("ShareTooLarge", w.object, from, "%d devices match, and none has the capacity that is asked for", t.matched)
	}
	for _, key := range slices.Sorted(maps.Keys(t.tainted)) {
		all := t.tainted[key]
		if _, ok := findings.Find(key); !ok || strings.HasSuffix(key, "/device-plugin") || 2*len(all) < matched-t.heldDevices {
			e.note("SchedulerRefuses", 0.5, w.object, from, "%d devices have the taint %s that the claim does not tolerate", len(all), key)
			continue
		}
		for _, d := range all {
			e.taint(d.taint, d.driver, d.node, d.device)
		}
	}
	for _, code := range slices.Sorted(maps.Keys(t.nodes)) {
		behind := 0.0
		if code == "NodesExcluded" && matched < t.matched {
			behind = 0.5
		}
		e.note(code, behind, w.object, "the nodes that have devices that match", "%s", some(t.nodes[code]))
	}
	if t.heldDevices > 0 {
		withdrawn := ""
		if t.withdrawn > 0 {
			withdrawn = fmt.Sprintf("; %d of these are in no ResourceSlice while they are full (gpus.withdrawFullAfter)", t.withdrawn)
		}
		e.find("DevicesTaken", w.object, from, "of %d devices that match, %d are held, by %s%s", matched, t.heldDevices,
			some(slices.Clone(t.held)), withdrawn)
	}
}

// elsewhere is for a pod that excludes every node with devices that match. Problems of the nodes that it does not exclude come first.
func (e *examination) elsewhere(w want, t tally, p *corev1.Pod, from string) {
	behind := 0.0
	if t.allowedOfDriver > 0 {
		e.unpublished(w, tally{ofDriver: t.allowedOfDriver, byClass: t.allowedByClass, near: t.near}, p, from)
		behind = 0.5
	} else {
		e.allowed(p)
	}
	e.note("NodesExcluded", behind, w.object, "the nodes that have devices that match", "%s%s", some(t.nodes["NodesExcluded"]),
		e.withoutFabric(w))
}

// allowed checks the nodes that a pod does not exclude.
func (e *examination) allowed(p *corev1.Pod) {
	for i := range e.Nodes {
		if n := &e.Nodes[i]; excludes(p, n) == "" && !e.looked {
			e.conditions(n)
			e.published(n.Name)
			e.plugins(n)
		}
	}
}

// unpublished returns the reason for which no published device matches: problems of the nodes come first.
func (e *examination) unpublished(w want, t tally, p *corev1.Pod, from string) {
	e.allowed(p)
	switch form := e.class[w.class].Name; {
	case t.byClass > 0:
		e.find("NoSuchDevice", w.object, from, "%d devices are of class %s, and the request's own selectors select none of them%s%s", t.byClass,
			w.class, t.near.String(), e.allHeld(w))
	case t.ofDriver > 0 && strings.Contains(fmt.Sprint(e.class[w.class].Spec.Selectors), devices.Driver) && form != "gpu.nvidia.com",
		t.ofDriver > 0 && form == "gpu.nvidia.com":
		e.find("NoSuchForm", w.object, from, "%d devices are published, and none in the form that class %s selects", t.ofDriver, w.class)
	default:
		e.find("NoSuchDevice", w.object, from, "no node publishes a device that class %s selects%s", w.class, e.withoutFabric(w))
	}
}

// allHeld reports that no IMEX channel is left, where a request for one is not met.
func (e *examination) allHeld(w want) string {
	if w.class != computedomain.ChannelClass {
		return ""
	}
	nodes := 0
	for i := range e.Slices {
		for _, d := range e.Slices[i].Spec.Devices {
			if d.Attributes[computedomain.AttributeAllHeld].BoolValue != nil {
				nodes++
			}
		}
	}
	if nodes == 0 {
		return ""
	}
	return fmt.Sprintf("; on %d nodes other domains hold all IMEX channels: delete ComputeDomains that nobody needs", nodes)
}

// withoutFabric adds that only nodes with NVLink fabric publish channels, where a request for one is not met.
func (e *examination) withoutFabric(w want) string {
	if w.class != computedomain.ChannelClass || !e.hasArgument("compute-domain-plugin", "--fabric-only") {
		return ""
	}
	return "; nodes without NVLink fabric publish no channel (computeDomains.nodesWithoutFabric is false)"
}

// room checks whether a node has enough CPU and memory for the pod.
func (e *examination) room(p *corev1.Pod, object string) {
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		asked, most := int64(0), int64(0)
		for _, c := range p.Spec.Containers {
			q := c.Resources.Requests[name]
			asked += q.MilliValue()
		}
		for i := range e.Nodes {
			if code, _ := keeps(p, &e.Nodes[i]); code != "NodesExcluded" {
				q := e.Nodes[i].Status.Allocatable[name]
				most = max(most, q.MilliValue())
			}
		}
		if asked > most && most > 0 {
			e.find("NoRoomForPod", object, "the nodes' status.allocatable",
				"the pod asks for %d m of %s, and no node that it may use has more than %d m",
				asked, name, most)
		}
	}
}

// schedulersWords is the last resort: the scheduler's own message. counting is a class of which all devices that match consume counters;
// empty: none. A scheduler without the feature gate for counters leaves such devices out, and reports only that it cannot allocate
// (alloc.features.PartitionableDevices in k8s.io/dynamic-resource-allocation/structured).
func (e *examination) schedulersWords(p *corev1.Pod, object, counting string) {
	for _, c := range p.Status.Conditions {
		if c.Type != corev1.PodScheduled || c.Status != corev1.ConditionFalse || c.Message == "" {
			continue
		}
		code := "SchedulerRefuses"
		if strings.Contains(c.Message, "Insufficient cpu") || strings.Contains(c.Message, "Insufficient memory") {
			code = "NoRoomForPod"
		}
		gate := ""
		if counting != "" && strings.Contains(c.Message, "cannot allocate all claims") {
			gate = fmt.Sprintf(". Enough devices of class %s are free, and all of them consume counters: a scheduler whose feature gate "+
				"DRAPartitionableDevices is off leaves them out. Look at --feature-gates of kube-scheduler", counting)
		}
		e.find(code, object, "the pod's condition PodScheduled", "%s%s", c.Message, gate)
		return
	}
	e.find("PodNotScheduledYet", object, "the pod's spec.nodeName", "the pod has no node, and nothing that was read keeps it from one")
}
