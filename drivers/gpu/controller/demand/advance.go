package demand

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/gpu/devices"
)

const (
	// fence is how long a withdrawn device is out of the slices before the claims are listed: a scheduler with an older view of the
	// slices has written its allocation by then.
	fence = time.Second
	// answer is how long a node has to withdraw devices.
	answer = 30 * time.Second
	// pause is how long a GPU gets no orders after one was taken back.
	pause = 30 * time.Second
	// pageSize is how many claims are listed at a time.
	pageSize = 500
)

// advance takes each cut in progress as far as it is possible now.
func (d *decider) advance(ctx context.Context, pools map[string]*pool, edits map[string]*edit) error {
	found := map[string]*gpu{}
	for _, p := range pools {
		maps.Copy(found, p.byID)
	}
	var fenced []*change
	for _, id := range slices.Sorted(maps.Keys(d.changes)) {
		c, g := d.changes[id], found[id]
		switch {
		case g == nil || g.child.Name != c.child:
			delete(d.changes, id) // the node or its layout is gone
		case c.generation == 0 || g.child.Generation < c.generation:
		case c.cutting:
			d.watchCut(c, g)
		case g.child.Generation > c.generation && !withdrawn(g, c):
			d.undo(c) // somebody else showed the devices again
		case g.entry.ObservedGeneration >= c.generation && !slices.ContainsFunc(c.doomed, func(name string) bool { return g.published[name] }):
			if c.gone.IsZero() {
				c.gone = d.now()
			}
			if d.now().Sub(c.gone) >= fence {
				fenced = append(fenced, c)
			}
		case d.now().Sub(c.since) > answer:
			d.takeBack(c, g, d.edit(edits, g.child), fmt.Sprintf("node %s has not withdrawn its devices in %s", c.node, answer))
		default:
			c.gone = time.Time{}
		}
	}
	if len(fenced) == 0 {
		return nil
	}
	holders, err := d.holders(ctx, fenced)
	if err != nil {
		return err
	}
	for _, c := range fenced {
		g := found[c.gpu]
		e := d.edit(edits, g.child)
		if holder := holders[c.gpu]; holder != "" {
			d.takeBack(c, g, e, fmt.Sprintf("claim %s got one of its devices meanwhile", holder))
			continue
		}
		c.cutting, c.since = true, d.now()
		e.cut(g, c)
		e.changes = append(e.changes, c)
		e.because("%s: %s", g.status.Device, c.reason)
	}
	return nil
}

func withdrawn(g *gpu, c *change) bool {
	return !slices.ContainsFunc(c.doomed, func(name string) bool { return !slices.Contains(g.spec.Withdrawn, name) })
}

// watchCut ends a cut that the node has finished, or given up.
func (d *decider) watchCut(c *change, g *gpu) {
	if g.entry.ObservedGeneration < c.generation {
		return
	}
	switch g.status.State {
	case v1alpha1.MIGLayoutApplied:
		d.undo(c)
		d.changed[c.gpu] = d.now()
		d.events.Eventf(c.layout, corev1.EventTypeNormal, "LayoutChanged", "%s of node %s is %s after %s", g.status.Device, c.node,
			v1alpha1.DescribeInstances(c.target), d.now().Sub(c.since).Round(100*time.Millisecond))
	case v1alpha1.MIGLayoutFailed:
		d.undo(c)
		d.events.Eventf(c.layout, corev1.EventTypeWarning, "LayoutFailed",
			"%s of node %s gets no orders until its node can make it %s: %s",
			g.status.Device, c.node, v1alpha1.DescribeInstances(c.target), g.status.Message)
	}
}

// takeBack offers the doomed devices again.
func (d *decider) takeBack(c *change, g *gpu, e *edit, why string) {
	e.withdraw(g, nil, c.doomed)
	e.because("%s: taken back, since %s", g.status.Device, why)
	d.undo(c)
	d.blocked[c.gpu] = d.now().Add(pause)
	d.events.Eventf(c.layout, corev1.EventTypeWarning, "LayoutTakenBack", "%s of node %s does not become %s: %s",
		g.status.Device, c.node, v1alpha1.DescribeInstances(c.target), why)
}

func (d *decider) undo(c *change) {
	if d.changes[c.gpu] == c {
		delete(d.changes, c.gpu)
	}
}

// holders lists the cluster's claims as they are now, and returns for each change a claim that has a doomed device.
func (d *decider) holders(ctx context.Context, changes []*change) (map[string]string, error) {
	doomed := map[deviceID]string{}
	for _, c := range changes {
		for _, name := range c.doomed {
			doomed[deviceID{devices.PoolName(c.node), name}] = c.gpu
		}
	}
	holders := map[string]string{}
	page := &resourceapi.ResourceClaimList{}
	for {
		// Without a resource version the list is consistent.
		if err := d.live.List(ctx, page, client.Limit(pageSize), client.Continue(page.Continue)); err != nil {
			return nil, fmt.Errorf("list the ResourceClaims: %w", err)
		}
		for i := range page.Items {
			for _, device := range held(&page.Items[i]) {
				if gpu, is := doomed[device]; is {
					holders[gpu] = page.Items[i].Namespace + "/" + page.Items[i].Name
				}
			}
		}
		if page.Continue == "" {
			return holders, nil
		}
	}
}

// about is the reference of an Event to a layout, whose kind is not in the recorder's scheme.
func about(l *v1alpha1.MIGLayout) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: v1alpha1.SchemeGroupVersion().String(), Kind: "MIGLayout", Name: l.Name, UID: l.UID}
}
