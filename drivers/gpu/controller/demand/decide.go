package demand

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/doctor/selector"
	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/planner"
)

// remember is how long the resolved shapes of pods, and the samples of devices, are used.
const remember = time.Minute

// policy decides which GPU gets which layout. planner.Planner is one.
type policy interface {
	Plan(planner.State) []planner.Order
}

// decider makes and carries out decisions for all layouts by demand.
type decider struct {
	layouts client.Client
	watched client.Reader // cached: pods, nodes, slices, classes
	claims  *claimIndex
	live    client.Reader // consistent
	events  record.EventRecorder
	now     func() time.Time
	// policy makes the policy of a layout.
	policy func() policy

	policies map[types.UID]policy
	wants    map[types.UID]*wants
	resolved map[types.UID]map[types.UID]resolution // by layout, then by pod
	cleared  time.Time
	changes  map[string]*change // by the GPU's ID
	// blocked GPUs get no orders until then. changed is when the layouts were changed.
	blocked, changed map[string]time.Time
	// written are the generations of the nodes' layouts that the cache does not have yet. By UID: a layout that is made again begins
	// with generation 1.
	written map[types.UID]int64
}

// resolution is the demand of a waiting pod, as long as the pod does not change.
type resolution struct {
	version string
	parts   []part
	counted bool // among the arrivals
}

func newDecider(layouts client.Client, watched, live client.Reader, claims *claimIndex, events record.EventRecorder,
	now func() time.Time) *decider {
	return &decider{layouts: layouts, watched: watched, live: live, claims: claims, events: events, now: now,
		policy:   func() policy { return planner.New(planner.Options{}) },
		policies: map[types.UID]policy{}, wants: map[types.UID]*wants{}, resolved: map[types.UID]map[types.UID]resolution{},
		changes: map[string]*change{}, blocked: map[string]time.Time{}, changed: map[string]time.Time{}, written: map[types.UID]int64{}}
}

// world is the cluster in one decision.
type world struct {
	layouts  []v1alpha1.MIGLayout
	children map[string]*v1alpha1.MIGLayout // by node
	nodes    map[string]*corev1.Node
	// published are the devices of each node's slices.
	published map[string][]resourceapi.Device
	claims    *claimIndex
	taken     map[deviceID]bool // since the last decision
	classes   map[string]*resourceapi.DeviceClass
	pods      []corev1.Pod
}

type deviceID struct{ pool, name string }

// decide makes one round of decisions. left: there is a layout to decide about.
func (d *decider) decide(ctx context.Context) (left bool, err error) {
	w, err := d.look(ctx)
	if err != nil {
		return true, err
	}
	sets := map[string]labels.Set{}
	for name, n := range w.nodes {
		sets[name] = n.Labels
	}
	assigned := Assign(w.layouts, sets)
	if err := d.keepChildren(ctx, w, assigned); err != nil {
		return true, err
	}
	if d.now().Sub(d.cleared) > remember {
		for _, pods := range d.resolved { // they are resolved again, and not counted again
			for uid, r := range pods {
				pods[uid] = resolution{counted: r.counted}
			}
		}
		clear(d.wants)
		d.cleared = d.now()
		maps.DeleteFunc(d.blocked, func(_ string, until time.Time) bool { return d.now().After(until) })
	}
	edits := map[string]*edit{} // by the children's names
	pools := map[string]*pool{}
	for i := range w.layouts {
		l := &w.layouts[i]
		if l.Spec.Auto == nil || l.DeletionTimestamp != nil {
			continue
		}
		left = true
		p := d.pool(w, l, assigned, edits)
		pools[l.Name] = p
	}
	left = left || len(w.children) > 0
	d.forget(w, pools)
	if err := d.advance(ctx, pools, edits); err != nil {
		return left, err
	}
	for _, name := range slices.Sorted(maps.Keys(pools)) {
		d.order(w, pools[name], edits)
	}
	return left, d.write(ctx, edits)
}

// forget drops the stored data of layouts and GPUs that are gone.
func (d *decider) forget(w *world, pools map[string]*pool) {
	there := map[types.UID]bool{}
	for i := range w.layouts {
		there[w.layouts[i].UID] = w.layouts[i].Spec.Auto != nil
	}
	maps.DeleteFunc(d.policies, func(uid types.UID, _ policy) bool { return !there[uid] })
	maps.DeleteFunc(d.wants, func(uid types.UID, _ *wants) bool { return !there[uid] })
	maps.DeleteFunc(d.resolved, func(uid types.UID, _ map[types.UID]resolution) bool { return !there[uid] })
	alive := map[types.UID]bool{}
	for _, child := range w.children {
		alive[child.UID] = true
	}
	maps.DeleteFunc(d.written, func(uid types.UID, _ int64) bool { return !alive[uid] })
	maps.DeleteFunc(d.changed, func(id string, _ time.Time) bool {
		for _, p := range pools {
			if p.byID[id] != nil {
				return false
			}
		}
		return true
	})
}

