package plugin

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/hardware/nvml"
	"gpufabric.io/drivers/hardware/pci"
	"gpufabric.io/drivers/node/drain"
	"gpufabric.io/drivers/node/filewatch"
	"gpufabric.io/fakes/nvmlstate"
	"gpufabric.io/fakes/profile"
	nvidiasmi "gpufabric.io/fakes/smi"
	"gpufabric.io/fakes/tree"
)

// NVIDIA's driver resets no GPU that a program has open (nvidia-smi(1), --gpu-reset), and the fake's does not either.
func TestFabricIsReadAgainAfterADrain(t *testing.T) {
	p, err := profile.Load("gb200-nvl72")
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	if err := tree.Render(t.Context(), tree.Options{Profile: p, Nodes: 1, Root: root}); err != nil {
		t.Fatal(err)
	}
	reset := func() error {
		var out bytes.Buffer
		return (&nvidiasmi.Command{Root: root, Stdout: &out, Now: time.Now()}).Run([]string{"-i", "0", "--gpu-reset"})
	}
	n := newTestNode(t, fabric{})
	shared := drain.Directory{Path: filepath.Join(n.dir, "drain"), Files: &filewatch.Watcher{}}
	served := make(chan struct{})
	close(served)
	follow := &follower{
		reader: &fabricReader{
			library: nvmlstate.New(root), last: newLastFabric(t.TempDir()), hostDaemon: func() bool { return false },
			board: func(ctx context.Context) (board, error) { return readBoard(ctx, pci.NewFS(filepath.Join(root, "sys"))) },
		},
		fabric: &n.fabric, holdings: &n.holdings, served: served, changed: func(fabric) {},
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- drain.Member{Directory: shared, Role: role}.Run(ctx, follow.run) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	within, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	state := func(good func(fabric) bool, what string) fabric {
		t.Helper()
		got, ok := n.fabric.Await(within, good)
		if !ok {
			t.Fatalf("%s: %+v", what, got)
		}
		return got
	}
	before := state(func(f fabric) bool { return f.state == nvml.Joined }, "the node has not joined its fabric")
	if err := reset(); err == nil {
		t.Error("the GPU was reset while the role has NVML open")
	}
	n.daemonIs(true)
	claim := channelClaim("user", v1beta1.AllocationModeSingle)
	if result := n.prepare(t, claim); result.Err != nil {
		t.Fatal(result.Err)
	}
	changes, err := shared.Changes(within)
	if err != nil {
		t.Fatal(err)
	}
	if err := shared.Set(drain.Draining); err != nil {
		t.Fatal(err)
	}
	rested := state(func(f fabric) bool { return f.problemKind == problemDrained }, "the fabric is still read")
	if rested.clique != before.clique || rested.taint() != problemDrained {
		t.Errorf("drained: %+v, before: %+v", rested, before)
	}
	if _, decided := cliqueLabel(rested); decided {
		t.Error("the node's clique label is changed by a drain")
	}
	holders := func(want string) {
		t.Helper()
		for {
			all, err := shared.Blockers()
			if err != nil {
				t.Fatal(err)
			}
			if len(all) == 0 && want == "" || len(all) == 1 && want != "" && strings.Contains(all[0].String(), want) {
				return
			}
			select {
			case <-changes:
			case <-within.Done():
				t.Fatalf("held by %v, want %q", all, want)
			}
		}
	}
	holders("1 claims for channels")
	second := daemonClaim(system)
	if result := n.prepare(t, second); result.Err == nil || !strings.Contains(result.Err.Error(), "gpufabric undrain") {
		t.Errorf("a claim on a node that is being drained: %v", result.Err)
	}
	n.unprepare(t, claim)
	holders("")
	if err := reset(); err != nil {
		t.Errorf("the GPU of a drained node could not be reset: %v", err)
	}
	if err := shared.Set(drain.None); err != nil {
		t.Fatal(err)
	}
	state(func(f fabric) bool { return f.state == nvml.Joined && f.problem == "" }, "the fabric is not read again")
}
