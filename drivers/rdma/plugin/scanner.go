package plugin

import (
	"context"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"gpufabric.io/drivers/rdma/exclusive"
	"gpufabric.io/drivers/rdma/inventory"
)

const (
	// defaultRescan is how often devices are discovered without an event, unless a file sets it.
	defaultRescan = 60 * time.Second
	// The pauses between discoveries where something could not be read: the sysfs tree may not be mounted yet, or a driver may still
	// be loading.
	firstRetry, lastRetry = time.Second, 10 * time.Second
	// slowDiscovery is when to report a discovery that does not end: a read of sysfs hangs with the firmware.
	slowDiscovery = 10 * time.Second
	// settle is how long to wait after the first of several events: a driver that loads makes many devices.
	settle = 200 * time.Millisecond
)

// scanner discovers the node's RDMA devices on request, and again after a while where something could not be read.
type scanner struct {
	roots     inventory.Roots
	links     exclusive.Links
	found     chan discovery
	requested chan struct{} // holds a token while there is a request
	soon      atomic.Bool   // a request will follow
}

// discovery is the result of one discovery.
type discovery struct {
	devices   *inventory.Inventory
	exclusive bool // the kernel's RDMA subsystem is in exclusive mode
	err       error
}

func newScanner(roots inventory.Roots, links exclusive.Links) *scanner {
	return &scanner{roots: roots, links: links, found: make(chan discovery), requested: make(chan struct{}, 1)}
}

// Ask requests a discovery. Any goroutine may call it.
func (s *scanner) Ask() {
	select {
	case s.requested <- struct{}{}:
	default: // One is already requested.
	}
}

// AskSoon requests a discovery after a moment, so that related events come first. Any goroutine may call it.
func (s *scanner) AskSoon() {
	if s.soon.CompareAndSwap(false, true) {
		time.AfterFunc(settle, func() {
			s.soon.Store(false)
			s.Ask()
		})
	}
}

// Run discovers until ctx ends. It has a goroutine of its own, since a read may hang.
func (s *scanner) Run(ctx context.Context) {
	var again <-chan time.Time
	pause := firstRetry
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.requested:
		case <-again:
		}
		slow := time.AfterFunc(slowDiscovery, func() {
			klog.FromContext(ctx).Error(nil, "Discovery hangs in a read; devices found before stay", "after", slowDiscovery)
		})
		devices, err := inventory.Discover(ctx, s.roots)
		slow.Stop()
		if again = nil; err != nil || devices.Damaged() {
			again = time.After(pause)
			pause = min(2*pause, lastRetry)
		} else {
			pause = firstRetry
		}
		exclusively, modeErr := s.links.Exclusive()
		// A kernel without RDMA has no mode.
		send(ctx, s.found, discovery{devices, exclusively && modeErr == nil, err})
	}
}
