package plugin

import (
	"context"
	"path/filepath"
	"time"

	"github.com/vishvananda/netlink"
	"k8s.io/klog/v2"
)

// settle is how long to wait after the first of several events: a driver that loads makes many devices.
const settle = 200 * time.Millisecond

// watchDevices asks for a discovery when device nodes of RDMA devices come and go.
func (p *plugin) watchDevices(ctx context.Context) {
	const directory = "infiniband"
	// /dev/infiniband comes with the first RDMA device; it is watched as soon as its parent, which is watched too, has it.
	came := p.Files.Entries(ctx, p.Dev().Path, directory)
	changed := p.Files.Entries(ctx, filepath.Join(p.Dev().Path, directory))
	for {
		select {
		case <-ctx.Done():
			return
		case <-came:
		case <-changed:
		}
		p.askSoon()
	}
}

// watchLinks has the ports read again when a link changes, and asks for a discovery when network devices come and go.
func (p *plugin) watchLinks(ctx context.Context) error {
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
			return nil
		}
		p.takeLinks(ctx, updates)
		close(done)
		wait(ctx, settle)
	}
	return nil
}

// takeLinks acts on each change of a link until updates is closed, which is when rtnetlink ended, or ctx ends.
func (p *plugin) takeLinks(ctx context.Context, updates <-chan netlink.LinkUpdate) {
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
			p.ports.Nudge()
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
			p.askSoon()
		}
	}
}

// rtmDelLink is RTM_DELLINK.
const rtmDelLink = 17

// hardware reports whether a link may be an HCA's. Every pod's veth comes and goes on the same socket.
func hardware(link netlink.Link) bool {
	return link.Type() == "device" || link.Type() == "ipoib"
}

// askSoon asks for a discovery after a moment, in which the events that belong together come.
func (p *plugin) askSoon() {
	if p.asking.CompareAndSwap(false, true) {
		time.AfterFunc(settle, func() {
			p.asking.Store(false)
			p.ask()
		})
	}
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
