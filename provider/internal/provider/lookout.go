package provider

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/terraform-plugin-log/tflog"

	"gpufabric.io/provider/internal/cluster"
	"gpufabric.io/provider/internal/release"
)

// A long wait is examined after lookoutEvery, and then at the same interval. It is given up when no controller has been installed
// for giveUpAfter: nobody will ever process the object, and waiting for the whole time-out would only hide that.
const (
	lookoutEvery = 10 * time.Second
	giveUpAfter  = time.Minute
)

// errNobody is the cause of a context that a lookout ended.
var errNobody = errors.New("no controller is installed that would look at the object")

// lookout finds out, during a wait for an object, why nobody processes it.
type lookout struct {
	stop  context.CancelCauseFunc
	group sync.WaitGroup
	mu    sync.Mutex
	said  string
}

// keepLookout starts one; the context that it returns ends early where waiting is useless. what names the object for the log.
func keepLookout(ctx context.Context, client *cluster.Client, what string) (context.Context, *lookout) {
	l := &lookout{}
	ctx, l.stop = context.WithCancelCause(ctx)
	l.group.Go(func() { l.run(ctx, client, what) })
	return ctx, l
}

func (l *lookout) run(ctx context.Context, client *cluster.Client, what string) {
	ticker := time.NewTicker(lookoutEvery)
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
		l.said = trouble
		l.mu.Unlock()
		progress(ctx, what, trouble)
		if !absent {
			missing = 0
			continue
		}
		if missing += lookoutEvery; missing >= giveUpAfter {
			tflog.Warn(ctx, what+": gave up waiting", map[string]any{"because": trouble})
			l.stop(errNobody)
		}
	}
}

// end stops the lookout and returns its last result.
func (l *lookout) end() string {
	l.stop(nil)
	l.group.Wait()
	return l.said
}
