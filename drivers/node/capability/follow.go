package capability

import (
	"context"
	"time"

	"k8s.io/client-go/util/flowcontrol"
)

const (
	// StateInterval is how often the API server's state is read: a server of another version, or one that was restarted, may have other
	// feature gates.
	StateInterval = 2 * time.Minute
	// GatesInterval is the longest time between two queries of the gates. It serves clients whose connection outlives the server, because
	// it ends at a proxy.
	GatesInterval = time.Hour
	// Some proxies end connections all the time. reconnections is how many new ones in a row lead to a query (the servers of a control
	// plane are restarted one after the other), reconnectionInterval is how often another one does.
	reconnections        = 4
	reconnectionInterval = 10 * time.Minute
)

// Query is the last query of an API server's gates. Its zero value is none. It is not safe for concurrent use.
type Query struct {
	state State
	at    time.Time
	limit flowcontrol.PassiveRateLimiter
}

// Made records a query that an API server of that state has answered.
func (q *Query) Made(state State) {
	q.state, q.at = state, time.Now()
}

// Stale reports whether the gates must be queried again: there was no query, the server has another version or connection than at the last
// one, or that was GatesInterval ago. err is the error of reading the state.
func (q *Query) Stale(now State, err error) bool {
	switch {
	case q.at.IsZero() || time.Since(q.at) > GatesInterval:
		return true
	case err != nil || now == q.state:
		return false
	case now.Version != q.state.Version:
		return true
	}
	if q.limit == nil {
		q.limit = flowcontrol.NewTokenBucketPassiveRateLimiter(float32(1/reconnectionInterval.Seconds()), reconnections)
	}
	return q.limit.TryAccept()
}

// Follow calls learn at once, and whenever the last query is stale, until ctx ends. learn reports whether it has got an answer; without
// one it is called again at the next tick, after StateInterval.
func Follow(ctx context.Context, tick <-chan time.Time, state func(context.Context) (State, error), learn func(context.Context) bool) {
	var last Query
	for {
		now, err := state(ctx)
		if last.Stale(now, err) {
			if learn(ctx) {
				last.Made(now)
			} else {
				last.at = time.Time{}
			}
		}
		select {
		case <-tick:
		case <-ctx.Done():
			return
		}
	}
}
