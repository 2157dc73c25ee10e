package plugin

import (
	"context"
	"fmt"
	"strings"
	"time"

	"gpufabric.io/drivers/node/drain"
	"gpufabric.io/drivers/vgpu/holdings"
	"gpufabric.io/drivers/vgpu/instances"
)

// drainLook is how often a role in a drain checks whether containers still have shares: neither the book nor the store of instances
// reports an end.
const drainLook = time.Second

// drained makes the role release its GPUs for a drain.
type drained struct {
	session *drain.Session
	table   *table
	book    *holdings.Book
	made    *instances.Manager
}

// run waits for a drain. Then it marks every GPU as unhealthy, so that neither the scheduler nor the kubelet gives it to a pod,
// until the containers with shares have ended (drain.ErrDrained) or the drain is given up.
func (d drained) run(ctx context.Context) error {
	for d.session.Await(ctx, true) {
		d.table.drain(ctx, true)
		for {
			wanted, changed := d.session.Wanted()
			words := d.holding()
			if !wanted {
				break
			}
			if words == "" {
				return drain.ErrDrained
			}
			d.session.Record(ctx, words)
			select {
			case <-changed:
			case <-time.After(drainLook):
			case <-ctx.Done():
				return nil
			}
		}
		d.table.drain(ctx, false)
	}
	return nil
}

// leave records the containers' shares when the role ends: they run on without it.
func (d drained) leave(ctx context.Context) {
	if words := d.holding(); words != "" {
		d.session.Record(ctx, words)
	}
}

// holding lists the containers that have shares; empty for none.
func (d drained) holding() string {
	names, instances := d.book.Names(), d.made.Len()
	if len(names) == 0 && instances == 0 {
		return ""
	}
	words := fmt.Sprintf("%d containers have shares of GPUs", len(names))
	if instances > 0 {
		words += fmt.Sprintf(", and MIG instances of %d exist", instances)
	}
	if len(names) > 0 {
		words += ": " + strings.Join(names[:min(len(names), 5)], "; ")
	}
	return words + " (delete their pods, or kubectl drain the node)"
}
