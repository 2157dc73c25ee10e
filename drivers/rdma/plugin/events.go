package plugin

import (
	"context"
	"path/filepath"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/node/filewatch"
	"gpufabric.io/drivers/rdma/health"
)

// events requests discoveries, and immediate readings of ports, when the kernel reports a change.
type events struct {
	files   *filewatch.Watcher
	dev     string // the node's device nodes
	ports   *health.Watcher
	scanner *scanner
}

// Run listens until ctx ends.
func (e *events) Run(ctx context.Context) {
	var both sync.WaitGroup
	both.Go(func() { e.watchDevices(ctx) })
	both.Go(func() { e.watchLinks(ctx) })
	both.Wait()
}

// watchDevices requests a discovery when device nodes of RDMA devices appear or disappear.
func (e *events) watchDevices(ctx context.Context) {
	const directory = "infiniband"
	// /dev/infiniband appears with the first RDMA device. It is watched as soon as its parent has it; the parent is watched too.
	came := e.files.Entries(ctx, e.dev, directory)
	changed := e.files.Entries(ctx, filepath.Join(e.dev, directory))
	for {
		select {
		case <-ctx.Done():
			return
		case <-came:
		case <-changed:
		}
		e.scanner.AskSoon()
	}
}

// watchLinks makes the ports be read again when a link changes, and requests a discovery when network devices appear or disappear.
func (e *events) watchLinks(ctx context.Context) {
	log := klog.FromContext(ctx)
	for ctx.Err() == nil {
		updates := make(chan netlink.LinkUpdate)
		done := make(chan struct{})
		err := netlink.LinkSubscribeWithOptions(updates, done, netlink.LinkSubscribeOptions{
			ErrorCallback: func(err error) { log.V(2).Info("rtnetlink ended; subscribing again", "err", err) },
		})
		if err != nil {
			close(done)
			log.Error(err, "Could not listen to rtnetlink; ports are only read every 400 ms")
			return
		}
		e.takeLinks(ctx, updates)
		close(done)
		wait(ctx, settle)
	}
}

// takeLinks handles each change of a link until updates is closed, which is when rtnetlink ended, or ctx ends.
func (e *events) takeLinks(ctx context.Context, updates <-chan netlink.LinkUpdate) {
	known := make(map[int]string) // interface names by index
	for {
		select {
		case <-ctx.Done():
			return
		case update, more := <-updates:
			if !more {
				return
			}
			if !hardware(update.Link) {
				continue
			}
			e.ports.Nudge()
			index, name := int(update.Index), update.Link.Attrs().Name
			deleted := update.Header.Type == rtmDelLink
			if !deleted && known[index] == name {
				continue // a changed state, which the reading of ports detects
			}
			if deleted {
				delete(known, index)
			} else {
				known[index] = name
			}
			e.scanner.AskSoon()
		}
	}
}

// rtmDelLink is RTM_DELLINK.
const rtmDelLink = 17

// hardware reports whether a link may be an HCA's. The veths of all pods are reported on the same socket.
func hardware(link netlink.Link) bool {
	return link.Type() == "device" || link.Type() == "ipoib"
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
