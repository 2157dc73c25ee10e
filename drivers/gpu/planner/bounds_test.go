package planner

import (
	"slices"
	"testing"
)

// all are the profiles of an H100 of 80 GB and the whole GPU.
func allShapes() *Model {
	return &Model{Compute: 7, Shapes: []Shape{
		{Name: "1g.10gb", Compute: 1, Size: 1, Starts: []int{0, 1, 2, 3, 4, 5, 6}, Max: 7},
		{Name: "1g.10gb+me", Compute: 1, Size: 1, Starts: []int{0, 1, 2, 3, 4, 5, 6}, Max: 1},
		{Name: "1g.20gb", Compute: 1, Size: 2, Starts: []int{0, 2, 4, 6}, Max: 4},
		{Name: "2g.20gb", Compute: 2, Size: 2, Starts: []int{0, 2, 4}, Max: 3},
		{Name: "3g.40gb", Compute: 3, Size: 4, Starts: []int{0, 4}, Max: 2},
		{Name: "4g.40gb", Compute: 4, Size: 4, Starts: []int{0}, Max: 1},
		{Name: "7g.80gb", Compute: 7, Size: 8, Starts: []int{0}, Max: 1},
		{Name: "whole", Compute: 7, Size: 8, Starts: []int{0}},
	}}
}

func TestPlannerSearchesAllLayoutsWhenEveryProfileIsAShape(t *testing.T) {
	p, m := New(Options{}), allShapes()
	bounded := p.layoutsBeside(m, m.name(), nil)
	if !slices.ContainsFunc(bounded, func(l layout) bool { return l.count[7] == 1 }) || len(bounded) < 50 {
		t.Errorf("%d layouts, without the last shape: the search ended before its end", len(bounded))
	}
}

func TestPlannerSearchEndsWhenANodeReportsImpossiblePlacements(t *testing.T) {
	m := &Model{Compute: 16}
	starts := make([]int, 16)
	for i := range starts {
		starts[i] = i
	}
	for range 16 {
		m.Shapes = append(m.Shapes, Shape{Name: "1g", Compute: 1, Size: 1, Starts: starts})
	}
	p := New(Options{})
	p.layoutsBeside(m, m.name(), nil)
	for busy := range maxLayouts {
		p.layouts[string(rune(busy))] = nil
	}
	p.layoutsBeside(m, m.name(), []Device{{Shape: 1, Start: 1}})
	if len(p.layouts) > maxLayouts {
		t.Errorf("%d sets of devices are remembered, at most %d may be", len(p.layouts), maxLayouts)
	}
}
