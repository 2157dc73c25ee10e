package plugin

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gpufabric.io/drivers/node/drain"
	"gpufabric.io/drivers/node/filewatch"
	"gpufabric.io/drivers/node/observed"
	"gpufabric.io/fakes/nvmlstate"
)

// transcript keeps a command's output.
type transcript struct {
	mu   sync.Mutex
	text strings.Builder
}

func (t *transcript) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.Write(p)
}

func (t *transcript) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}

// drainable is a node whose GPU 0 waits for a reset to come into MIG mode.
func drainable(t *testing.T) (b *bench, root string) {
	t.Helper()
	root = renderFake(t, "a100-40")
	if out, err := administrator(t, root, "-i", "0", "-mig", "1"); err != nil {
		t.Fatal(out, err)
	}
	return benchOn(t, nvmlstate.New(root, nvmlstate.ReadOnlyDev), root, func(o *Options) { o.HandoverDir = "" }), root
}

func TestADrainedNodeLetsGoOfNVMLAndIsOfferedAgainLater(t *testing.T) {
	b, root := drainable(t)
	b.taints("gpu-0", "")
	c := b.claim("u1", nil, device{name: "gpu-0"})
	b.mustPrepare(c)
	said, ended := &transcript{}, make(chan error, 1)
	go func() { ended <- order(t.Context(), b.options.StateDir, "drain", said) }()
	b.taints("gpu-1", DrainTaint+"=:NoSchedule")
	b.await(func() bool { return strings.Contains(said.String(), "claim default/claim-u1 has gpu-0") }, "the claim that stands is named")
	if problem := b.prepareWithin(time.Minute, b.claim("u2", nil, device{name: "gpu-1"})); problem != "" {
		// A claim that was allocated before the taint was seen may still come; the drain waits for it as well.
		t.Errorf("a claim that came while the drain waits: %s", problem)
	}
	if _, err := administrator(t, root, "-i", "0", "--gpu-reset"); err == nil {
		t.Error("the GPU was reset while the plugin has NVML open")
	}
	for _, uid := range []string{"u1", "u2"} {
		// The plugin starts again as soon as the last claim is gone, which may cut off that call's answer. A kubelet asks again, as this
		// test does.
		b.await(func() bool { return b.unprepare(b.get(uid)) == "" }, "claim "+uid+" is given back")
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(time.Minute):
		t.Fatalf("the drain does not end; it said:\n%s", said)
	}
	if out, err := administrator(t, root, "-i", "0", "--gpu-reset"); err != nil {
		t.Errorf("the GPU of a drained node could not be reset: %v\n%s", err, out)
	}
	if !drainedOn(t, b) {
		t.Error("a role that is started again would open NVML")
	}
	// The kubelet did not get the last answer, and asks again.
	if problem := b.unprepare(b.get("u2")); problem != "" {
		t.Errorf("a claim that was given back is asked for again: %s", problem)
	}
	b.refused(b.claim("u0", nil, device{name: "gpu-1"}), "gpufabric undrain")
	if err := order(t.Context(), b.options.StateDir, "undrain", io.Discard); err != nil {
		t.Fatal(err)
	}
	b.await(func() bool { return slices.Equal(b.forms("gpu-0"), []string{"mig"}) }, "GPU 0 is offered in its new mode")
	b.taints("gpu-1", "")
	again := b.claim("u3", nil, device{name: "gpu-1"})
	b.await(func() bool { return b.prepareWithin(time.Minute, again) == "" }, "a claim is prepared again")
}

// TestADrainPublishesItsTaintBeforeItLetsGo has a slow API server. A role that closed NVML first would leave slices without the taint, and
// the scheduler would give claims GPUs that are not prepared.
func TestADrainPublishesItsTaintBeforeItLetsGo(t *testing.T) {
	b, _ := drainable(t)
	b.taints("gpu-0", "")
	b.busy.Store(true)
	said := &transcript{}
	if err := order(t.Context(), b.options.StateDir, "drain", said); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(said.String(), "taint "+DrainTaint+" is published") {
		t.Errorf("the drain says\n%s", said)
	}
	for _, s := range b.slices() {
		for _, d := range s.Spec.Devices {
			if describe(d.Taints) != DrainTaint+"=:NoSchedule" {
				t.Errorf("%s of a drained node has the taints %q", d.Name, describe(d.Taints))
			}
		}
	}
}

// TestADrainThatIsGivenUpSaysForWhat gives a drain less time than a claim takes.
func TestADrainThatIsGivenUpSaysForWhat(t *testing.T) {
	b, _ := drainable(t)
	b.taints("gpu-0", "")
	b.mustPrepare(b.claim("u1", nil, device{name: "gpu-1"}))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	said := &transcript{}
	ended := make(chan error, 1)
	go func() { ended <- order(ctx, b.options.StateDir, "drain", said) }()
	b.await(func() bool { return strings.Contains(said.String(), "claim default/claim-u1 has gpu-1") }, "the claim that stands is named")
	cancel()
	err := <-ended
	if err == nil || !strings.Contains(err.Error(), "claim default/claim-u1 has gpu-1") {
		t.Errorf("it says %v", err)
	}
	b.taints("gpu-1", "")
}

// drainedOn reports whether a role that is started on the bench's node would leave NVML closed.
func drainedOn(t *testing.T, b *bench) bool {
	t.Helper()
	phase, err := b.options.Drain().Phase()
	if err != nil {
		t.Fatal(err)
	}
	return phase == drain.Drained
}

