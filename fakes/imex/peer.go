package imex

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"
)

// message is sent between daemons, one JSON object per line. The caller sends it at once and then with every heartbeat, and
// the called daemon answers each with its own.
type message struct {
	Version  string `json:"version"`
	NodesMap string `json:"nodesMap"`
	HostName string `json:"hostName"`
	State    State  `json:"state"`
	// Connections is the sender's view of its own connections, in the order of the list of nodes.
	Connections []Connection `json:"connections"`
	// Identity, see Options.Identity.
	Identity string `json:"identity,omitempty"`
}

// peer is one node of the list, this machine included (which has no connection to make).
type peer struct {
	daemon *Daemon
	index  int
	host   string

	// The daemon's mutex guards the fields below.
	addr    netip.Addr
	status  Connection
	lostAt  time.Time
	changed bool
	last    message // its last message
	refused string  // why it is not the peer that it should be
	stop    context.CancelFunc
}

// setAddress sets the first address that was found. A change ends the connection to the old one.
func (p *peer) setAddress(addrs []netip.Addr) {
	p.daemon.mu.Lock()
	defer p.daemon.mu.Unlock()
	var a netip.Addr
	if len(addrs) > 0 {
		a = addrs[0]
	}
	if a == p.addr {
		return
	}
	p.addr = a
	if p.stop != nil {
		p.stop()
	}
}

func (p *peer) address() (netip.Addr, bool) {
	p.daemon.mu.Lock()
	defer p.daemon.mu.Unlock()
	return p.addr, p.index == p.daemon.self
}

func (p *peer) setStatus(s Connection) {
	d := p.daemon
	d.mu.Lock()
	before := p.status
	if s == Recovering && before == NeverConnected {
		s = NeverConnected
	}
	if s == Recovering && before == Disconnected {
		s = Disconnected
	}
	if s != before {
		p.status, p.changed = s, before != NeverConnected
		if s == Recovering {
			p.lostAt = time.Now()
		}
	}
	if p.status == Recovering && time.Since(p.lostAt) >= d.config.Grace {
		p.status = Disconnected
	}
	now := p.status
	d.mu.Unlock()
	if now != before {
		d.options.Log.Info("connection", "peer", p.host, "status", now)
	}
}

// run keeps a connection to the peer until ctx ends.
func (p *peer) run(ctx context.Context) {
	beat := p.daemon.options.Heartbeat
	for ctx.Err() == nil {
		addr, self := p.address()
		switch {
		case self:
			p.setStatus(Connected)
		case addr.IsValid() && !p.cut(addr):
			p.talk(ctx, addr)
			p.setStatus(Recovering)
		default:
			p.setStatus(Recovering)
		}
		select {
		case <-ctx.Done():
		case <-time.After(beat / 2):
		}
	}
}

func (p *peer) cut(addr netip.Addr) bool {
	return p.daemon.options.Faults().cuts(p.host, addr)
}

// talk connects and exchanges heartbeats until the connection ends.
func (p *peer) talk(ctx context.Context, addr netip.Addr) {
	d := p.daemon
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d.mu.Lock()
	p.stop = cancel
	d.mu.Unlock()

	dialer := net.Dialer{Timeout: 2 * time.Second}
	if d.config.BindAddress.IsValid() {
		dialer.LocalAddr = &net.TCPAddr{IP: d.config.BindAddress.AsSlice()}
	}
	plain, err := dialer.DialContext(ctx, "tcp", netip.AddrPortFrom(addr, d.config.ServerPort).String())
	if err != nil {
		return
	}
	defer func() { _ = plain.Close() }() // no data is buffered
	release := context.AfterFunc(ctx, func() { _ = plain.Close() })
	defer release()
	conn, err := d.toPeer(plain, p.host)
	if p.refuse(err) {
		return
	}

	replies := bufio.NewReader(conn)
	for !p.cut(addr) {
		if !p.exchange(conn, replies) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(d.options.Heartbeat):
		}
	}
}

// refuse notes why a peer was not accepted; nil: it was.
func (p *peer) refuse(err error) bool {
	words := ""
	if err != nil {
		words = err.Error()
	}
	p.daemon.mu.Lock()
	news := words != p.refused
	p.refused = words
	p.daemon.mu.Unlock()
	if news && err != nil {
		p.daemon.options.Log.Warn("a peer is not accepted", "peer", p.host, "error", err)
	}
	return err != nil
}

