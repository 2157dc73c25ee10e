package planner_test

import (
	"slices"
	"testing"
	"time"

	"gpufabric.io/drivers/gpu/planner"
)

func TestShortagesNameInstancesInTheWayWhenFreeSlicesSuffice(t *testing.T) {
	small := func(starts ...int) (out []planner.Device) {
		for _, at := range starts {
			out = append(out, planner.Device{Shape: 0, Start: at, Busy: true})
		}
		return out
	}
	s := planner.State{Now: now(), GPUs: gpus(h100(), 3), Limits: make([]planner.Limits, 4),
		Waiting: slices.Concat(waiting("a", 2, 2, time.Hour), waiting("a", 0, 1, time.Hour))}
	s.GPUs[0].Devices = append(small(1, 5, 6), planner.Device{Shape: 0, Start: 0}) // 4 slices are free, in both halves one is in use
	s.GPUs[1].Devices = small(0, 1, 2, 4)                                          // 3 are free
	s.GPUs[2].Devices = []planner.Device{{Shape: 2, Busy: true}, {Shape: 2, Start: 4, Busy: true}}
	got := planner.Shortages(s)
	if len(got) != 1 || got[0].Shape != 2 || got[0].Waiting != 2 || got[0].GPUs != 2 || got[0].Free != 4+3+1 {
		t.Fatalf("%+v", got)
	}
	want := []planner.Relief{{GPU: id(0), Start: 0, Devices: small(1)}, {GPU: id(1), Start: 4, Devices: small(4)},
		{GPU: id(2), Start: 0, Devices: []planner.Device{{Shape: 2, Busy: true}}}}
	for i, r := range got[0].Reliefs {
		if r.GPU != want[i].GPU || r.Start != want[i].Start || !slices.Equal(r.Devices, want[i].Devices) {
			t.Errorf("relief %d is %+v, want %+v", i, r, want[i])
		}
	}
	s.GPUs[1].Devices = small(0, 1, 2) // a cut makes room
	if got := planner.Shortages(s); len(got) > 0 {
		t.Errorf("%+v where a cut makes room", got)
	}
	s.GPUs, s.Waiting = nil, append(s.Waiting, planner.Waiting{Shape: 9})
	if got := planner.Shortages(s); len(got) != 2 || len(got[0].Reliefs) > 0 {
		t.Errorf("%+v without GPUs", got)
	}
}
