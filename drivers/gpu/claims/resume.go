package claims

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/gpu/sharing"
	"gpufabric.io/drivers/node/claimstate"
)

// ResumeMPS starts the control daemons of recorded claims again, which ended with the plugin's last run or with the node's. It ends
// those of claims that are gone. records returns the existing claims; claims may change during the call.
func (k *Preparer) ResumeMPS(ctx context.Context, records func() []claimstate.Record) {
	at := sharing.Now() // the time before the claims are read, so that a later claim does not count as gone
	existing := records()
	uids := make([]types.UID, 0, len(existing)+len(k.aside))
	for _, record := range existing {
		uids = append(uids, record.UID)
	}
	uids = append(uids, k.aside...)
	var claims sync.WaitGroup
	defer claims.Wait()
	// This runs beside the start of the daemons, since either may wait for a keeper.
	claims.Go(func() {
		if err := k.options.MPS.Retain(ctx, at, uids); err != nil && ctx.Err() == nil {
			k.options.Events.Report("MPSNotEnded", fmt.Sprintf("MPS control daemons of claims that are gone: %v", err))
		}
	})
	// A claim whose daemon cannot start must not delay the others.
	for _, record := range existing {
		kept, err := decode(record)
		if err != nil || kept.MPS == nil || len(kept.MPS.Devices) == 0 {
			continue
		}
		resume, done := k.resuming.begin(ctx, record.UID)
		if resume == nil {
			continue
		}
		claims.Go(func() {
			defer done()
			if err := k.options.MPS.Resume(resume, record.UID, *kept.MPS); err != nil && resume.Err() == nil {
				k.options.Events.Report("MPSNotStarted", fmt.Sprintf("claim %s/%s: %v", record.Namespace, record.Name, err))
			}
		})
	}
	k.resuming.close()
}

// resumes are the claims whose daemons are being started again. The zero value is ready to use.
type resumes struct {
	mu      sync.Mutex
	running map[types.UID]resume
	ended   map[types.UID]bool
	closed  bool // there are no further calls of begin
}

type resume struct {
	cancel context.CancelFunc
	over   chan struct{}
}

// begin returns the context for starting a claim's daemon again, and a function that reports the end of that start. It returns nil
// where the claim has ended already.
func (r *resumes) begin(ctx context.Context, claim types.UID) (resuming context.Context, done func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended[claim] {
		return nil, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	one := resume{cancel: cancel, over: make(chan struct{})}
	if r.running == nil {
		r.running = map[types.UID]resume{}
	}
	r.running[claim] = one
	return ctx, func() {
		cancel()
		close(one.over)
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.running, claim)
	}
}

// end waits for a start of the claim's daemon in progress, and prevents further starts.
func (r *resumes) end(claim types.UID) {
	r.mu.Lock()
	one, running := r.running[claim]
	if r.ended == nil {
		r.ended = map[types.UID]bool{}
	}
	if !r.closed {
		r.ended[claim] = true
	}
	r.mu.Unlock()
	if running {
		one.cancel()
		<-one.over
	}
}

// close clears the list of ended claims: there are no calls of begin after it.
func (r *resumes) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	clear(r.ended)
}
