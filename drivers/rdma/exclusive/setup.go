package exclusive

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// Setup is how the node's interfaces of pools must be set up. The zero value leaves them as they are.
type Setup struct {
	Up  bool
	MTU int // in bytes; 0: as it is
}

// Setter sets up interfaces of the node, each once. Later changes by an administrator stay, until the interface or its hardware
// appears again.
type Setter struct {
	setup Setup
	want  chan []string // holds the newest names
	// changed holds a token when failures appeared or disappeared.
	changed chan struct{}

	mu       sync.Mutex
	failures map[string]string // by interface
}

// NewSetter makes a setter; Run does its work.
func NewSetter(setup Setup) *Setter {
	return &Setter{setup: setup, want: make(chan []string, 1), changed: make(chan struct{}, 1)}
}

// Changed has a token when Failure has changed.
func (s *Setter) Changed() <-chan struct{} { return s.changed }

// Set replaces the interfaces. It does not wait: bringing an interface up involves its firmware, which may take seconds.
func (s *Setter) Set(names []string) {
	if s.setup == (Setup{}) {
		return
	}
	select {
	case <-s.want: // Run has not processed these yet.
	default:
	}
	s.want <- names
}

// Failure reports why an interface is not set up; empty: it is, or was not tried yet.
func (s *Setter) Failure(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failures[name]
}

// Run sets up interfaces until ctx ends.
func (s *Setter) Run(ctx context.Context) {
	done := make(map[string]int) // the index of each interface that was set up, by name
	for {
		select {
		case <-ctx.Done():
			return
		case names := <-s.want:
			failures := make(map[string]string)
			for _, name := range names {
				if err := s.setUp(name, done); err != nil {
					failures[name] = err.Error()
				}
			}
			maps.DeleteFunc(done, func(name string, _ int) bool { return !slices.Contains(names, name) })
			s.mu.Lock()
			changed := !maps.Equal(failures, s.failures)
			s.failures = failures
			s.mu.Unlock()
			if changed {
				for name, failure := range failures {
					klog.FromContext(ctx).Error(nil, "An interface is not set up", "interface", name, "reason", failure)
				}
				select {
				case s.changed <- struct{}{}:
				default: // the last change has not been read yet
				}
			}
		}
	}
}

func (s *Setter) setUp(name string, done map[string]int) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("look for the network interface %s: %w", name, err)
	}
	a := link.Attrs()
	if index, before := done[name]; before && index == a.Index {
		return nil
	}
	if s.setup.MTU > 0 && a.MTU != s.setup.MTU {
		if err := netlink.LinkSetMTU(link, s.setup.MTU); err != nil {
			return fmt.Errorf("set the MTU of %s from %d to %d bytes: %w", name, a.MTU, s.setup.MTU, err)
		}
	}
	if s.setup.Up && a.Flags&unix.IFF_UP == 0 {
		if err := netlink.LinkSetUp(link); err != nil {
			return fmt.Errorf("bring the network interface %s up: %w", name, err)
		}
	}
	done[name] = a.Index
	return nil
}
