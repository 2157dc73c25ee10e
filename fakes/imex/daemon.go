package imex

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// Options are a daemon's means of access to its environment.
type Options struct {
	// Version is sent to peers; daemons of different versions do not connect.
	Version string
	// HostName is sent to peers; empty: the machine's name.
	HostName string
	// Resolve returns the addresses of a name; nil uses the system (so /etc/hosts, then DNS).
	Resolve func(ctx context.Context, name string) ([]netip.Addr, error)
	// DNS resolves a name that Resolve does not have, as the C library's resolver does (nsswitch.conf: hosts: files dns); nil resolves
	// none.
	DNS func(ctx context.Context, name string) ([]netip.Addr, error)
	// Log takes one line per change; nil discards.
	Log *slog.Logger
	// StateDir is the node's state directory, with the session; empty: the daemon has the driver to itself.
	StateDir string
	// PersistDir keeps persist.dat, for QuorumRecovery; empty keeps none.
	PersistDir string
	// Surroundings are the files of the daemon's container. Needs are the device nodes that it must have; nil: all.
	Surroundings Surroundings
	Needs        []string
	// Faults returns the peers that messages must not reach, and whether to die; nil means no faults.
	Faults func() Faults
	// Heartbeat is how often peers report to each other that they live; zero means 500 ms. A peer that is silent for four of them is
	// lost.
	Heartbeat time.Duration
	// Identity is sent to peers, for tests that identify the answering daemon; the real daemon sends none. Heard, if not nil, is called
	// with that of a peer that has answered, and with this daemon's view of the answer.
	Identity string
	Heard    func(identity string, status Connection)
}

// Faults are injected failures of one daemon.
type Faults struct {
	// Partitioned are peers' addresses or names that cannot be reached; "*" is all of them.
	Partitioned []string `json:"partitioned,omitempty"`
	// Kills counts how often the daemon was killed by a fault; a higher number than at its start ends it at once.
	Kills int `json:"kills,omitempty"`
	// Failures counts how often the daemon lost its GPUs; a higher number than at its start makes it UNAVAILABLE for good.
	Failures int `json:"failures,omitempty"`
	// Silent makes the daemon accept queries without answering: "-N" only those for the whole domain (#1417 of NVIDIA's DRA driver:
	// nvidia-imex-ctl -N hangs where -q answers), "*" all, "" none.
	Silent string `json:"silent,omitempty"`
}

func (f Faults) cuts(host string, addr netip.Addr) bool {
	return slices.ContainsFunc(f.Partitioned, func(p string) bool { return p == "*" || p == host || p == addr.String() })
}

// ErrKilled ends Run when a fault killed the daemon.
var ErrKilled = errors.New("killed by an injected fault")

// Daemon is one IMEX daemon. Make it with New, and call Run once.
type Daemon struct {
	config  Config
	options Options
	nodes   []string
	hash    string
	started chan struct{}
	reload  chan struct{}
	kills   int
	// failures are Faults.Failures when the daemon started.
	failures int
	// server and client authenticate peers that connect to it, and those that it connects to; nil: no authentication.
	server, client *tls.Config
	// session is the node's session, once the daemon has it.
	session *Session
	// remembered is the present content of the recovery mark, lost that of an earlier daemon's; only loop uses them.
	remembered, lost []string

	mu sync.Mutex
	// reloaded is when the last Reload took effect.
	reloaded time.Time
	state    State
	self     int // place in nodes, -1 when none of them is this machine
	peers    []*peer
}

// New reads the list of nodes and prepares a daemon; it does not open a file or port yet.
func New(c Config, o Options) (*Daemon, error) {
	nodes, err := ReadNodes(c.NodesFile)
	if err != nil {
		return nil, err
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.HostName == "" {
		o.HostName, _ = os.Hostname() // an empty name is sent then
	}
	if o.Resolve == nil {
		o.Resolve = func(ctx context.Context, name string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", name)
		}
	}
	if o.Faults == nil {
		o.Faults = func() Faults { return Faults{} }
	}
	if o.Heartbeat == 0 {
		o.Heartbeat = 500 * time.Millisecond
	}
	sum := sha256.Sum256([]byte(strings.Join(nodes, "\n")))
	d := &Daemon{config: c, options: o, nodes: nodes, hash: hex.EncodeToString(sum[:8]), state: StateInitializing, self: -1,
		started: make(chan struct{}), reload: make(chan struct{}, 1), kills: o.Faults().Kills, failures: o.Faults().Failures}
	if d.server, d.client, err = c.Security.load(); err != nil {
		return nil, fmt.Errorf("IMEX authentication: %w", err)
	}
	for i, host := range nodes {
		d.peers = append(d.peers, &peer{daemon: d, index: i, host: host, status: NeverConnected})
	}
	return d, nil
}

// reloadPause is how long after one SIGUSR1 further ones are ignored. NVIDIA's IMEX guide, on changing peers: a signal that comes
// within five seconds of another is ignored, and not made up for.
const reloadPause = 5 * time.Second

// Reload looks up the peers' names again, as SIGUSR1 makes the real daemon do, unless another reload was recent.
func (d *Daemon) Reload() {
	d.mu.Lock()
	tooSoon := !d.reloaded.IsZero() && time.Since(d.reloaded) < reloadPause
	if !tooSoon {
		d.reloaded = time.Now()
	}
	d.mu.Unlock()
	if tooSoon {
		d.options.Log.Info("ignoring SIGUSR1, which came too soon after another")
		return
	}
	select {
	case d.reload <- struct{}{}:
	default: // one is waiting already
	}
}

// State is the daemon's own state.
func (d *Daemon) State() State {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.state
}

func (d *Daemon) setState(s State) {
	d.mu.Lock()
	changed := d.state != s
	d.state = s
	d.mu.Unlock()
	if changed {
		d.options.Log.Info("state", "state", s)
	}
}

// Started is closed once the daemon listens.
func (d *Daemon) Started() <-chan struct{} { return d.started }

// Run listens, connects to the peers and answers queries until ctx ends (then it returns nil) or something needed cannot be opened.
func (d *Daemon) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	defer d.setState(StateUnavailable)
	defer d.endSession()

	if err := d.checkStart(); err != nil {
		return err
	}
	listener, err := d.listen(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }() // the context's end has closed it
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	d.setState(StateStartingAuth)
	if err := d.serveCommands(ctx, &wg); err != nil {
		return err
	}
	wg.Go(func() { d.accept(ctx, listener, &wg) })
	d.resolve(ctx)
	for _, p := range d.peers {
		wg.Go(func() { p.run(ctx) })
	}
	close(d.started)
	return d.loop(ctx)
}

