package plugin

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gpufabric.io/drivers/hardware/sysfstest"
	"gpufabric.io/drivers/rdma/exclusive"
	"gpufabric.io/drivers/rdma/inventory"
)

// sharedLinks are those of a node whose RDMA devices are in every network namespace.
type sharedLinks struct{ exclusive.Netlink }

func (sharedLinks) Exclusive() (bool, error) { return false, nil }

// scan runs a scanner on a tree in a bubble of the test.
func scan(t *testing.T, tree *sysfstest.Tree, use func(s *scanner)) {
	ctx, cancel := context.WithCancel(t.Context())
	s := newScanner(inventory.Roots{Sysfs: tree.Sys}, sharedLinks{})
	var running sync.WaitGroup
	running.Go(func() { s.Run(ctx) })
	use(s)
	cancel()
	running.Wait()
}

func TestEventsThatComeTogetherAreOneDiscovery(t *testing.T) {
	tree := sysfstest.New(t)
	tree.AddHCA(sysfstest.HCA{Function: sysfstest.Function{Parent: "pci0000:3a/0000:3a:00.0", Address: "0000:3b:00.0"}})
	synctest.Test(t, func(t *testing.T) {
		scan(t, tree, func(s *scanner) {
			began := time.Now()
			for range 5 {
				s.AskSoon()
				time.Sleep(settle / 10)
			}
			if d := <-s.found; d.err != nil || len(d.devices.HCAs) != 1 || time.Since(began) != settle {
				t.Errorf("after %s: %+v", time.Since(began), d)
			}
			select {
			case d := <-s.found:
				t.Errorf("a second discovery of the same events: %+v", d)
			case <-time.After(time.Hour):
			}
			s.Ask()
			<-s.found
		})
	})
}

func TestScannerRetriesAnUnreadableDeviceLessOften(t *testing.T) {
	tree := sysfstest.New(t)
	device := tree.AddHCA(sysfstest.HCA{Function: sysfstest.Function{Parent: "pci0000:3a/0000:3a:00.0", Address: "0000:3b:00.0"}})
	tree.Write(device+"/ports/1/state", "")
	synctest.Test(t, func(t *testing.T) {
		scan(t, tree, func(s *scanner) {
			s.Ask()
			began := time.Now()
			for i, want := range []time.Duration{0, 1, 3, 7, 15, 25, 35} {
				d := <-s.found
				if at := time.Since(began); at != want*time.Second || d.err == nil && !d.devices.Damaged() {
					t.Fatalf("discovery %d after %s, want %ds: %+v", i, at, want, d)
				}
			}
		})
	})
}
