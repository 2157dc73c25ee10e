package cards

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"gpufabric.io/drivers/vgpu/annotation"
)

// Place chooses shares for every container of a wish, in the wish's order, and books on n the maximum that is used at one time. An error
// has for each reason the number of GPUs left out; the state of n is then undefined.
func (n Node) Place(w *Wish) ([][]annotation.Share, error) {
	containers := make([][]annotation.Share, len(w.Requests))
	peak := slices.Clone(n)
	for i, r := range w.Requests {
		if r.Number == 0 {
			continue
		}
		now := n
		// This container has ended when the next one starts. But a MIG instance belongs to the container until the pod has ended.
		if before := i < len(w.Before) && w.Before[i]; before && w.Mode != annotation.ModeMIG {
			now = slices.Clone(n)
		}
		var fit []*Card
		reasons := map[string]int{}
		for j := range now {
			if reason := now[j].refuses(w, r); reason != "" {
				reasons[reason]++
			} else {
				fit = append(fit, &now[j])
			}
		}
		if len(fit) < r.Number {
			return nil, fmt.Errorf("container %s requests %d GPUs, and %d of %d are "+
				"suitable%s", r.Container, r.Number, len(fit), len(n), listed(reasons))
		}
		for _, card := range choose(fit, r.Number, w.Policies.Card) {
			share := card.share(w, r)
			card.book(share)
			containers[i] = append(containers[i], share)
		}
		peak.raise(now)
	}
	n.raise(peak)
	return containers, nil
}

// share is the GPU's part for a request that it accepts: in MIG mode the instance of a slot, with the slot's memory.
func (c *Card) share(w *Wish, r Request) annotation.Share {
	share := annotation.Share{UUID: c.UUID, Memory: c.memory(r), Cores: r.Cores}
	if w.Mode == annotation.ModeMIG {
		share.Slot, share.Memory = c.slot(share.Memory)
	}
	if share.Memory == 0 {
		share.Memory = c.Memory
	}
	return share
}

// memory converts a request to whole units of the GPU; 0: all its memory.
func (c *Card) memory(r Request) int64 {
	if r.Memory > 0 || r.Percent == 0 || r.Percent >= 100 {
		return r.Memory
	}
	return c.Memory * r.Percent / 100
}

// refuses reports why the GPU cannot give a share, empty where it can.
func (c *Card) refuses(w *Wish, r Request) string {
	memory := c.memory(r)
	tooLittle := memory == 0 && r.Memory == 0 && r.Percent > 0 && r.Percent < 100
	if memory == 0 {
		memory = c.Memory
	}
	switch {
	case tooLittle:
		return "so small that the percentage asked for is less than a unit of memory"
	case !c.Healthy:
		return "unhealthy"
	case c.Mode == annotation.ModeMIG && w.Mode != annotation.ModeMIG:
		return "cut into MIG instances, which a pod gets by the annotation " + annotation.PodMode + ": " + string(annotation.ModeMIG)
	case c.Mode != annotation.ModeMIG && w.Mode == annotation.ModeMIG:
		return "not cut into MIG instances"
	case len(w.UseUUID) > 0 && !slices.Contains(w.UseUUID, c.UUID), slices.Contains(w.AvoidUUID, c.UUID):
		return "excluded by the pod's list of UUIDs"
	case len(w.UseModel) > 0 && !named(w.UseModel, c.Model), named(w.AvoidModel, c.Model):
		return "of a model that the pod excludes"
	case c.Sibling:
		return "of another pod of its PodGroup, which is to be spread"
	case w.Mode == annotation.ModeMIG:
		return c.refusesSlot(c.memory(r))
	case c.Sharers >= c.Slots:
		return "shared by as many as it may be"
	case memory > c.Memory:
		return "smaller than the memory asked for"
	case c.MemoryUsed+memory > c.Memory:
		return "without the memory left"
	case r.Cores == 100 && c.Sharers > 0:
		return "shared, where all cores are wanted"
	// a GPU with an exclusive user accepts no other pod, not even a request without cores
	case c.CoresUsed+r.Cores > 100, c.CoresUsed >= 100:
		return "without the cores left"
	}
	return ""
}

