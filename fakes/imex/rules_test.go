package imex_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gpufabric.io/fakes/imex"
)

// Each test here checks a rule of the driver or of NVIDIA's daemon, and names its documentation.

// on runs a daemon on the node with this state directory.
func on(dir string) func(*imex.Config, *imex.Options) {
	return func(_ *imex.Config, o *imex.Options) { o.StateDir = dir }
}

// open-gpu-kernel-modules, imex_session_api.c: the second session of a node is refused with NV_ERR_IN_USE.
func TestNodeHasOneIMEXSession(t *testing.T) {
	d, dir := newDomain(t, "*.1", "*.2"), t.TempDir()
	a := d.start(1, on(dir))
	eventually(t, "READY", func() bool { return a.State() == imex.StateReady })
	b := d.start(2, on(dir))
	eventually(t, "UNAVAILABLE", func() bool { return b.State() == imex.StateUnavailable })
	if _, err := imex.OpenSession(dir); !errors.Is(err, imex.ErrInUse) {
		t.Errorf("a further session: %v", err)
	}
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond)
	if b.State() != imex.StateUnavailable {
		t.Error("a daemon that is UNAVAILABLE recovered by itself")
	}
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}
	again := d.start(2, on(dir))
	eventually(t, "READY once the session is free", func() bool { return again.State() == imex.StateReady })
}

// imex_session_api.c: the end of a session disables every client that has imported memory; a later session does not enable it
// again.
func TestImportersEndWithSession(t *testing.T) {
	for name, end := range map[string]func(*node, *atomic.Int32){
		"in order": func(n *node, _ *atomic.Int32) { _ = n.stop() },
		"killed":   func(_ *node, kills *atomic.Int32) { kills.Add(1) },
	} {
		t.Run(name, func(t *testing.T) {
			d, dir := newDomain(t, "*.1"), t.TempDir()
			var kills atomic.Int32
			killed := func(_ *imex.Config, o *imex.Options) {
				o.Faults = func() imex.Faults { return imex.Faults{Kills: int(kills.Load())} }
			}
			if _, err := imex.ImportMemory(dir); err == nil {
				t.Error("imported without a session")
			}
			a := d.start(1, on(dir), killed)
			eventually(t, "READY", func() bool { return a.State() == imex.StateReady })
			client, err := imex.ImportMemory(dir)
			if err != nil || !client.Alive() {
				t.Fatalf("alive %v, %v", client.Alive(), err)
			}
			end(a, &kills)
			eventually(t, "the client is dead", func() bool { return !client.Alive() })
			again := d.start(1, on(dir))
			eventually(t, "READY again", func() bool { return again.State() == imex.StateReady })
			if client.Alive() {
				t.Error("a later session brought it back")
			}
			if next, err := imex.ImportMemory(dir); err != nil || !next.Alive() {
				t.Errorf("a client of the later session: %v", err)
			}
		})
	}
}

