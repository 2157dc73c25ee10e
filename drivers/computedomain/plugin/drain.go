package plugin

import (
	"context"
	"fmt"

	"gpufabric.io/drivers/hardware/nvml"
	"gpufabric.io/drivers/node/drain"
	"gpufabric.io/drivers/node/observed"
)

// follower follows the node's fabric, and closes NVML while the node's GPUs are drained.
type follower struct {
	reader   *fabricReader
	fabric   *observed.Value[fabric]
	changed  func(fabric)
	holdings *holdings
	// served is closed when the claims of an earlier run are known.
	served <-chan struct{}
}

// run implements the member's use of NVML. It closes NVML as soon as a drain begins: no present claim needs it. It still waits for
// the claims, since the daemon and the jobs that have them have the GPUs open.
func (f *follower) run(ctx context.Context, s *drain.Session) error {
	for {
		if wanted, _ := s.Wanted(); !wanted {
			turn, stop := s.Interrupted(ctx)
			f.reader.follow(turn, f.fabric, f.changed)
			stop()
		}
		if ctx.Err() != nil {
			s.Record(ctx, f.holding())
			return nil
		}
		f.rest()
		select {
		case <-f.served:
		case <-ctx.Done():
			return nil // the values of an earlier run remain
		}
		if f.emptied(ctx, s) {
			return drain.ErrDrained
		}
	}
}

// rest makes new claims be refused. The node's place in the fabric stays the same: a drain does not take the GPUs out of it.
func (f *follower) rest() {
	now := f.fabric.Now()
	if now.problemKind == problemDrained {
		return
	}
	rested := fabric{
		known: true, state: now.state, clique: now.clique, problemKind: problemDrained,
		problem: "the node's GPUs are drained for a reset or another driver, until gpufabric undrain, or until NVIDIA's GPU operator " +
			"has taken back the labels nvidia.com/gpu.deploy that pause its clients",
	}
	if rested.state == "" {
		rested.state = nvml.NoFabric // it was not read since the role started
	}
	f.fabric.Set(rested)
	f.changed(rested)
}

// emptied waits until no claim of a compute domain is left, and reports the claims that it waits for. It returns false when the
// drain was given up, or ctx ended.
func (f *follower) emptied(ctx context.Context, s *drain.Session) bool {
	for {
		_, _, released := f.holdings.channel()
		wanted, unwanted := s.Wanted()
		words := f.holding()
		switch {
		case !wanted || ctx.Err() != nil:
			return false
		case words == "":
			return true
		}
		s.Record(ctx, words)
		select {
		case <-released:
		case <-unwanted:
		case <-ctx.Done():
		}
	}
}

// holding lists the present claims; empty for none.
func (f *follower) holding() string {
	channels, daemons := f.holdings.count()
	if channels+daemons == 0 {
		return ""
	}
	return fmt.Sprintf("%d claims for channels and %d for daemons of compute domains are prepared: delete their pods, or kubectl drain "+
		"the node", channels, daemons)
}