// refusesSlot reports why there is no MIG slot with that much memory.
func (c *Card) refusesSlot(memory int64) string {
	empty := Card{Groups: c.Groups}
	largest, _ := empty.slot(memory)
	free, _ := c.slot(memory)
	switch {
	case len(c.Groups) == 0:
		return "whose node publishes no MIG slots (annotation " + annotation.NodeMIGSlots + ")"
	case largest == nil:
		return "without a MIG instance that large"
	case c.Cut.Opaque:
		return "with a MIG instance that another scheduler gave without a slot, or in another layout"
	case free == nil:
		return "without a MIG instance that large left"
	}
	return ""
}

// named reports whether a word of a list is part of a model's name, as the annotations are commonly written: "A100" for
// "A100-SXM4-40GB".
func named(list []string, model string) bool {
	return slices.ContainsFunc(list, func(word string) bool {
		return strings.Contains(strings.ToUpper("NVIDIA-"+model), strings.ToUpper(word))
	})
}

func listed(reasons map[string]int) string {
	var words []string
	for reason, count := range reasons {
		words = append(words, fmt.Sprintf("%d %s", count, reason))
	}
	if len(words) == 0 {
		return ""
	}
	slices.Sort(words)
	return ": " + strings.Join(words, ", ")
}

// choose takes number of the cards; there are enough.
func choose(fit []*Card, number int, policy Policy) []*Card {
	order := func(a, b *Card) int { return cmp.Compare(b.MemoryUsed, a.MemoryUsed) }
	if policy == Spread {
		order = func(a, b *Card) int {
			return cmp.Or(cmp.Compare(a.Sharers, b.Sharers), cmp.Compare(a.MemoryUsed, b.MemoryUsed))
		}
	}
	if number > 1 {
		fit = closest(fit, number, policy)
	}
	fit = slices.Clone(fit)
	slices.SortStableFunc(fit, order) // stable: among equals the lowest index
	return fit[:number]
}

// closeness are the ways in which GPUs are close, the closest first. Each returns the group of a GPU, empty for none.
func closeness(policy Policy) []func(Near) string {
	together := func(parts ...string) string {
		if slices.Contains(parts, "") {
			return ""
		}
		return strings.Join(parts, "/")
	}
	numa := []func(Near) string{
		func(n Near) string { return together(n.NUMA, n.Switch) },
		func(n Near) string { return n.NUMA },
	}
	switch policy {
	case NUMA:
		return numa
	case NVLink:
		return append([]func(Near) string{
			func(n Near) string { return together(n.NVLink, n.NUMA, n.Switch) },
			func(n Near) string { return together(n.NVLink, n.NUMA) },
			func(n Near) string { return n.NVLink },
		}, numa...)
	}
	return nil
}

// closest reduces the cards to the closest group that has enough of them. Of several such groups it takes the smallest, so that
// larger ones stay whole.
func closest(fit []*Card, number int, policy Policy) []*Card {
	for _, group := range closeness(policy) {
		members := map[string][]*Card{}
		var names []string // in the order of their first card
		for _, card := range fit {
			name := group(card.Near)
			if name == "" {
				continue
			}
			if members[name] == nil {
				names = append(names, name)
			}
			members[name] = append(members[name], card)
		}
		var best []*Card
		for _, name := range names {
			if m := members[name]; len(m) >= number && (best == nil || len(m) < len(best)) {
				best = m
			}
		}
		if best != nil {
			return best
		}
	}
	return fit
}

// Score rates the choice of Place, given the node as it was before: the mean over the chosen GPUs, from 0 to 100. For binpack it is
// the used part of the memory, for spread the free part of the places.
func (n Node) Score(containers [][]annotation.Share, policy Policy) int64 {
	var sum, count float64
	for _, shares := range containers {
		for _, share := range shares {
			for _, card := range n {
				if card.UUID != share.UUID {
					continue
				}
				count++
				switch {
				case policy == Spread && card.Slots > 0:
					sum += 1 - float64(card.Sharers)/float64(card.Slots)
				case policy == Binpack && card.Memory > 0:
					sum += float64(card.MemoryUsed) / float64(card.Memory)
				}
			}
		}
	}
	if count == 0 {
		return 0
	}
	return int64(math.Round(100 * min(max(sum/count, 0), 1)))
}
