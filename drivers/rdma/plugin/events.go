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

// events asks for discoveries, and has ports read at once, when the kernel says that something changed.
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

// watchDevices asks for a discovery when device nodes of RDMA devices come and go.
func (e *events) watchDevices(ctx context.Context) {
	const directory = "infiniband"
	// /dev/infiniband comes with the first RDMA device; it is watched as soon as its parent, which is watched too, has it.
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

// watchLinks has the ports read again when a link changes, and asks for a discovery when network devices come and go.
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
			log.Error(err, "rtnetlink cannot be listened to; ports are read every 400 ms and no sooner")
			return
		}
		e.takeLinks(ctx, updates)
		close(done)
		wait(ctx, settle)
	}
}

// takeLinks acts on each change of a link until updates is closed, which is when rtnetlink ended, or ctx ends.
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
				continue // its state changed, which the ports' reading sees
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

// hardware reports whether a link may be an HCA's. Every pod's veth comes and goes on the same socket.
func hardware(link netlink.Link) bool {
	return link.Type() == "device" || link.Type() == "ipoib"
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
