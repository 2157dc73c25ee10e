package draplugin

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"gpufabric.io/drivers/node/claimstate"
)

// ReleaseSocket is where a plugin takes orders to release claims, in its state directory, which only root can enter.
const ReleaseSocket = "release.sock"

// orderTimeout bounds one order.
const orderTimeout = 30 * time.Second

// acceptPause is the time between two connections where the first failed.
const acceptPause = 200 * time.Millisecond

// The orders, each with a claim: its UID, or NAMESPACE/NAME.
const (
	orderRelease = "release"
	orderForce   = "force"
)

// takeOrders serves ReleaseSocket until ctx ends. Without the socket the plugin does all else.
func (p *Plugin) takeOrders(ctx context.Context) {
	listener, err := p.listenForOrders(ctx)
	if err != nil {
		klog.FromContext(ctx).Error(err, "gpufabric release is not served")
		return
	}
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	p.serveOrders(ctx, listener)
}

// serveOrders takes orders from a listener, one at a time, until ctx ends. A connection that fails, for want of a file descriptor as a
// rule, is not the end.
func (p *Plugin) serveOrders(ctx context.Context, listener net.Listener) {
	for failed := false; ctx.Err() == nil; {
		conn, err := listener.Accept()
		if err == nil {
			failed = false
			p.obey(ctx, conn)
			continue
		}
		if !failed && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "gpufabric release is not served at the moment", "tryingAgainEvery", acceptPause)
		}
		failed = true
		select {
		case <-time.After(acceptPause):
		case <-ctx.Done():
		}
	}
}

func (p *Plugin) listenForOrders(ctx context.Context) (net.Listener, error) {
	path := filepath.Join(p.config.Node.StateDir, ReleaseSocket)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) { // one that a killed run left
		return nil, fmt.Errorf("remove an old socket: %w", err)
	}
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen for orders: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("keep the socket to root: %w", err), listener.Close())
	}
	return listener, nil
}

// obey executes one order and answers in one line: "released: ", "used: " or "failed: " and a sentence.
func (p *Plugin) obey(ctx context.Context, conn net.Conn) {
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(orderTimeout))
	ctx, cancel := context.WithTimeout(ctx, orderTimeout)
	defer cancel()
	line, err := bufio.NewReader(io.LimitReader(conn, 1024)).ReadString('\n')
	if err != nil {
		return
	}
	order, claim, _ := strings.Cut(strings.TrimSpace(line), " ")
	answer := p.execute(ctx, order, claim)
	_, _ = fmt.Fprintln(conn, strings.ReplaceAll(answer, "\n", "; "))
}

func (p *Plugin) execute(ctx context.Context, order, claim string) string {
	if order != orderRelease && order != orderForce {
		return fmt.Sprintf("failed: order %.40q is not known: %s and %s are", order, orderRelease, orderForce)
	}
	records := slices.DeleteFunc(p.state.List(), func(r claimstate.Record) bool {
		return string(r.UID) != claim && r.Namespace+"/"+r.Name != claim
	})
	switch len(records) {
	case 0:
		return fmt.Sprintf("failed: %s holds no claim %.100q", p.config.Driver, claim)
	case 1:
	default: // one was made again under the other's name
		var uids []string
		for _, r := range records {
			uids = append(uids, string(r.UID))
		}
		return fmt.Sprintf("failed: %s holds %d claims %.100q: give the UID of one of them (%s)", p.config.Driver, len(records), claim,
			strings.Join(uids, ", "))
	}
	record := records[0]
	r := p.releaseOf(record.UID)
	if r == nil {
		gone, err := p.gone(ctx, record)
		if err != nil || !gone {
			return fmt.Sprintf("failed: claim %s/%s of %s is allocated to devices of this node (%v): delete its pods first", record.Namespace,
				record.Name, p.config.Driver, errors.Join(errors.New("it is not being released"), err))
		}
		r = &release{cause: cause{gone: true}}
	}
	why := r.cause
	why.forced = order == orderForce
	err := p.release(ctx, record.UID, why, 0)
	var used *stillUsed
	switch {
	case errors.As(err, &used):
		return "used: " + err.Error()
	case err != nil:
		return "failed: " + err.Error()
	}
	if why.forced {
		p.report.node("DeviceReleaseForced", fmt.Sprintf("claim %s/%s (UID %s) was released by an administrator, in spite of %v",
			record.Namespace, record.Name, record.UID, r.users))
	}
	return fmt.Sprintf("released: claim %s/%s of %s", record.Namespace, record.Name, p.config.Driver)
}
