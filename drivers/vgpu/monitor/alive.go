package monitor

import (
	"fmt"
	"sync"
	"time"
)

// longestReading is far longer than reading the files of a node's containers takes, and than Prometheus waits for a scrape.
const longestReading = time.Minute

// readings are the scrapes that have begun and not ended.
type readings struct {
	mu    sync.Mutex
	last  int
	began map[int]time.Time
}

// begin records the start of a reading, and returns a function for its end.
func (r *readings) begin(now time.Time) (end func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.began == nil {
		r.began = map[int]time.Time{}
	}
	r.last++
	mine := r.last
	r.began[mine] = now
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.began, mine)
	}
}

// Alive fails while a scrape hangs, in a tenant's file or in a request to vgpu-plugin: a restart ends it.
func (c *Collector) Alive() error {
	now := c.options.Now()
	c.running.mu.Lock()
	defer c.running.mu.Unlock()
	for _, began := range c.running.began {
		if took := now.Sub(began); took > longestReading {
			return fmt.Errorf("a scrape has been reading containers' files for %s, where %s is allowed", took.Round(time.Second), longestReading)
		}
	}
	return nil
}
