package imex_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpufabric.io/fakes/imex"
)

// domain is a set of daemons on loopback addresses of one test.
type domain struct {
	t       *testing.T
	dir     string
	subnet  int
	daemons map[int]*node
}

// node is one running daemon.
type node struct {
	*imex.Daemon
	config imex.Config
	stop   func() error
}

var subnets atomic.Int32

func newDomain(t *testing.T, hosts ...string) *domain {
	d := &domain{t: t, dir: t.TempDir(), subnet: int(subnets.Add(1)), daemons: map[int]*node{}}
	for i := range hosts {
		hosts[i] = strings.ReplaceAll(hosts[i], "*", fmt.Sprint("127.", 10+os.Getpid()%200, ".", d.subnet))
	}
	d.write("nodes.cfg", strings.Join(hosts, "\n"))
	t.Cleanup(func() {
		for _, n := range d.daemons {
			_ = n.stop()
		}
	})
	return d
}

func (d *domain) write(name, text string) {
	d.t.Helper()
	if err := os.WriteFile(filepath.Join(d.dir, name), []byte(text+"\n"), 0o644); err != nil {
		d.t.Fatal(err)
	}
}

func (d *domain) address(i int) netip.Addr {
	return netip.MustParseAddr(fmt.Sprint("127.", 10+os.Getpid()%200, ".", d.subnet, ".", i))
}

// start runs the daemon with the address *.i; change adjusts what it is made from.
func (d *domain) start(i int, change ...func(*imex.Config, *imex.Options)) *node {
	d.t.Helper()
	c, err := imex.ParseConfig(fmt.Appendf(nil,
		"BIND_INTERFACE_IP=%s\nIMEX_NODE_CONFIG_FILE=%s\nIMEX_WAIT_FOR_QUORUM=NONE\nIMEX_CMD_UNIX_DOMAIN_PATH=%s\n",
		d.address(i), filepath.Join(d.dir, "nodes.cfg"), filepath.Join(d.dir, fmt.Sprint("ctl", i))))
	if err != nil {
		d.t.Fatal(err)
	}
	o := imex.Options{Version: "580.95.05", HostName: fmt.Sprint("host", i), Heartbeat: 200 * time.Millisecond}
	for _, fn := range change {
		fn(&c, &o)
	}
	daemon, err := imex.New(c, o)
	if err != nil {
		d.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(d.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- daemon.Run(ctx) }()
	var result error
	var done bool
	n := &node{Daemon: daemon, config: c, stop: func() error {
		cancel()
		if !done {
			result, done = <-ended, true
		}
		return result
	}}
	select {
	case <-daemon.Started():
	case err := <-ended:
		d.t.Fatal(err)
	}
	d.daemons[i] = n
	return n
}

// eventually waits for a condition that daemons reach by themselves.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("never: %s", what)
}

func (n *node) is(state imex.Domain) func() bool {
	return func() bool { return n.Status().Status == state }
}

func TestDaemonIsReadyWhileItsDomainIsNotUp(t *testing.T) {
	d := newDomain(t, "*.1", "*.2")
	a := d.start(1)
	eventually(t, "READY", func() bool { return a.State() == imex.StateReady })
	if s := a.Status().Status; s != imex.DomainDown {
		t.Errorf("domain %s", s)
	}
	b := d.start(2)
	eventually(t, "both see UP", func() bool { return a.is(imex.DomainUp)() && b.is(imex.DomainUp)() })
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the death of a peer leaves UP", func() bool { return !a.is(imex.DomainUp)() })
	if a.State() != imex.StateReady {
		t.Errorf("the survivor is %s", a.State())
	}
}

func TestDomainIsDegradedWithThreeOfFourNodes(t *testing.T) {
	d := newDomain(t, "*.1", "*.2", "*.3", "*.4")
	a := d.start(1)
	for i := 2; i <= 3; i++ {
		d.start(i)
	}
	eventually(t, "DEGRADED", a.is(imex.DomainDegraded))
	d.start(4)
	eventually(t, "UP", a.is(imex.DomainUp))
}

