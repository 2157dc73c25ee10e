package monitor

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"gpufabric.io/drivers/vgpu/figures"
)

// stuck answers once it is released.
type stuck struct {
	asked   chan struct{}
	release chan struct{}
}

func (s stuck) Figures() (figures.Figures, bool) {
	s.asked <- struct{}{}
	<-s.release
	return figures.Figures{}, false
}

func (stuck) Containers() []Container { return nil }

func TestMonitorIsUnhealthyWhenAScrapeHangs(t *testing.T) {
	source := stuck{asked: make(chan struct{}), release: make(chan struct{})}
	var now atomic.Int64
	now.Store(time.Date(2026, 11, 23, 8, 0, 0, 0, time.UTC).Unix())
	c := New(Options{Source: source, Now: func() time.Time { return time.Unix(now.Load(), 0) }})
	if err := c.Alive(); err != nil {
		t.Errorf("nobody has scraped it: %v", err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		out := make(chan prometheus.Metric, 16)
		c.Collect(out)
	}()
	<-source.asked
	now.Add(int64(longestReading.Seconds()))
	if err := c.Alive(); err != nil {
		t.Errorf("a scrape that takes long: %v", err)
	}
	now.Add(1)
	if err := c.Alive(); err == nil || !strings.Contains(err.Error(), "for 1m1s, where 1m0s is allowed") {
		t.Errorf("a scrape that is stuck: %v", err)
	}
	close(source.release)
	<-ended
	if err := c.Alive(); err != nil {
		t.Errorf("a scrape that ended: %v", err)
	}
}
