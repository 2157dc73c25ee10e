package draplugin

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/host"
)

// lacking is a listener in a process that has no file descriptor left for its first connection.
type lacking struct {
	net.Listener
	failed bool
}

func (l *lacking) Accept() (net.Conn, error) {
	if !l.failed {
		l.failed = true
		return nil, &net.OpError{Op: "accept", Net: "unix", Err: unix.EMFILE}
	}
	return l.Listener.Accept()
}

// ordered is a bench that takes orders, in a directory with a short name: a socket's path has at most 107 bytes.
func ordered(t *testing.T) (*bench, pods) {
	t.Helper()
	dir, err := os.MkdirTemp("", "dra")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	b := newBench(t, dir, atomicfile.Writer{})
	p := podsOn(t, b)
	socket := filepath.Join(dir, "state", ReleaseSocket)
	if err := os.WriteFile(socket, nil, 0o600); err != nil { // of a run that was killed
		t.Fatal(err)
	}
	listener, err := b.listenForOrders(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(b.ctx)
	b.wg.Go(func() { b.serveOrders(ctx, &lacking{Listener: listener}) })
	t.Cleanup(func() { stop(); _ = listener.Close() }) // before the bench waits for its goroutines
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket's mode is %v (%v), want 0600", info.Mode(), err)
	}
	return b, p
}

// order runs the command gpufabric release.
func order(t *testing.T, b *bench, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := ReleaseCommand(host.Host{Stdout: &out, Stderr: &out})
	cmd.SetArgs(append([]string{"--state-root", b.dir}, args...))
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestReleaseCommandNamesTheContainersAndFreesByForceAlone(t *testing.T) {
	b, p := ordered(t)
	p.run("p-u1")
	claim := claimOf("u1", "d0") // never in the API
	b.mustPrepare(t, claim)
	name := claim.Namespace + "/" + claim.Name
	if out, err := order(t, b, name); err == nil || !strings.Contains(err.Error(), "container c0ffee (3 processes) of pod default/pod-u1") {
		t.Errorf("without --force: %s, %v", out, err)
	}
	if b.state.Len() != 1 || len(b.kind.unprepared) != 0 {
		t.Fatal("freed without --force")
	}
	if out, err := order(t, b, "u1", "--force"); err != nil || !strings.Contains(out, "released: claim "+name) {
		t.Errorf("with --force: %s, %v", out, err)
	}
	if b.state.Len() != 0 || len(b.kind.unprepared) != 1 {
		t.Error("not freed with --force")
	}
	for event := ""; !strings.Contains(event, "DeviceReleaseForced"); {
		select {
		case event = <-b.events.Events:
		default:
			t.Fatal("no Event says that the release was forced")
		}
	}
	b.mustPrepare(t, claimOf("u2", "d0"))
}

func TestReleaseCommandRefusesWhatItMustNotFree(t *testing.T) {
	b, _ := ordered(t)
	inUse := claimOf("u1", "d0")
	if err := b.client.Tracker().Add(inUse); err != nil {
		t.Fatal(err)
	}
	b.mustPrepare(t, inUse)
	again := claimOf("u3", "d2")
	again.Name = "again"
	b.mustPrepare(t, again)
	second := claimOf("u4", "d3")
	second.Name = "again"
	b.mustPrepare(t, second)
	for _, c := range []struct{ claim, want string }{
		{inUse.Namespace + "/" + inUse.Name, "delete its pods first"},
		{"u1", "delete its pods first"},
		{"default/other", "holds no claim"},
		{"default/again", "holds 2 claims \"default/again\": give the UID of one of them (u3, u4)"},
		{strings.Repeat("x", 2000), "plugin at "},
	} {
		if out, err := order(t, b, c.claim, "--force"); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.40s: %s, %v; want %q", c.claim, out, err, c.want)
		}
	}
	if b.state.Len() != 3 || len(b.kind.unprepared) != 0 {
		t.Errorf("%d claims are left, want 3", b.state.Len())
	}
	b.dir = t.TempDir()
	if _, err := order(t, b, "u1"); err == nil || !strings.Contains(err.Error(), "no plugin answers below") {
		t.Errorf("without a plugin: %v", err)
	}
}

func TestReleaseSocketRejectsUnknownOrders(t *testing.T) {
	b, _ := ordered(t)
	b.mustPrepare(t, claimOf("u1", "d0"))
	socket := filepath.Join(b.dir, "state", ReleaseSocket)
	for _, order := range []string{"", "delete u1", "release", "RELEASE u1"} {
		answer, err := send(t.Context(), socket, order)
		if err != nil || !strings.HasPrefix(answer, "failed: ") {
			t.Errorf("%q: %q, %v", order, answer, err)
		}
	}
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close() // an order that never comes does not keep the next one waiting
	if answer, err := send(t.Context(), socket, "release u1"); err != nil || !strings.HasPrefix(answer, "failed: ") &&
		!strings.HasPrefix(answer, "used: ") {
		t.Errorf("after a closed connection: %q, %v", answer, err)
	}
}

// The plugin is killed between two steps of a release. The next run continues where it ended.
func TestReleaseGoesOnAfterAKillBetweenItsSteps(t *testing.T) {
	for name, steps := range map[string]func(t *testing.T, b *bench){
		"before the first step": func(*testing.T, *bench) {},
		"after the CDI spec": func(t *testing.T, b *bench) {
			if err := b.cdi.Remove("u1"); err != nil {
				t.Fatal(err)
			}
		},
		"after the devices": func(t *testing.T, b *bench) {
			record, _ := b.state.Get("u1")
			if err := b.cdi.Remove("u1"); err != nil {
				t.Fatal(err)
			}
			if err := b.unprepareDevices(t.Context(), record); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			killed := newBench(t, dir, atomicfile.Writer{})
			podsOn(t, killed).run("p-u1")
			killed.mustPrepare(t, claimOf("u1", "d0")) // never in the API
			steps(t, killed)
			b := newBench(t, dir, atomicfile.Writer{})
			p := podsOn(t, b)
			b.recoverFromAPI(t.Context(), b.state.List())
			if b.state.Len() != 1 || len(b.kind.unprepared) != 0 || len(b.ledger.Holders("pool/d0")) != 1 {
				t.Fatalf("the device is not held for the container: %d records, unprepared %v", b.state.Len(), b.kind.unprepared)
			}
			p.end("p-u1")
			b.mustPrepare(t, claimOf("u2", "d0"))
			if _, recorded := b.state.Get("u1"); recorded || b.cdi.Has("u1") || len(b.kind.unprepared) != 1 {
				t.Errorf("record %t, spec %t, unprepared %v", recorded, b.cdi.Has("u1"), b.kind.unprepared)
			}
		})
	}
}
