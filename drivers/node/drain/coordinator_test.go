package drain

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes/fake"

	"gpufabric.io/drivers/node/filewatch"
	"gpufabric.io/drivers/node/observed"
	"gpufabric.io/drivers/node/orders"
)

// A role that starts again during the drain must not make the others open NVML, which keeps the driver from being unloaded.
func TestNewCoordinatorKeepsADrainForALabel(t *testing.T) {
	shared := directory(t)
	var pause observed.Value[Pause]
	pause.Set(Pause{Known: true, By: dcgm, Version: "7"})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	changes, err := shared.Changes(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var role sync.WaitGroup
	role.Go(func() { AllRoles(shared, &pause).Run(ctx) })
	phase, err := shared.Phase()
	for ; phase != Draining && err == nil && ctx.Err() == nil; phase, err = shared.Phase() {
		select {
		case <-changes:
		case <-ctx.Done():
		}
	}
	cancel()
	role.Wait()
	if err != nil || phase != Draining {
		t.Fatalf("phase %q, %v", phase, err)
	}
	for _, want := range []Phase{Draining, None} { // the second time no label requests it
		d, err := NewCoordinator(shared, nil)
		if phase, unread := shared.Phase(); err != nil || unread != nil || phase != want || d.Wanted() {
			t.Errorf("phase %q, want %q (%v, %v)", phase, want, err, unread)
		}
		if err := shared.Disown(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// node plays the role that coordinates the drain: a pod has a GPU until ended is closed.
type node struct {
	coordinator *Coordinator
	ended       chan struct{}
	offered     chan bool
}

func (n *node) Started() error { return nil }

func (n *node) Quiesce(ctx context.Context, report orders.Report) (resume func(), err error) {
	n.offered <- false
	resume = func() { n.offered <- true }
	report("waiting: pod default/train has a GPU")
	select {
	case <-n.ended:
		return resume, nil
	case <-ctx.Done():
		return resume, context.Cause(ctx)
	}
}

func (n *node) CloseNVML(orders.Report) {}

func (n *node) Report(string, string) {}

// coordinated is a node whose coordinating role opens NVML whenever it may.
func coordinated(t *testing.T) (n *node, stateDir string) {
	t.Helper()
	stateDir = filepath.Join(t.TempDir(), "gpu-plugin")
	shared := Directory{Path: SharedDirectory(stateDir), Files: &filewatch.Watcher{}}
	n = &node{ended: make(chan struct{}), offered: make(chan bool, 9)}
	var err error
	if n.coordinator, err = NewCoordinator(shared, n); err != nil {
		t.Fatal(err)
	}
	served := shared.Files.Entries(t.Context(), stateDir, controlSocket)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { n.coordinator.Run(ctx, fake.NewClientset(), "n1", stateDir) })
	wg.Go(func() {
		for {
			if _, wanted := n.coordinator.wanted.Await(ctx, func(wanted bool) bool { return wanted }); !wanted {
				return
			}
			_ = n.coordinator.AwaitUndrain(ctx) // or ctx has ended
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	for deadline := time.After(time.Minute); ; {
		if _, err := os.Stat(filepath.Join(stateDir, controlSocket)); err == nil {
			return n, stateDir
		}
		select {
		case <-served:
		case <-deadline:
			t.Fatal("no orders are served")
		}
	}
}

func TestCommandDrainsTheNodeOfACoordinator(t *testing.T) {
	n, stateDir := coordinated(t)
	if err := order(t, Command, "--state-dir", stateDir, "--timeout", "50ms"); err == nil || !strings.Contains(err.Error(), "given up") {
		t.Errorf("a drain without time for its claim: %v", err)
	}
	if offered := []bool{<-n.offered, <-n.offered}; offered[0] || !offered[1] {
		t.Errorf("the GPUs of a drain that is given up are offered: %v", offered)
	}
	shared := n.coordinator.Directory
	await(t, shared, None)
	close(n.ended)
	for range 2 { // the second time nothing has to end
		if err := order(t, Command, "--state-dir", stateDir); err != nil {
			t.Fatal(err)
		}
		is(t, shared, "drained", Drained, "")
	}
	if !n.coordinator.Wanted() {
		t.Error("the role of a drained node may open NVML")
	}
	if again, err := NewCoordinator(shared, n); err != nil || !again.Wanted() {
		t.Errorf("the role of a drained node may open NVML when it is started again (%v)", err)
	}
	if err := order(t, UndrainCommand, "--state-dir", stateDir); err != nil {
		t.Fatal(err)
	}
	is(t, shared, "undrained", None, "")
	if n.coordinator.Wanted() {
		t.Error("the role of a node that is not drained may not open NVML")
	}
}

// await waits until a node's drain is in a phase.
func await(t *testing.T, d Directory, want Phase) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	changes, err := d.Changes(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for {
		phase, err := d.Phase()
		if phase == want && err == nil {
			return
		}
		select {
		case <-changes:
		case <-ctx.Done():
			t.Fatalf("phase %q (%v), want %q", phase, err, want)
		}
	}
}