// exchange sends one message and reads the answer; false when the connection can no longer be used.
func (p *peer) exchange(conn net.Conn, replies *bufio.Reader) bool {
	d := p.daemon
	if err := conn.SetDeadline(time.Now().Add(4 * d.options.Heartbeat)); err != nil {
		return false
	}
	if err := json.NewEncoder(conn).Encode(d.say()); err != nil {
		return false
	}
	line, err := replies.ReadBytes('\n')
	var m message
	if err != nil || json.Unmarshal(line, &m) != nil {
		return false
	}
	d.mu.Lock()
	p.last = m
	d.mu.Unlock()
	status := d.compare(m)
	p.setStatus(status)
	if d.options.Heard != nil {
		d.options.Heard(m.Identity, status)
	}
	return true
}

func (d *Daemon) compare(m message) Connection {
	switch {
	case m.Version != d.options.Version:
		return VersionMismatch
	case m.NodesMap != d.hash:
		return NodeMapMismatch
	}
	return Connected
}

// say returns the daemon's own message.
func (d *Daemon) say() message {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := message{Version: d.options.Version, NodesMap: d.hash, HostName: d.options.HostName, State: d.state,
		Identity: d.options.Identity}
	for _, p := range d.peers {
		m.Connections = append(m.Connections, p.status)
	}
	return m
}

// accept answers peers that connect.
func (d *Daemon) accept(ctx context.Context, l net.Listener, wg *sync.WaitGroup) {
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() == nil {
				d.options.Log.Error("no more peers are accepted", "error", err)
			}
			return
		}
		wg.Go(func() { d.answer(ctx, conn) })
	}
}

func (d *Daemon) answer(ctx context.Context, plain net.Conn) {
	defer func() { _ = plain.Close() }() // no data is buffered
	release := context.AfterFunc(ctx, func() { _ = plain.Close() })
	defer release()
	remote, err := netip.ParseAddrPort(plain.RemoteAddr().String())
	if err != nil {
		return
	}
	conn, err := d.fromPeer(plain)
	if err != nil {
		d.options.Log.Warn("a peer that connected is not accepted", "address", remote, "error", err)
		return
	}
	requests := bufio.NewReader(conn)
	for {
		if err := conn.SetDeadline(time.Now().Add(8 * d.options.Heartbeat)); err != nil {
			return
		}
		line, err := requests.ReadBytes('\n')
		var m message
		if err != nil || json.Unmarshal(line, &m) != nil || d.cutFrom(remote.Addr().Unmap()) {
			return
		}
		if err := json.NewEncoder(conn).Encode(d.say()); err != nil {
			return
		}
	}
}

// cutFrom reports whether a fault keeps the node with that address away.
func (d *Daemon) cutFrom(remote netip.Addr) bool {
	f := d.options.Faults()
	if len(f.Partitioned) == 0 {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.peers {
		if p.addr == remote && p.index != d.self {
			return f.cuts(p.host, remote)
		}
	}
	return f.cuts("", remote)
}

// own is the daemon's own state.
func (d *Daemon) own() Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := Status{Timestamp: timestamp(time.Now()), Local: d.state}
	if d.self >= 0 {
		s.Self = fmt.Sprint(d.self)
	}
	return s
}

// Status is the domain as this daemon sees it: its own connections, and connected peers' reports of theirs.
func (d *Daemon) Status() Status {
	s, own := d.own(), d.say()
	d.mu.Lock()
	defer d.mu.Unlock()
	s.Nodes = map[string]NodeStatus{}
	for i, p := range d.peers {
		n := NodeStatus{Status: StateUnavailable, Host: p.host, Connections: map[string]ConnectionStatus{}}
		m := p.last
		switch {
		case i == d.self:
			m = own
		case p.status != Connected:
			m = message{HostName: m.HostName, Version: m.Version}
		}
		n.HostName, n.Version = m.HostName, m.Version
		if m.State != "" {
			n.Status = m.State
		}
		for j, other := range d.peers {
			c := ConnectionStatus{Host: other.host, Status: Invalid, Changed: i == d.self && other.changed}
			if j < len(m.Connections) {
				c.Status = m.Connections[j]
			}
			n.Connections[fmt.Sprint(j)] = c
		}
		s.Nodes[fmt.Sprint(i)] = n
	}
	s.Status = domain(s.Nodes)
	return s
}
