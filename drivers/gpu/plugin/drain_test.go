package plugin

import (
	"context"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"gpufabric.io/drivers/node/drain"
	"gpufabric.io/drivers/node/filewatch"
	"gpufabric.io/drivers/node/host"
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

// order runs gpufabric drain or undrain for the role with a state directory.
func order(ctx context.Context, stateDir, what string, out io.Writer) error {
	h := host.Host{Stdout: out, Stderr: io.Discard}
	cmd := map[string]func(host.Host) *cobra.Command{"drain": drain.Command, "undrain": drain.UndrainCommand}[what](h)
	cmd.SetArgs([]string{"--state-dir", stateDir})
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	return cmd.ExecuteContext(ctx)
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
	printed, ended := &transcript{}, make(chan error, 1)
	go func() { ended <- order(t.Context(), b.options.StateDir, "drain", printed) }()
	b.taints("gpu-1", drain.Taint+"=:NoSchedule")
	b.await(func() bool { return strings.Contains(printed.String(), "claim default/claim-u1 has gpu-0") }, "the claim that stands is named")
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
		t.Fatalf("the drain does not end; it printed:\n%s", printed)
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
	printed := &transcript{}
	if err := order(t.Context(), b.options.StateDir, "drain", printed); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(printed.String(), "taint "+drain.Taint+" is published") {
		t.Errorf("the drain says\n%s", printed)
	}
	for _, s := range b.slices() {
		for _, d := range s.Spec.Devices {
			if describe(d.Taints) != drain.Taint+"=:NoSchedule" {
				t.Errorf("%s of a drained node has the taints %q", d.Name, describe(d.Taints))
			}
		}
	}
}

// TestDrainNamesItsReasonWhenGivenUp gives a drain less time than a claim takes.
func TestDrainNamesItsReasonWhenGivenUp(t *testing.T) {
	b, _ := drainable(t)
	b.taints("gpu-0", "")
	b.mustPrepare(b.claim("u1", nil, device{name: "gpu-1"}))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	printed := &transcript{}
	ended := make(chan error, 1)
	go func() { ended <- order(ctx, b.options.StateDir, "drain", printed) }()
	b.await(func() bool { return strings.Contains(printed.String(), "claim default/claim-u1 has gpu-1") }, "the claim that stands is named")
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
			s.Record(ctx, "a daemon's claim stands")
			<-stands
			open <- false
			return drain.ErrDrained
		})
	}()
	if !<-open {
		t.Fatal("the role did not open NVML")
	}
	printed, drained := &transcript{}, make(chan error, 1)
	go func() { drained <- order(t.Context(), b.options.StateDir, "drain", printed) }()
	named := func() bool {
		return strings.Contains(printed.String(), "compute-domain-plugin: a daemon's claim stands")
	}
	b.await(named, "the other role's claim is named")
	if drainedOn(t, b) {
		t.Error("the node counts as drained while a role of it holds NVML")
	}
	close(stands)
	if err := <-drained; err != nil {
		t.Fatalf("%v; it printed:\n%s", err, printed)
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
