package plugin

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"gpufabric.io/drivers/rdma/health"
	"gpufabric.io/drivers/rdma/inventory"
)

// network makes a network namespace with only one link, lo, which the test changes.
func network(t *testing.T) (netns.NsHandle, *netlink.Handle) {
	t.Helper()
	made := make(chan netns.NsHandle)
	failed := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // Never unlocked: the thread ends with the goroutine.
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			failed <- err
			return
		}
		handle, err := netns.Get()
		if err != nil {
			failed <- err
			return
		}
		made <- handle
	}()
	select {
	case err := <-failed:
		if errors.Is(err, unix.EPERM) {
			t.Skip("skipped: making a network namespace needs root")
		}
		t.Fatal(err)
	case handle := <-made:
		links, err := netlink.NewHandleAt(handle)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { links.Close(); _ = handle.Close() })
		return handle, links
	}
	return 0, nil
}

// The kernel reports a link through rtnetlink; the devices are then discovered again, long before the periodic discovery.
func TestLinksTriggerADiscovery(t *testing.T) {
	namespace, links := network(t)
	scanner := newScanner(inventory.Roots{}, nil)
	e := &events{ports: health.New(t.TempDir(), clock.RealClock{}), scanner: scanner}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // Never unlocked: the thread ends with the goroutine.
		if err := netns.Set(namespace); err != nil {
			ended <- err
			return
		}
		e.watchLinks(ctx)
		ended <- nil
	}()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	lo, err := links.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	// There is no event for a listening socket, so the link goes up and down until that is noticed.
	flap := time.NewTicker(20 * time.Millisecond)
	defer flap.Stop()
	patience := time.After(time.Minute)
	for up := true; ; up = !up {
		change := links.LinkSetDown
		if up {
			change = links.LinkSetUp
		}
		if err := change(lo); err != nil {
			t.Fatal(err)
		}
		select {
		case <-scanner.requested:
			return
		case <-flap.C:
		case <-patience:
			t.Fatal("no discovery was asked for")
		}
	}
}
