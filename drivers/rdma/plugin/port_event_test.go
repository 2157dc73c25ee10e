package plugin

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"

	"k8s.io/utils/clock"

	"gpufabric.io/drivers/hardware/driver"
	"gpufabric.io/drivers/hardware/sysfstest"
	"gpufabric.io/drivers/hardware/uverbs"
	"gpufabric.io/drivers/rdma/health"
	"gpufabric.io/drivers/rdma/inventory"
)

// eventSource is an HCA whose events the test sends, until ctx ends.
type eventSource struct {
	ctx    context.Context
	events chan uverbs.Event
}

func (h eventSource) Next() (uverbs.Event, error) {
	select {
	case e := <-h.events:
		return e, nil
	case <-h.ctx.Done():
		return uverbs.Event{}, h.ctx.Err()
	}
}

func (eventSource) Close() error { return nil }

// The bubble's clock does not advance while the test waits, so no periodic reading happens: only the event makes the ports be read.
func TestPortEventTriggersAReading(t *testing.T) {
	tree := sysfstest.New(t)
	first := tree.AddHCA(sysfstest.HCA{Function: sysfstest.Function{Parent: "pci0000:3a/0000:3a:00.0", Address: "0000:3b:00.0"}})
	tree.AddHCA(sysfstest.HCA{Function: sysfstest.Function{Parent: "pci0000:5d/0000:5d:00.0", Address: "0000:5e:00.0"}})
	devices, err := inventory.Discover(t.Context(), inventory.Roots{Sysfs: tree.Sys})
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		h := eventSource{ctx, make(chan uverbs.Event)}
		ports := health.New(tree.Sys, clock.RealClock{})
		open := func(path, driver string) (VerbsDevice, error) {
			if filepath.Base(path) != "uverbs0" || driver != "mlx5_core" {
				return nil, errors.New("operation not permitted")
			}
			return h, nil
		}
		nodes := inventory.DeviceNodes{Dev: driver.Here(tree.Dev), Sysfs: tree.Sys}
		verbs := newVerbsEvents(nodes, open, ports, newScanner(inventory.Roots{}, nil))
		verbs.Set(devices)
		ports.Set(watchedPorts(devices, nodes))
		var running sync.WaitGroup
		running.Go(func() { verbs.Run(ctx) })
		running.Go(func() { ports.Run(ctx) })
		phase := func() health.Phase {
			synctest.Wait() // Every requested reading is over.
			return ports.State(health.Key{Device: "mlx5_0", Port: 1}).Phase
		}
		if got := phase(); got != health.Up {
			t.Fatalf("the port is %s, want Up", got)
		}
		tree.Write(first+"/ports/1/state", "1: DOWN")
		if got := phase(); got != health.Up {
			t.Fatalf("the port is %s before the event, want Up: nothing has it read", got)
		}
		h.events <- uverbs.Event{Type: uverbs.PortError, Port: 1}
		if got := phase(); got != health.Failing { // One bad reading alone is not enough.
			t.Errorf("the port is %s, want Failing: its event was not heard", got)
		}
		cancel()
		running.Wait()
	})
}
