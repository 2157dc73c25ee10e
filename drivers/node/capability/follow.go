package capability

import (
	"context"
	"time"
)

const (
	// VersionInterval is how often the API server's version is read: another one may have other feature gates.
	VersionInterval = 2 * time.Minute
	// GatesInterval is the time between two queries of the gates of one version: an administrator may have switched one on.
	GatesInterval = time.Hour
)

// Follow calls learn at once, when the API server has another version, and every GatesInterval, until ctx ends. learn reports whether
// it has got an answer; without one it is called again after VersionInterval.
func Follow(ctx context.Context, tick <-chan time.Time, version func() (string, error), learn func(context.Context) bool) {
	var last string
	var learnt time.Time
	for {
		now, err := version()
		if learnt.IsZero() || err == nil && now != last || time.Since(learnt) > GatesInterval {
			learnt = time.Time{}
			if learn(ctx) {
				last, learnt = now, time.Now()
			}
		}
		select {
		case <-tick:
		case <-ctx.Done():
			return
		}
	}
}
