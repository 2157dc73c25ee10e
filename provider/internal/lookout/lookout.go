// Package lookout finds out, during a wait for an object, why its controller does not process it.
package lookout

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/terraform-plugin-log/tflog"

	"gpufabric.io/provider/internal/cluster"
	"gpufabric.io/provider/internal/release"
)

// A long wait is examined after every, and then at the same interval. It is given up when no controller has been installed for
// giveUpAfter: the object will never be processed, and waiting for the whole time-out would only hide that.
const (
	every       = 10 * time.Second
	giveUpAfter = time.Minute
)

// ErrNoController is the cause of a context that a Lookout ended.
var ErrNoController = errors.New("a controller for the object is not installed")

// Lookout examines the controller at intervals.
type Lookout struct {
	stop  context.CancelCauseFunc
	group sync.WaitGroup
	mu    sync.Mutex
	last  string
}

// Keep starts a Lookout, which End stops. The context that it returns ends early, with ErrNoController as its cause, where waiting is
// useless. what names the object for the log.
func Keep(ctx context.Context, client *cluster.Client, what string) (context.Context, *Lookout) {
	l := &Lookout{}
	ctx, l.stop = context.WithCancelCause(ctx)
	l.group.Go(func() { l.run(ctx, client, what) })
	return ctx, l
}

func (l *Lookout) run(ctx context.Context, client *cluster.Client, what string) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	missing := time.Duration(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		trouble, absent := release.ControllerTrouble(ctx, client)
		if ctx.Err() != nil {
			return // the result is not complete
		}
		l.mu.Lock()
		l.last = trouble
		l.mu.Unlock()
		Progress(ctx, what, trouble)
		if !absent {
			missing = 0
			continue
		}
		if missing += every; missing >= giveUpAfter {
			tflog.Warn(ctx, what+": gave up waiting", map[string]any{"because": trouble})
			l.stop(ErrNoController)
		}
	}
}

// End stops the Lookout and returns its last result: why the controller does not work, or nothing.
func (l *Lookout) End() string {
	l.stop(nil)
	l.group.Wait()
	return l.last
}