// look reads the cluster.
func (d *decider) look(ctx context.Context) (*world, error) {
	w := &world{children: map[string]*v1alpha1.MIGLayout{}, nodes: map[string]*corev1.Node{}, published: map[string][]resourceapi.Device{},
		claims: d.claims, taken: d.claims.newlyTaken(), classes: map[string]*resourceapi.DeviceClass{}}
	layouts, nodes, slices := &v1alpha1.MIGLayoutList{}, &corev1.NodeList{}, &resourceapi.ResourceSliceList{}
	classes, pods := &resourceapi.DeviceClassList{}, &corev1.PodList{}
	if err := d.layouts.List(ctx, layouts); err != nil {
		return nil, fmt.Errorf("list the MIGLayouts: %w", err)
	}
	for _, list := range []client.ObjectList{nodes, slices, classes, pods} {
		if err := d.watched.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list %T: %w", list, err)
		}
	}
	w.layouts, w.pods = layouts.Items, pods.Items
	byHash := map[string]string{}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		w.nodes[n.Name], byHash[v1alpha1.MIGNodeValue(n.Name)] = n, n.Name
	}
	for i := range w.layouts {
		if l := &w.layouts[i]; l.ByDemand() && l.DeletionTimestamp == nil {
			node := byHash[l.Labels[v1alpha1.MIGNodeLabel]]
			if node == "" {
				node = "?" + l.Name // a node that is gone
			}
			w.children[node] = l
		}
	}
	for i := range slices.Items {
		if s := &slices.Items[i]; s.Spec.Driver == devices.Driver && s.Spec.NodeName != nil {
			w.published[*s.Spec.NodeName] = append(w.published[*s.Spec.NodeName], s.Spec.Devices...)
		}
	}
	for i := range classes.Items {
		w.classes[classes.Items[i].Name] = &classes.Items[i]
	}
	return w, nil
}

// keepChildren makes the layouts of nodes that a layout with auto has, and removes those of other nodes.
func (d *decider) keepChildren(ctx context.Context, w *world, assigned Assignment) error {
	parents := map[string]*v1alpha1.MIGLayout{}
	for i := range w.layouts {
		parents[w.layouts[i].Name] = &w.layouts[i]
	}
	for node, child := range w.children {
		parent := parents[assigned.Parents[node]]
		if parent != nil && child.Labels[v1alpha1.MIGByDemandLabel] == string(parent.UID) {
			continue
		}
		if err := client.IgnoreNotFound(d.layouts.Delete(ctx, child, client.Preconditions{UID: &child.UID})); err != nil {
			return fmt.Errorf("delete MIGLayout %s: %w", child.Name, err)
		}
		delete(w.children, node)
	}
	for node, name := range assigned.Parents {
		if w.children[node] != nil || w.nodes[node].Labels[corev1.LabelHostname] == "" {
			continue
		}
		gpus := presentLayouts(w.published[node])
		if len(gpus) == 0 {
			continue // it has no GPUs, or has not published them yet
		}
		child := newChild(parents[name], w.nodes[node], gpus)
		if err := d.layouts.Create(ctx, child); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create MIGLayout %s for node %s: %w", child.Name, node, err)
		}
	}
	return nil
}

// resolve returns the demand of waiting pods, and counts the new ones.
func (d *decider) resolve(w *world, p *pool) (all []planner.Waiting, arrived []int) {
	uid := p.layout.UID
	if d.wants[uid] == nil {
		s := samples{}
		for _, g := range p.gpus {
			if _, known := s[modelKey(g.status)]; !known && g.like != nil {
				s.add(p.shapes.names, g.model, g.status, *g.like)
			}
		}
		if len(s) == 0 {
			return nil, nil
		}
		d.wants[uid] = &wants{samples: s, known: map[string]int{}, selectors: map[string]selector.Selector{}}
	}
	known := d.wants[uid]
	known.classes, known.claims, known.read = w.classes, w.claims, map[string]int{}
	before, now := d.resolved[uid], map[types.UID]resolution{}
	arrived = make([]int, len(p.shapes.names))
	for i := range w.pods {
		pod := &w.pods[i]
		r, found := before[pod.UID]
		since, waits := waits(pod)
		if (!found || r.version != pod.ResourceVersion) && known.budget(pod.Namespace) {
			parts, complete := known.parts(pod)
			if len(parts) > 0 && !known.admitted(pod, p.nodes) {
				parts = nil
			}
			r = resolution{parts: parts, counted: r.counted}
			if complete {
				r.version = pod.ResourceVersion
			}
		}
		// A pod counts once the scheduler has tried it, which it does not while a gate or a quota keeps it. The pods of before this
		// controller do not count.
		arrives := !r.counted && len(r.parts) > 0 && (waits || pod.Spec.NodeName != "")
		r.counted = r.counted || arrives
		recent := d.now().Sub(pod.CreationTimestamp.Time) < remember
		for _, part := range r.parts {
			if waits && unallocated(w, part) {
				all = append(all, part.waiting(pod, since)...)
			}
			for _, shape := range part.shapes {
				if arrives && recent {
					arrived[shape]++
				}
			}
		}
		now[pod.UID] = r
	}
	d.resolved[uid] = now
	return all, arrived
}

