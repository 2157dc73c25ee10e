package demand

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/planner"
)

// pool are the GPUs of a layout with auto.
type pool struct {
	layout *v1alpha1.MIGLayout
	shapes shapes
	nodes  []*corev1.Node
	gpus   []*gpu
	byID   map[string]*gpu
}

// gpu is a GPU as its node's layout has it, and as its node reports it.
type gpu struct {
	// id is the node and the UUID: a node cannot take another's GPU by reporting its UUID.
	id     string
	node   string
	parent *v1alpha1.MIGLayout
	child  *v1alpha1.MIGLayout
	entry  *v1alpha1.MIGLayoutNode
	spec   v1alpha1.MIGLayoutGPU
	status *v1alpha1.MIGNodeGPU
	model  *model
	// published are its devices in the node's slices. like is one of them, or of another GPU of the kind.
	published map[string]bool
	like      *resourceapi.Device
	// state is the planner's; devices are the names of state.Devices, by index.
	state   planner.GPU
	devices []string
}

// pool collects the GPUs of a layout with auto. GPUs that its nodes report and their layouts lack are added to these as they are.
func (d *decider) pool(w *world, l *v1alpha1.MIGLayout, assigned Assignment, edits map[string]*edit) *pool {
	p := &pool{layout: l, shapes: shapesOf(l.Spec.Auto), byID: map[string]*gpu{}}
	models := map[string]*model{}
	likes := map[string]*resourceapi.Device{}
	for node, parent := range assigned.Parents {
		if parent != l.Name {
			continue
		}
		p.nodes = append(p.nodes, w.nodes[node])
	}
	slices.SortFunc(p.nodes, func(a, b *corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	for _, node := range p.nodes {
		child := w.children[node.Name]
		if child == nil {
			continue
		}
		at := slices.IndexFunc(child.Status.Nodes, func(n v1alpha1.MIGLayoutNode) bool { return n.Name == node.Name })
		if at < 0 {
			continue
		}
		entry := &child.Status.Nodes[at]
		if child.Generation >= d.written[child.UID] {
			delete(d.written, child.UID)
		}
		for i := range entry.GPUs {
			status := &entry.GPUs[i]
			if models[modelKey(status)] == nil {
				models[modelKey(status)] = modelOf(p.shapes, entry, status)
			}
			m := models[modelKey(status)]
			if len(m.profiles) == 0 {
				continue // it has no MIG
			}
			g := &gpu{id: node.Name + "/" + status.UUID, node: node.Name, parent: l, child: child,
				entry: entry, status: status, model: m, published: map[string]bool{}}
			listed := slices.IndexFunc(child.Spec.GPUs, func(s v1alpha1.MIGLayoutGPU) bool { return s.UUID == status.UUID })
			if listed < 0 {
				d.edit(edits, child).add(v1alpha1.MIGLayoutGPU{UUID: status.UUID, Instances: status.Instances})
				continue
			}
			g.spec = child.Spec.GPUs[listed]
			if d.forgotten(g) {
				d.edit(edits, child).touch()
			}
			tainted := false
			for j := range w.published[node.Name] {
				if dev := &w.published[node.Name][j]; devices.GPUOf(dev.Name) == status.Device {
					g.published[dev.Name], likes[modelKey(status)] = true, dev
					tainted = tainted || slices.ContainsFunc(dev.Taints, func(t resourceapi.DeviceTaint) bool {
						return t.Effect == resourceapi.DeviceTaintEffectNoSchedule || t.Effect == resourceapi.DeviceTaintEffectNoExecute
					})
				}
			}
			d.describe(w, p, g, tainted || !usable(node))
			p.gpus = append(p.gpus, g)
			p.byID[g.id] = g
		}
	}
	for _, g := range p.gpus {
		g.like = likes[modelKey(g.status)]
	}
	return p
}

// forgotten reports whether the layout names a cut of an earlier controller that this one does not make: its devices were only withdrawn.
func (d *decider) forgotten(g *gpu) bool {
	return d.changes[g.id] == nil && g.child.Generation >= d.written[g.child.UID] &&
		slices.ContainsFunc(g.child.Cuts(), func(c v1alpha1.MIGCut) bool {
			return c.UUID == g.status.UUID && !slices.Equal(c.Instances, g.spec.Instances)
		})
}

// usable reports whether a node takes pods.
func usable(n *corev1.Node) bool {
	return !n.Spec.Unschedulable && slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// describe makes the planner's state of a GPU.
func (d *decider) describe(w *world, p *pool, g *gpu, unusable bool) {
	s := &g.state
	s.ID, s.Node, s.Model, s.Changed = g.id, g.node, &g.model.Model, d.changed[g.id]
	behind := g.child.Generation < d.written[g.child.UID] // the cache lacks the last write
	s.Pinned = unusable || behind || d.now().Before(d.blocked[g.id]) || g.status.State == v1alpha1.MIGLayoutFailed
	planned := g.spec.Instances
	shapeOf := func(name string) int { return slices.Index(p.shapes.names, name) }
	if len(planned) == 0 {
		id := deviceID{devices.PoolName(g.node), g.status.Device}
		busy := w.claims.has(id)
		switch shape := shapeOf(v1alpha1.MIGWhole); {
		case shape >= 0:
			s.Devices = []planner.Device{{Shape: shape, Busy: busy, Taken: busy || w.taken[id],
				Hidden: slices.Contains(g.spec.Withdrawn, g.status.Device)}}
			g.devices = []string{g.status.Device}
		default:
			s.Pinned = s.Pinned || busy
		}
	}
	c := d.changes[s.ID]
	current := g.entry.ObservedGeneration >= g.child.Generation && g.status.State == v1alpha1.MIGLayoutApplied
	for _, i := range planned {
		name := g.model.device(g.status, i.Profile, int(i.Start))
		shape := shapeOf(i.Profile)
		if shape < 0 {
			s.Pinned = true // an instance of another shape, which the layout does not want
			continue
		}
		id := deviceID{devices.PoolName(g.node), name}
		busy := w.claims.has(id)
		device := planner.Device{Shape: shape, Start: int(i.Start), Busy: busy, Taken: busy || w.taken[id],
			Hidden: slices.Contains(g.spec.Withdrawn, name)}
		if !current && !slices.Contains(g.status.Instances, i) {
			s.Changing = append(s.Changing, device)
			continue
		}
		s.Devices, g.devices = append(s.Devices, device), append(g.devices, name)
	}
	switch {
	case c != nil: // the doomed devices are as good as gone, the target's others come
		s.Changing = []planner.Device{}
		target := g.devicesOf(p, c.target)
		stays := func(n planner.Device, in []planner.Device) bool {
			return slices.ContainsFunc(in, func(o planner.Device) bool { return o.Shape == n.Shape && o.Start == n.Start })
		}
		var names []string
		var left []planner.Device
		for i, device := range s.Devices {
			if stays(device, target) {
				left, names = append(left, device), append(names, g.devices[i])
			}
		}
		for _, device := range target {
			if !stays(device, left) {
				s.Changing = append(s.Changing, device)
			}
		}
		s.Devices, g.devices = left, names
	case !current && s.Changing == nil && g.status.State != v1alpha1.MIGLayoutFailed:
		s.Changing = []planner.Device{} // a change that an earlier controller began
	}
}

// devicesOf are instances as the planner has them.
func (g *gpu) devicesOf(p *pool, instances []v1alpha1.MIGLayoutInstance) []planner.Device {
	if len(instances) == 0 {
		if shape := slices.Index(p.shapes.names, v1alpha1.MIGWhole); shape >= 0 {
			return []planner.Device{{Shape: shape}}
		}
		return nil
	}
	var out []planner.Device
	for _, i := range instances {
		if shape := slices.Index(p.shapes.names, i.Profile); shape >= 0 {
			out = append(out, planner.Device{Shape: shape, Start: int(i.Start)})
		}
	}
	return out
}

// instances are a layout of the planner as instances.
func (g *gpu) instances(layout []planner.Device) []v1alpha1.MIGLayoutInstance {
	var out []v1alpha1.MIGLayoutInstance
	for _, d := range layout {
		if name := g.model.Shapes[d.Shape].Name; name != v1alpha1.MIGWhole {
			out = append(out, v1alpha1.MIGLayoutInstance{Profile: name, Start: int32(d.Start)}) //nolint:gosec // memory slices, in single digits
		}
	}
	sortInstances(out)
	return out
}

// names are the names of devices in ResourceSlices.
func (g *gpu) names(list []planner.Device) []string {
	var out []string
	for _, d := range list {
		out = append(out, g.model.device(g.status, g.model.Shapes[d.Shape].Name, d.Start))
	}
	return out
}

// edit is the change of a node's layout in one round.
type edit struct {
	child   *v1alpha1.MIGLayout
	next    *v1alpha1.MIGLayout // nil: no change yet
	changes []*change
	reasons []string
	// written are called once the layout is written: Events about its orders.
	written []func()
}

// maxDecision bounds the text of the latest decision.
const maxDecision = 1024

func (d *decider) edit(edits map[string]*edit, child *v1alpha1.MIGLayout) *edit {
	if edits[child.Name] == nil {
		edits[child.Name] = &edit{child: child}
	}
	return edits[child.Name]
}

// touch has the layout written, with the cuts that are in progress then.
func (e *edit) touch() {
	if e.next == nil {
		e.next = e.child.DeepCopy()
	}
}

func (e *edit) gpu(uuid string) *v1alpha1.MIGLayoutGPU {
	e.touch()
	for i := range e.next.Spec.GPUs {
		if e.next.Spec.GPUs[i].UUID == uuid {
			return &e.next.Spec.GPUs[i]
		}
	}
	e.next.Spec.GPUs = append(e.next.Spec.GPUs, v1alpha1.MIGLayoutGPU{UUID: uuid})
	return &e.next.Spec.GPUs[len(e.next.Spec.GPUs)-1]
}

// add adds a GPU that the layout lacks.
func (e *edit) add(g v1alpha1.MIGLayoutGPU) { *e.gpu(g.UUID) = g }

// withdraw withdraws and shows devices of a GPU.
func (e *edit) withdraw(g *gpu, hide, show []string) {
	entry := e.gpu(g.status.UUID)
	entry.Withdrawn = slices.DeleteFunc(entry.Withdrawn, func(name string) bool { return slices.Contains(show, name) })
	for _, name := range hide {
		if !slices.Contains(entry.Withdrawn, name) {
			entry.Withdrawn = append(entry.Withdrawn, name)
		}
	}
}

// cut writes the new instances of a GPU. Only devices of the new layout that were hidden before stay withdrawn.
func (e *edit) cut(g *gpu, c *change) {
	entry := e.gpu(g.status.UUID)
	entry.Instances = c.target
	entry.Withdrawn = slices.DeleteFunc(entry.Withdrawn, func(name string) bool {
		return slices.Contains(c.doomed, name) || slices.Contains(c.show, name)
	})
}

// because records a decision's reason in the layout.
func (e *edit) because(format string, args ...any) {
	e.reasons = append(e.reasons, fmt.Sprintf(format, args...))
	text := strings.Join(e.reasons, "; ")
	if e.next == nil {
		return
	}
	if e.next.Annotations == nil {
		e.next.Annotations = map[string]string{}
	}
	e.next.Annotations[v1alpha1.MIGDecisionAnnotation] = text[:min(len(text), maxDecision)]
}

// change is a cut in progress.
type change struct {
	gpu, node, child string // the GPU's ID, and names
	uuid, device     string
	layout           *corev1.ObjectReference // the child, for Events
	target           []v1alpha1.MIGLayoutInstance
	// doomed are the devices that go, show those of the target that are published.
	doomed, show []string
	reason       string
	ordered      time.Time
	// generation is the generation of the child whose report is awaited; 0: not written yet.
	generation int64
	cutting    bool // the new instances are written; before, the doomed devices are withdrawn
	since      time.Time
	// gone is when the doomed devices were seen to have left the slices.
	gone time.Time
}