func TestControlPrintsTheDomain(t *testing.T) {
	d := newDomain(t, "*.1", "*.2")
	a := d.start(1)
	d.start(2)
	eventually(t, "UP", a.is(imex.DomainUp))
	s, err := imex.Query(t.Context(), a.config, imex.OfDomain)
	if err != nil || s.Local != imex.StateReady {
		t.Fatalf("%+v %v", s, err)
	}
	var out bytes.Buffer
	if err := s.WriteText(&out, true); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Node #0 * - " + d.address(1).String(), "Hostname: host2", "            0  C    C  ",
		"            1  C    C  ", "\nDomain State: UP\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
	out.Reset()
	if err := s.WriteJSON(&out); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Nodes map[string]struct {
			Status, Host, HostName, Version string
			Connections                     map[string]struct{ Host, Status string }
		}
		Timestamp, Status string
	}
	decoder := json.NewDecoder(&out)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&got); err == nil || !strings.Contains(err.Error(), "changed") {
		t.Errorf("connections have no key changed: %v", err)
	}
	if _, err := imex.Query(t.Context(), d.daemons[2].config, imex.OfDaemon); err != nil {
		t.Error(err)
	}
	_ = d.daemons[2].stop()
	if s, err := imex.Query(t.Context(), d.daemons[2].config, imex.OfDaemon); err == nil || s.Local != imex.StateUnavailable {
		t.Errorf("a daemon that is gone: %+v %v", s, err)
	}
}

func TestDifferentNodeFilesAndVersionsAreReported(t *testing.T) {
	d := newDomain(t, "*.1", "*.2", "*.3")
	a := d.start(1, func(c *imex.Config, _ *imex.Options) { c.Grace = 100 * time.Millisecond })
	d.write("other.cfg", d.address(1).String()+"\n"+d.address(2).String())
	d.start(2, func(c *imex.Config, _ *imex.Options) { c.NodesFile = filepath.Join(d.dir, "other.cfg") })
	d.start(3, func(_ *imex.Config, o *imex.Options) { o.Version = "570.00" })
	var out bytes.Buffer
	eventually(t, "the matrix marks both", func() bool {
		out.Reset()
		if err := a.Status().WriteText(&out, false); err != nil {
			t.Fatal(err)
		}
		return strings.Contains(out.String(), "0  C    !M!  !V!")
	})
	if a.is(imex.DomainUp)() {
		t.Error("the domain is UP")
	}
	for i, key := range map[int]string{2: "1", 3: "2"} {
		_ = d.daemons[i].stop()
		eventually(t, "a mismatch ends with its peer", func() bool { return a.Status().Nodes["0"].Connections[key].Status == imex.Disconnected })
	}
}

func TestNamesAreLookedUpAgainOnReload(t *testing.T) {
	d := newDomain(t, "node-a", "node-b")
	var known atomic.Bool
	resolver := func(_ *imex.Config, o *imex.Options) {
		o.Resolve = func(_ context.Context, name string) ([]netip.Addr, error) {
			switch {
			case name == "node-a":
				return []netip.Addr{d.address(1)}, nil
			case known.Load():
				return []netip.Addr{d.address(2)}, nil
			}
			return nil, fmt.Errorf("no such host: %s", name)
		}
	}
	a := d.start(1, resolver)
	known.Store(true)
	b := d.start(2, resolver)
	eventually(t, "the later one sees the earlier", func() bool {
		return b.Status().Nodes["1"].Connections["0"].Status == imex.Connected
	})
	if got := a.Status().Nodes["0"].Connections["1"].Status; got != imex.NeverConnected {
		t.Errorf("without a reload: %s", got)
	}
	a.Reload()
	eventually(t, "UP after the reload", a.is(imex.DomainUp))
}

