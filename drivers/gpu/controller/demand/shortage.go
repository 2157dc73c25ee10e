package demand

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/drivers/gpu/planner"
)

// Shortage is a shape of a layout with auto that pods wait for and that no GPU of the layout has room for.
type Shortage struct {
	Layout, Shape string
	// Waiting are the devices that pods wait for, Free the compute slices of the layout's GPUs that are unused, and GPUs how many GPUs have
	// as many free as the shape takes.
	Waiting, Free, GPUs int
	Reliefs             []Relief
}

// Relief is a place for the shape, and the claims whose end would make it free.
type Relief struct {
	Node, Device string // the GPU
	Start        int    // memory slice
	Claims       []string
}

// rounds bounds how often pods are looked at, some of each namespace at a time.
const rounds = 1000

// Shortages finds which claims are in the way of pods that wait, for all layouts with auto. It only lists objects.
func Shortages(ctx context.Context, reader client.Client, now time.Time) ([]Shortage, error) {
	d := newDecider(reader, reader, reader, newClaimIndex(), nil, func() time.Time { return now })
	claims := &resourceapi.ResourceClaimList{}
	if err := reader.List(ctx, claims); err != nil {
		return nil, fmt.Errorf("list the ResourceClaims: %w", err)
	}
	for i := range claims.Items {
		d.claims.set(&claims.Items[i])
	}
	w, err := d.look(ctx)
	if err != nil {
		return nil, err
	}
	sets := map[string]labels.Set{}
	for name, n := range w.nodes {
		sets[name] = n.Labels
	}
	assigned := Assign(w.layouts, sets)
	var out []Shortage
	for i := range w.layouts {
		l := &w.layouts[i]
		if l.Spec.Auto == nil || l.DeletionTimestamp != nil {
			continue
		}
		p := d.pool(w, l, assigned, map[string]*edit{})
		state := planner.State{Now: now, Limits: p.shapes.limits}
		for _, g := range p.gpus {
			state.GPUs = append(state.GPUs, g.state)
		}
		for range rounds {
			state.Waiting, _ = d.resolve(w, p)
			if d.wants[l.UID] == nil || !slices.ContainsFunc(slices.Collect(maps.Values(d.wants[l.UID].read)),
				func(n int) bool { return n >= maxRead }) {
				break
			}
		}
		for _, s := range planner.Shortages(state) {
			out = append(out, d.shortage(p, s))
		}
	}
	return out, nil
}

// shortage names the GPUs and claims of a shortage.
func (d *decider) shortage(p *pool, s planner.Shortage) Shortage {
	out := Shortage{Layout: p.layout.Name, Shape: p.shapes.names[s.Shape], Waiting: s.Waiting, Free: s.Free, GPUs: s.GPUs}
	for _, r := range s.Reliefs {
		g := p.byID[r.GPU]
		relief := Relief{Node: g.node, Device: g.status.Device, Start: r.Start}
		for _, name := range g.names(r.Devices) {
			relief.Claims = append(relief.Claims, d.claims.holderOf(g.node, name)...)
		}
		out.Reliefs = append(out.Reliefs, relief)
	}
	return out
}

// String describes a relief in a line.
func (r Relief) String() string {
	return fmt.Sprintf("%s of node %s, memory slice %d: in use by %s", r.Device, r.Node, r.Start, strings.Join(r.Claims, "; "))
}