// Public pull request #1222 of NVIDIA's DRA driver: "without access to all the GPUs, the IMEX daemon doesn't work properly"; the
// capability: the IMEX guide.
func TestDaemonNeedsItsLibraryAndEveryDevice(t *testing.T) {
	needs := []string{"/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap4323"}
	for i := range len(needs) {
		d := newDomain(t, "*.1")
		container := imex.Container{Devices: slices.Delete(slices.Clone(needs), i, i+1), Mounts: map[string]string{"/x/" + imex.Library: "/y"}}
		a := d.start(1, func(_ *imex.Config, o *imex.Options) { o.Needs, o.Surroundings = needs, container })
		eventually(t, "UNAVAILABLE without "+needs[i], func() bool { return a.State() == imex.StateUnavailable })
	}
	d := newDomain(t, "*.1")
	c, err := imex.ParseConfig([]byte("IMEX_NODE_CONFIG_FILE=" + filepath.Join(d.dir, "nodes.cfg") + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	daemon, err := imex.New(c, imex.Options{Needs: needs, Surroundings: imex.Container{Devices: needs}})
	if err != nil {
		t.Fatal(err)
	}
	if err := daemon.Run(t.Context()); err == nil || !strings.Contains(err.Error(), imex.Library) {
		t.Errorf("without its library: %v", err)
	}
}

// NVIDIA's IMEX guide, on changing peers: SIGUSR1 within five seconds of another is ignored.
func TestDaemonIgnoresASecondSignalWithinFiveSeconds(t *testing.T) {
	var mu sync.Mutex
	known := map[string]netip.Addr{}
	d := newDomain(t, "*.1", "late")
	address := d.address(2)
	resolver := func(_ *imex.Config, o *imex.Options) {
		o.Resolve = func(_ context.Context, name string) ([]netip.Addr, error) {
			mu.Lock()
			defer mu.Unlock()
			if a, ok := known[name]; ok {
				return []netip.Addr{a}, nil
			}
			return nil, errors.New("no such host")
		}
	}
	a := d.start(1, resolver)
	a.Reload() // finds no peer
	time.Sleep(200 * time.Millisecond)
	mu.Lock()
	known["late"] = address
	mu.Unlock()
	a.Reload() // ignored
	b := d.start(2, resolver)
	eventually(t, "READY", func() bool { return b.State() == imex.StateReady })
	time.Sleep(200 * time.Millisecond)
	if a.Status().Status == imex.DomainUp {
		t.Error("a signal right after another was heeded")
	}
	time.Sleep(5 * time.Second)
	a.Reload()
	eventually(t, "UP after a signal that came late enough", a.is(imex.DomainUp))
}

// The C library's resolver: a name that is not in /etc/hosts is looked up in DNS (nsswitch.conf: "hosts: files dns"). #1466 of
// NVIDIA's DRA driver counted these lookups in clusters.
func TestDaemonLooksUpUnknownNamesInDNS(t *testing.T) {
	d := newDomain(t, "*.1", "nobody-0001", "nobody-0002")
	var asked atomic.Int32
	a := d.start(1, func(_ *imex.Config, o *imex.Options) {
		o.Resolve = func(context.Context, string) ([]netip.Addr, error) { return nil, nil }
		o.DNS = func(context.Context, string) ([]netip.Addr, error) {
			asked.Add(1)
			return nil, errors.New("no such host")
		}
	})
	if asked.Load() != 2 {
		t.Errorf("DNS was asked %d times at the start, want once for each name", asked.Load())
	}
	a.Reload()
	eventually(t, "and again at each look", func() bool { return asked.Load() == 4 })
}

// #1417 of NVIDIA's DRA driver: nvidia-imex-ctl -N hangs where -q answers.
func TestQueryOfTheWholeDomainMayHang(t *testing.T) {
	for silent, hangs := range map[string][2]bool{"": {false, false}, "-N": {false, true}, "*": {true, true}} {
		d := newDomain(t, "*.1")
		a := d.start(1, func(_ *imex.Config, o *imex.Options) {
			o.Faults = func() imex.Faults { return imex.Faults{Silent: silent} }
		})
		for i, question := range []imex.Question{imex.OfDaemon, imex.OfDomain} {
			patience := time.Minute
			if hangs[i] {
				patience = 200 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			_, err := imex.Query(ctx, a.config, question)
			if (err != nil) != hangs[i] {
				t.Errorf("silent %q, question for the %s: %v", silent, question, err)
			}
			cancel()
		}
	}
}

// A daemon that has become UNAVAILABLE stays so (NVIDIA's IMEX guide: restart the service).
func TestDaemonStaysUnavailable(t *testing.T) {
	d := newDomain(t, "*.1")
	path := filepath.Join(t.TempDir(), imex.FaultsName)
	a := d.start(1, func(_ *imex.Config, o *imex.Options) { o.Faults = imex.FaultsFile(path) })
	eventually(t, "READY", func() bool { return a.State() == imex.StateReady })
	if err := imex.WriteFaults(path, imex.Faults{Failures: 1}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "UNAVAILABLE", func() bool { return a.State() == imex.StateUnavailable })
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond)
	if a.State() != imex.StateUnavailable {
		t.Error("it recovered by itself")
	}
}

// open-gpu-kernel-modules and the IMEX guide on IMEX_WAIT_FOR_QUORUM: with NONE a daemon that follows one that died does not wait, so
// memory that others still have mapped is allocated again.
func TestDaemonDoesNotWaitWithoutQuorum(t *testing.T) {
	d, persist := newDomain(t, "*.1", "*.2"), t.TempDir()
	if err := os.WriteFile(filepath.Join(persist, imex.RecoveryName), []byte(d.address(2).String()), 0o644); err != nil {
		t.Fatal(err)
	}
	careful := d.start(1, func(c *imex.Config, o *imex.Options) { c.Quorum, o.PersistDir = imex.QuorumRecovery, persist })
	eventually(t, "RECOVERY waits", func() bool { return careful.State() == imex.StateWaitRecovery })
	_ = careful.stop()
	delete(d.daemons, 1)
	if err := os.WriteFile(filepath.Join(persist, imex.RecoveryName), []byte(d.address(2).String()), 0o644); err != nil {
		t.Fatal(err)
	}
	careless := d.start(1, func(_ *imex.Config, o *imex.Options) { o.PersistDir = persist })
	eventually(t, "NONE does not", func() bool { return careless.State() == imex.StateReady })
}