func TestDaemonFollowsQuorum(t *testing.T) {
	d := newDomain(t, "*.1", "*.2")
	a := d.start(1, func(c *imex.Config, _ *imex.Options) { c.Quorum = imex.QuorumFull })
	eventually(t, "waiting for peers", func() bool { return a.State() == imex.StateWaitPeers })
	d.start(2)
	eventually(t, "READY", func() bool { return a.State() == imex.StateReady })
}

func TestDaemonWaitsForPeersAfterADeadOne(t *testing.T) {
	d := newDomain(t, "*.1", "*.2")
	state := t.TempDir()
	var faults atomic.Pointer[imex.Faults]
	faults.Store(&imex.Faults{})
	recovering := func(c *imex.Config, o *imex.Options) {
		c.Quorum, o.PersistDir, o.Faults = imex.QuorumRecovery, state, func() imex.Faults { return *faults.Load() }
	}
	b := d.start(2)
	a := d.start(1, recovering)
	eventually(t, "UP", a.is(imex.DomainUp))
	eventually(t, "the mark is left", func() bool {
		_, err := os.Stat(filepath.Join(state, imex.RecoveryName))
		return err == nil
	})
	faults.Store(&imex.Faults{Kills: 1})
	eventually(t, "killed", func() bool { return a.State() == imex.StateUnavailable })
	if err := a.stop(); err == nil {
		t.Error("a killed daemon ended without an error")
	}
	_ = b.stop()

	again := d.start(1, recovering)
	eventually(t, "waiting for recovery", func() bool { return again.State() == imex.StateWaitRecovery })
	d.start(2)
	eventually(t, "READY", func() bool { return again.State() == imex.StateReady })

	if err := again.stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(state, imex.RecoveryName)); err == nil {
		t.Error("a clean end leaves the mark")
	}
}

func TestPartitionCutsBothWaysAndHeals(t *testing.T) {
	d := newDomain(t, "*.1", "*.2")
	path := filepath.Join(t.TempDir(), imex.FaultsName)
	a := d.start(1, func(c *imex.Config, o *imex.Options) { o.Faults, c.Grace = imex.FaultsFile(path), 100*time.Millisecond })
	b := d.start(2)
	eventually(t, "UP", a.is(imex.DomainUp))
	if err := imex.WriteFaults(path, imex.Faults{Partitioned: []string{d.address(2).String()}}); err != nil {
		t.Fatal(err)
	}
	status := func(n *node, from, to string) imex.Connection { return n.Status().Nodes[from].Connections[to].Status }
	eventually(t, "recovering or disconnected on both", func() bool {
		return status(a, "0", "1") != imex.Connected && status(b, "1", "0") != imex.Connected
	})
	eventually(t, "disconnected after the grace time", func() bool { return status(a, "0", "1") == imex.Disconnected })
	if err := imex.WriteFaults(path, imex.Faults{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "UP again", a.is(imex.DomainUp))
}

func TestMistakesInTheConfigurationAreAllNamed(t *testing.T) {
	_, err := imex.ParseConfig([]byte("SERVER_PORT=0\n# a comment\nBIND_INTERFACE_IP=here\nIMEX_WAIT_FOR_QUORUM=MAYBE\n" +
		"nonsense\nSERVER_PORT=50000 # fine\n"))
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"line 1: SERVER_PORT=0", "line 3: BIND_INTERFACE_IP=here",
		"line 4: IMEX_WAIT_FOR_QUORUM=MAYBE: allowed are NONE, FULL, RECOVERY", "line 5"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in: %v", want, err)
		}
	}
}