// unallocated reports whether a pod still lacks a part: its condition may be older than its claim's allocation.
func unallocated(w *world, p part) bool {
	if p.claim.Name == "" {
		return true
	}
	c := w.claims.get(p.claim)
	return c != nil && c.Status.Allocation == nil && c.DeletionTimestamp == nil
}

// order calls the policy, and begins its orders.
func (d *decider) order(w *world, p *pool, edits map[string]*edit) {
	if len(p.gpus) == 0 {
		return
	}
	state := planner.State{Now: d.now(), Limits: p.shapes.limits}
	for _, g := range p.gpus {
		state.GPUs = append(state.GPUs, g.state)
	}
	state.Waiting, state.Arrived = d.resolve(w, p)
	if d.policies[p.layout.UID] == nil {
		d.policies[p.layout.UID] = d.policy()
	}
	for _, o := range d.policies[p.layout.UID].Plan(state) {
		g := p.byID[o.GPU]
		if g == nil || g.state.Pinned || g.state.Changing != nil {
			continue
		}
		d.begin(g, o, d.edit(edits, g.child))
	}
}

// begin writes an order into the layout of its node.
func (d *decider) begin(g *gpu, o planner.Order, e *edit) {
	if o.Layout == nil {
		d.hide(g, o, e)
		return
	}
	c := &change{gpu: g.id, node: g.node, child: g.child.Name, uuid: g.status.UUID, device: g.status.Device, layout: about(g.child),
		target: g.instances(o.Layout), ordered: d.now(), since: d.now()}
	for i, present := range g.state.Devices {
		if !slices.ContainsFunc(o.Layout, func(n planner.Device) bool { return n.Shape == present.Shape && n.Start == present.Start }) {
			if present.Busy {
				return // the order is about an older state
			}
			c.doomed = append(c.doomed, g.devices[i])
		}
	}
	c.reason = o.Reason
	c.show = g.names(slices.DeleteFunc(slices.Clone(o.Layout), func(n planner.Device) bool { return n.Hidden }))
	d.changes[c.gpu] = c
	if len(c.doomed) > 0 {
		e.withdraw(g, c.doomed, nil)
	} else {
		c.cutting = true
		e.cut(g, c)
	}
	e.changes = append(e.changes, c)
	e.because("%s: %s", g.status.Device, o.Reason)
	e.written = append(e.written, func() {
		d.events.Eventf(c.layout, corev1.EventTypeNormal, "LayoutOrdered", "%s of node %s becomes %s: %s", c.device, c.node,
			v1alpha1.DescribeInstances(c.target), c.reason)
	})
}

// hide writes which devices of a GPU are offered.
func (d *decider) hide(g *gpu, o planner.Order, e *edit) {
	hidden, shown := g.names(o.Hide), g.names(o.Show)
	e.withdraw(g, hidden, shown)
	e.because("%s: %s", g.status.Device, o.Reason)
	e.written = append(e.written, func() {
		for reason, names := range map[string][]string{"DevicesHidden": hidden, "DevicesShown": shown} {
			if len(names) > 0 {
				d.events.Eventf(about(g.child), corev1.EventTypeNormal, reason, "%s of node %s: %s", strings.Join(names, ", "), g.node, o.Reason)
			}
		}
	})
}

// cuts are the changes in progress of a node's layout.
func (d *decider) cuts(child string) []v1alpha1.MIGCut {
	var out []v1alpha1.MIGCut
	for _, id := range slices.Sorted(maps.Keys(d.changes)) {
		if c := d.changes[id]; c.child == child {
			out = append(out, v1alpha1.MIGCut{UUID: c.uuid, Device: c.device, Since: c.ordered, Instances: c.target, Reason: c.reason})
		}
	}
	return out
}

// write writes the layouts of the nodes that change. A conflict means that somebody else wrote first: the next round begins anew.
func (d *decider) write(ctx context.Context, edits map[string]*edit) error {
	var failed []string
	for _, name := range slices.Sorted(maps.Keys(edits)) {
		e := edits[name]
		if e.next == nil {
			continue
		}
		if err := e.next.SetCuts(d.cuts(name)); err != nil {
			return fmt.Errorf("write MIGLayout %s: %w", name, err)
		}
		err := d.layouts.Update(ctx, e.next)
		if err == nil {
			d.written[e.next.UID] = e.next.Generation
			for _, c := range e.changes {
				c.generation = e.next.Generation
			}
			for _, report := range e.written {
				report()
			}
			continue
		}
		for _, c := range e.changes {
			d.undo(c)
		}
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			klog.FromContext(ctx).V(2).Info("A layout by demand changed during the decision; deciding again", "layout", name)
			continue
		}
		failed = append(failed, err.Error())
	}
	if len(failed) > 0 {
		return fmt.Errorf("write layouts by demand: %s", strings.Join(failed, "; "))
	}
	return nil
}
