package draplugin

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/filewatch"
	"gpufabric.io/drivers/node/host"
)

// ordered is a bench that takes orders.
func ordered(t *testing.T) (*bench, pods) {
	t.Helper()
	b := newBench(t, t.TempDir(), atomicfile.Writer{})
	p := podsOn(t, b)
	changes := (&filewatch.Watcher{}).Entries(t.Context(), filepath.Join(b.dir, "state"), releaseSocket)
	ctx, stop := context.WithCancel(b.ctx)
	b.wg.Go(func() { b.takeOrders(ctx) })
	t.Cleanup(stop) // before the bench waits for its goroutines
	for deadline := time.After(time.Minute); ; {
		if _, err := os.Stat(filepath.Join(b.dir, "state", releaseSocket)); err == nil {
			return b, p
		}
		select {
		case <-changes:
		case <-deadline:
			t.Fatal("no orders are served")
		}
	}
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

func TestReleaseCommandNamesTheContainersAndFreesOnlyByForce(t *testing.T) {
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

func TestReleaseCommandRefusesClaimsInUse(t *testing.T) {
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
		{"default/other", "does not have a claim"},
		{"default/again", "has 2 claims \"default/again\": give the UID of one of them (u3, u4)"},
		{strings.Repeat("x", 2000), "does not have a claim \"xxx"},
	} {
		if out, err := order(t, b, c.claim, "--force"); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.40s: %s, %v; want %q", c.claim, out, err, c.want)
		}
	}
	if b.state.Len() != 3 || len(b.kind.unprepared) != 0 {
		t.Errorf("%d claims are left, want 3", b.state.Len())
	}
	b.dir = t.TempDir()
	if _, err := order(t, b, "u1"); err == nil || !strings.Contains(err.Error(), "a plugin does not answer below") {
		t.Errorf("without a plugin: %v", err)
	}
}

// The plugin is killed between two steps of a release. The next run continues where it ended.
func TestReleaseContinuesAfterAKillBetweenItsSteps(t *testing.T) {
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