// TestADrainWaitsForTheNodesOtherRoles has another role of the node with a claim of its own.
func TestADrainWaitsForTheNodesOtherRoles(t *testing.T) {
	b, _ := drainable(t)
	b.taints("gpu-0", "")
	shared := b.options.Drain()
	shared.Files = &filewatch.Watcher{}
	open, stands, ended := make(chan bool, 3), make(chan struct{}), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		ended <- drain.Member{Directory: shared, Role: "compute-domain-plugin"}.Run(ctx, func(ctx context.Context, s *drain.Session) error {
			open <- true
			if !s.Await(ctx, true) {
				return nil
			}
			s.Holds(ctx, "a daemon's claim stands")
			<-stands
			open <- false
			return drain.ErrLetGo
		})
	}()
	if !<-open {
		t.Fatal("the role did not open NVML")
	}
	said, drained := &transcript{}, make(chan error, 1)
	go func() { drained <- order(t.Context(), b.options.StateDir, "drain", said) }()
	named := func() bool { return strings.Contains(said.String(), "compute-domain-plugin: a daemon's claim stands") }
	b.await(named, "the other role's claim is named")
	if drainedOn(t, b) {
		t.Error("the node counts as drained while a role of it holds NVML")
	}
	close(stands)
	if err := <-drained; err != nil {
		t.Fatalf("%v; it said:\n%s", err, said)
	}
	if <-open || !drainedOn(t, b) {
		t.Error("the other role did not let go")
	}
	if err := order(t.Context(), b.options.StateDir, "undrain", io.Discard); err != nil {
		t.Fatal(err)
	}
	if !<-open {
		t.Error("the other role did not come back")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestADrainThatIsGivenUpLeavesEverythingAsItWas(t *testing.T) {
	b, _ := drainable(t)
	b.taints("gpu-0", "")
	b.mustPrepare(b.claim("u1", nil, device{name: "gpu-0"}))
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := order(ctx, b.options.StateDir, "drain", io.Discard); err == nil {
		t.Fatal("drained while a claim stands")
	}
	b.taints("gpu-1", "")
	b.mustPrepare(b.claim("u2", nil, device{name: "gpu-1"}))
	if drainedOn(t, b) {
		t.Error("the node counts as drained")
	}
}

// A role that starts again during the drain must not make the others open NVML, which keeps the driver from being unloaded.
func TestNewDrainsKeepsADrainForALabel(t *testing.T) {
	shared := drain.Directory{Path: t.TempDir(), Files: &filewatch.Watcher{}}
	var pause observed.Value[drain.Pause]
	pause.Set(drain.Pause{Known: true, By: "nvidia.com/gpu.deploy.dcgm=" + paused, Version: "7"})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	changes, err := shared.Changes(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var role sync.WaitGroup
	role.Go(func() { drain.AllRoles(shared, &pause).Run(ctx) })
	phase, err := shared.Phase()
	for ; phase != drain.Draining && err == nil && ctx.Err() == nil; phase, err = shared.Phase() {
		select {
		case <-changes:
		case <-ctx.Done():
		}
	}
	cancel()
	role.Wait()
	if err != nil || phase != drain.Draining {
		t.Fatalf("phase %q, %v", phase, err)
	}
	for _, want := range []drain.Phase{drain.Draining, drain.None} { // the second time nobody has asked for it by a label
		d, err := newDrains(shared)
		if phase, unread := shared.Phase(); err != nil || unread != nil || phase != want || d.isWanted() {
			t.Errorf("phase %q, want %q (%v, %v)", phase, want, err, unread)
		}
		if err := shared.Disown(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

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

func TestDrainIsServedAfterAConnectionThatFailed(t *testing.T) {
	dir, err := os.MkdirTemp("", "drain") // a socket's path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(dir, controlSocket))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var serving sync.WaitGroup
	serving.Go(func() { (&starter{}).serveOrders(ctx, &lacking{Listener: listener}) })
	t.Cleanup(func() { cancel(); _ = listener.Close(); serving.Wait() })
	asked, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	if err := order(asked, dir, "dance", io.Discard); err == nil || !strings.Contains(err.Error(), `order "dance" is not known`) {
		t.Errorf("%v", err)
	}
}

func TestADrainWithoutAPluginSaysSo(t *testing.T) {
	if err := order(t.Context(), t.TempDir(), "drain", io.Discard); err == nil || !strings.Contains(err.Error(), "no gpu-plugin answers") {
		t.Errorf("got %v", err)
	}
}

func TestProgramsThatHaveAGPUOpenAreNamed(t *testing.T) {
	proc := t.TempDir()
	process := func(pid, name string, open ...string) {
		t.Helper()
		fds := filepath.Join(proc, pid, "fd")
		if err := os.MkdirAll(fds, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(proc, pid, "comm"), []byte(name+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		for i, target := range open {
			if err := os.Symlink(target, filepath.Join(fds, string(rune('3'+i)))); err != nil {
				t.Fatal(err)
			}
		}
	}
	process("17", "dcgm-exporter", "/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia0")
	process("18", "sshd", "/dev/null", "socket:[1]")
	process("19", "gpufabric", "/dev/nvidiactl")
	got := openedBy(proc, 19)
	if want := []string{"process 17 (dcgm-exporter) still has /dev/nvidia0, /dev/nvidiactl open"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