func TestConfigurationIsReadAsDriversWriteIt(t *testing.T) {
	c, err := imex.ParseConfig([]byte("# IMEX\nSERVER_PORT=50001\nIMEX_CMD_ENABLED=1\nIMEX_CMD_PORT=50006\n" +
		"IMEX_CMD_UNIX_DOMAIN_PATH=/run/imex.sock\nIMEX_NODE_CONFIG_FILE=/etc/nodes\nLOG_LEVEL=4\nIMEX_NODE_DISCONNECTED_GRACE_TIME=7\n" +
		"NEW_KEY=1\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := imex.Config{ServerPort: 50001, CommandEnabled: true, CommandPort: 50006, CommandSocket: "/run/imex.sock", NodesFile: "/etc/nodes",
		Quorum: imex.QuorumRecovery, Grace: 7 * time.Second, Ignored: []string{"LOG_LEVEL", "NEW_KEY (unknown)"}}
	if diff := cmp.Diff(want, c, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
}

func TestGraceTimeOfMinusOneHasNoEnd(t *testing.T) {
	c, err := imex.ParseConfig([]byte("IMEX_NODE_DISCONNECTED_GRACE_TIME=-1\n"))
	if err != nil || c.Grace < 1000*time.Hour {
		t.Errorf("grace %s, %v", c.Grace, err)
	}
	if _, err := imex.ParseConfig([]byte("IMEX_NODE_DISCONNECTED_GRACE_TIME=-2\n")); err == nil {
		t.Error("-2 was accepted")
	}
}

func TestLibraryMayHaveItsVersionInItsName(t *testing.T) {
	dir := t.TempDir()
	machine := imex.Machine{LibraryDirs: []string{dir}}
	if machine.Library(imex.Library) {
		t.Error("a library was found in an empty directory")
	}
	if err := os.WriteFile(filepath.Join(dir, "libnvidia-imex.so.580.173.02"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if !machine.Library(imex.Library) {
		t.Error("libnvidia-imex.so.580.173.02 was not found")
	}
}

func TestNodesFileWithAMistakeIsRejected(t *testing.T) {
	for name, text := range map[string]string{"a node twice": "a\nb\na", "two on a line": "a b"} {
		path := filepath.Join(t.TempDir(), "nodes")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := imex.ReadNodes(path); err == nil || !strings.Contains(err.Error(), "line") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFaultsInQuickSuccessionAreAllSeen(t *testing.T) {
	path := filepath.Join(t.TempDir(), imex.FaultsName)
	read := imex.FaultsFile(path)
	write := func(f imex.Faults, at time.Time) {
		t.Helper()
		if err := imex.WriteFaults(path, f); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, at, at); err != nil { // the kernel's clock for files may not advance for milliseconds
			t.Fatal(err)
		}
	}
	now := time.Now()
	write(imex.Faults{Partitioned: []string{"*"}}, now)
	if f := read(); len(f.Partitioned) != 1 {
		t.Fatalf("%+v", f)
	}
	write(imex.Faults{}, now)
	if f := read(); f.Partitioned != nil {
		t.Errorf("a healed daemon still has %+v", f)
	}
}

func TestControlSocketDoesNotReplaceOtherFiles(t *testing.T) {
	d := newDomain(t, "*.1")
	listen := func(path string) error {
		config := imex.Config{NodesFile: filepath.Join(d.dir, "nodes.cfg"), CommandEnabled: true, CommandSocket: path}
		daemon, err := imex.New(config, imex.Options{Version: "1"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- daemon.Run(ctx) }()
		select {
		case <-daemon.Started():
			return nil
		case err := <-done:
			return err
		}
	}
	t.Run("a file stays", func(t *testing.T) {
		file := filepath.Join(d.dir, "precious")
		if err := os.WriteFile(file, []byte("text"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := listen(file); err == nil || !strings.Contains(err.Error(), "is not a socket") {
			t.Error(err)
		}
		if _, err := os.ReadFile(file); err != nil {
			t.Error(err)
		}
	})
	t.Run("a daemon that answers keeps its socket", func(t *testing.T) {
		path := filepath.Join(d.dir, "control")
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		if err := listen(path); err == nil || !strings.Contains(err.Error(), "answers there") {
			t.Error(err)
		}
	})
	t.Run("what a killed daemon left is replaced", func(t *testing.T) {
		path := filepath.Join(d.dir, "left")
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		_ = l.Close()
		if err := listen(path); err != nil {
			t.Error(err)
		}
	})
}
