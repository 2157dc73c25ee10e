package diagnosis

import (
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	rdma "gpufabric.io/drivers/rdma/dra"
)

// pool checks an RDMAPool.
func (e *examination) pool(p *v1alpha1.RDMAPool) {
	object := "rdmapool " + p.Name
	for _, c := range p.Status.Conditions {
		from := "the pool's condition " + c.Type
		switch {
		case c.Type == v1alpha1.RDMAPoolExhausted && c.Status == metav1.ConditionTrue,
			c.Type == v1alpha1.RDMAPoolConflicting && c.Status == metav1.ConditionTrue, c.Type == v1alpha1.RDMAPoolReady &&
				c.Status == metav1.ConditionFalse,
			c.Reason == "SomeDevicesDown":
			e.note(c.Reason, poolRank(c.Reason), object, from, "%s", c.Message)
		}
	}
	if len(p.Status.Conditions) == 0 {
		e.find("ControllerNotReady", object, "the pool's status", "the controller has not looked at RDMAPool %s yet", p.Name)
	}
	e.unmatched(p)
	for _, n := range p.Status.Nodes {
		if node := e.nodes[n.Name]; node != nil && (n.Devices == 0 || n.HealthyDevices < n.Devices) {
			e.machine(node)
			e.plugins(node)
			e.published(n.Name)
		}
	}
}

// poolRank puts a pool's reasons in order: that another pool has its devices is why none matches, and a port that is down is why its
// devices are.
func poolRank(reason string) float64 {
	switch reason {
	case "ClaimedByOthers":
		return -0.5
	case "DevicesDown", "SomeDevicesDown":
		return 0.5
	}
	return 0
}

// layouts checks MIGLayouts and VGPUProfiles.
func (e *examination) layouts() {
	index(e.MIGLayouts, func(l *v1alpha1.MIGLayout) { e.ready("miglayout "+l.Name, l.Status.Conditions) })
	e.cuts("MIG layouts by demand", cutLasts)
	index(e.VGPUProfiles, func(p *v1alpha1.VGPUProfile) { e.ready("vgpuprofile "+p.Name, p.Status.Conditions) })
}

// ready reads a condition Ready.
func (e *examination) ready(object string, conditions []metav1.Condition) {
	for _, c := range conditions {
		if c.Type == "Ready" && c.Status == metav1.ConditionFalse {
			e.find(c.Reason, object, "its condition Ready", "%s", c.Message)
		}
	}
}

// port is an RDMA device of a node.
type port struct {
	node   string
	device *resourceapi.Device
}

// rails compares the ports of each rail, and the NICs of each model, on all nodes or those of a list.
func (e *examination) rails(only []string) {
	rails, models := map[string][]port{}, map[string][]port{}
	for _, p := range e.devices().all(rdma.Driver) {
		if only != nil && !slices.Contains(only, p.node) {
			continue
		}
		for i := range p.devices {
			d := &p.devices[i]
			if slices.ContainsFunc(d.Taints, func(t resourceapi.DeviceTaint) bool { return t.Key == rdma.TaintPortDown }) {
				continue // a port that is down has no rate
			}
			if at := peersOf(d); at != "" {
				rails[at] = append(rails[at], port{p.node, d})
			}
			if model := attributeOf(d, rdma.AttrPSID) + attributeOf(d, rdma.AttrDeviceID); model != "" {
				models[model] = append(models[model], port{p.node, d})
			}
		}
	}
	for _, at := range slices.Sorted(maps.Keys(rails)) {
		e.differs("RailMTUDiffers", at, "MTU", rdma.AttrMTU, rails[at])
		e.differs("RailRateDiffers", at, "rate in Gb/s", rdma.AttrRate, rails[at])
		e.differs("RailLinkLayerDiffers", at, "link layer", rdma.AttrLinkLayer, rails[at])
		e.differs("NoGPUDirect", at, "GPUDirect", rdma.AttrGPUDirect, rails[at])
	}
	for _, model := range slices.Sorted(maps.Keys(models)) {
		e.differs("NICFirmwareDiffers", "NICs of board "+model, "firmware", rdma.AttrFirmware, models[model])
	}
}

// peersOf returns the ports of other nodes with which a port should agree: those of its rail, or, where no PCIe switch makes rails
// (GB200), those of the same board in the same slot. A port of neither is compared with none.
func peersOf(d *resourceapi.Device) string {
	if rail := attributeOf(d, rdma.AttrRail); rail != "" {
		return "rail " + rail
	}
	slot, board := attributeOf(d, rdma.AttrPCIBusID), attributeOf(d, rdma.AttrPSID)
	if slot == "" || board == "" {
		return ""
	}
	return "boards " + board + " at " + slot
}

// differs returns the ports whose value differs from the value of most ports. Where fewer than two thirds agree, it returns all of
// them, since the wrong ones cannot be identified.
func (e *examination) differs(code, among, what string, name resourceapi.QualifiedName, ports []port) {
	values := map[string][]string{}
	on := map[string]map[string]bool{}
	for _, p := range ports {
		v := attributeOf(p.device, name)
		if v == "" || code == "NoGPUDirect" && v != "none" {
			v = map[bool]string{true: "peermem or dmabuf"}[v != ""]
			if v == "" {
				continue
			}
		}
		if on[v] == nil {
			on[v] = map[string]bool{}
		}
		values[v] = append(values[v], p.node+" "+p.device.Name)
		on[v][p.node] = true
	}
	if len(values) < 2 {
		return
	}
	usual := usualOf(values)
	if code == "NoGPUDirect" {
		usual = "peermem or dmabuf"
	}
	for _, v := range slices.Sorted(maps.Keys(values)) {
		if v == usual {
			continue
		}
		for _, at := range values[v] {
			node, device, _ := strings.Cut(at, " ")
			e.find(code, "node "+node, "attribute "+string(name)+" of ResourceSlices", "%s of %s on node %s is %s; among %s, %d have %s", what,
				device,
				node, v, among, len(values[usual]), usual)
		}
	}
}