// loop waits for the quorum, for reloads and for faults.
func (d *Daemon) loop(ctx context.Context) error {
	d.lost = d.recoverable()
	waiting, since := d.quorumState(), time.Now()
	if waiting != "" {
		d.setState(waiting)
	} else {
		d.becomeReady()
	}
	tick := time.NewTicker(d.options.Heartbeat / 5)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			d.setState(StateShuttingDown)
			d.forget()
			return nil
		case <-d.reload:
			d.options.Log.Info("resolving peers again")
			d.resolve(ctx)
		case <-tick.C:
			faults := d.options.Faults()
			if faults.Kills > d.kills {
				return ErrKilled
			}
			if faults.Failures > d.failures {
				d.setState(StateUnavailable)
			}
			if d.State() == StateUnavailable {
				continue // for good; only another daemon helps
			}
			if waiting != "" && d.quorum(waiting, since) {
				waiting = ""
				d.becomeReady()
			}
			if waiting == "" {
				d.remember()
			}
		}
	}
}

func (d *Daemon) becomeReady() {
	d.setState(StateInitGPU)
	if err := d.initGPU(); err != nil {
		d.options.Log.Error("this daemon cannot continue", "error", err)
		d.setState(StateUnavailable)
		return
	}
	d.setState(StateReady)
}

// endSession releases the node's session, however the daemon ends.
func (d *Daemon) endSession() {
	if d.session != nil {
		d.session.Close()
	}
}

// quorumState is the state to wait in, or empty when the daemon may be READY at once.
func (d *Daemon) quorumState() State {
	switch {
	case d.config.Quorum == QuorumFull && len(d.nodes) > 1:
		return StateWaitPeers
	case d.config.Quorum == QuorumRecovery && len(d.lost) > 0:
		return StateWaitRecovery
	}
	return ""
}

// quorum reports whether a daemon waiting in that state has waited for long enough.
func (d *Daemon) quorum(waiting State, since time.Time) bool {
	if waiting == StateWaitPeers {
		return d.allConnected()
	}
	now := d.connected()
	return time.Since(since) >= d.config.Grace ||
		!slices.ContainsFunc(d.lost, func(a string) bool { return !slices.Contains(now, a) })
}

func (d *Daemon) allConnected() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.peers {
		if p.index != d.self && p.status != Connected {
			return false
		}
	}
	return true
}

func (d *Daemon) listen(ctx context.Context) (net.Listener, error) {
	host := ""
	if d.config.BindAddress.IsValid() {
		host = d.config.BindAddress.String()
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", net.JoinHostPort(host, fmt.Sprint(d.config.ServerPort)))
	if err != nil {
		return nil, fmt.Errorf("IMEX server port (SERVER_PORT, BIND_INTERFACE_IP): %w", err)
	}
	return l, nil
}

// resolve looks up every node's name, finds out which of them is this machine, and notifies peers whose address changed.
func (d *Daemon) resolve(ctx context.Context) {
	own := d.ownAddresses()
	self := -1
	for _, p := range d.peers {
		addrs, err := d.lookup(ctx, p.host)
		if err != nil {
			d.options.Log.Warn("cannot resolve peer", "peer", p.host, "error", err)
		}
		if self < 0 && slices.ContainsFunc(addrs, func(a netip.Addr) bool { return slices.Contains(own, a) }) {
			self = p.index
		}
		p.setAddress(addrs)
	}
	d.mu.Lock()
	d.self = self
	d.mu.Unlock()
	if self < 0 {
		d.options.Log.Warn("none of the nodes is this machine", "nodes", d.nodes)
	}
}

func (d *Daemon) lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	addrs, err := d.options.Resolve(ctx, host)
	if len(addrs) == 0 && d.options.DNS != nil {
		addrs, err = d.options.DNS(ctx, host)
	}
	for i := range addrs {
		addrs[i] = addrs[i].Unmap()
	}
	return addrs, err
}

// ownAddresses returns the bound address or, without one, all of this machine's.
func (d *Daemon) ownAddresses() []netip.Addr {
	if d.config.BindAddress.IsValid() {
		return []netip.Addr{d.config.BindAddress}
	}
	var own []netip.Addr
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		d.options.Log.Warn("cannot list this machine's addresses", "error", err)
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			own = append(own, p.Addr().Unmap())
		}
	}
	return own
}
