package plugin

import (
	"context"
	"slices"
	"time"

	"gpufabric.io/drivers/gpu/claims"
)

// fullGPUs removes shared GPUs from the node's ResourceSlices while they are full. The scheduler runs CEL and works out
// capacities for each shared GPU that is published, also for a full one.
//
// A GPU goes once it has been full for a time, and returns with the first share that ends: at most two writes of the node's slice a GPU in
// that time.
type fullGPUs struct {
	kind  *claims.Preparer
	after time.Duration // 0: none goes
}

// Run follows the claims until ctx ends.
func (f *fullGPUs) Run(ctx context.Context) error {
	if f.after == 0 {
		return nil
	}
	since := map[string]time.Time{}
	for {
		hardware, hardwareChanged := f.kind.Watch()
		held, useChanged := f.kind.Use()
		exhausted := hardware.Pool.Exhausted(held)
		for name := range since {
			if !slices.Contains(exhausted, name) {
				delete(since, name)
			}
		}
		var gone []string
		var next <-chan time.Time
		soonest := f.after
		for _, name := range exhausted {
			if since[name].IsZero() {
				since[name] = time.Now()
			}
			if left := f.after - time.Since(since[name]); left > 0 {
				soonest = min(soonest, left)
				next = time.After(soonest)
			} else {
				gone = append(gone, name)
			}
		}
		f.kind.SetFull(gone)
		select {
		case <-next:
		case <-hardwareChanged:
		case <-useChanged:
		case <-ctx.Done():
			return nil
		}
	}
}
