package plugin

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"gpufabric.io/drivers/gpu/gputest"
	"gpufabric.io/drivers/gpu/programs"
	"gpufabric.io/drivers/gpu/sharing"
)

// loseSpec removes a claim's CDI spec, and waits until it is there again.
func (b *bench) loseSpec(c *resourceapi.ResourceClaim) {
	b.Helper()
	path := filepath.Join(b.options.CDIRoot, "k8s.gpu.nvidia.com-claim_"+string(c.UID)+".json")
	if err := os.Remove(path); err != nil {
		b.Fatal(err)
	}
	b.await(func() bool {
		_, err := os.Stat(path)
		return err == nil
	}, "the spec of "+c.Name+" is written again")
}

// Clients of the daemon run on: it is neither started again nor told anything.
func TestLostSpecIsWrittenAgainWithoutChangesToTheMPSDaemon(t *testing.T) {
	m := gputest.New(t, 1)
	commands := mpsControl(t, m)
	b := newBench(t, m, func(o *Options) { o.MPSKeeper = true })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	runner := programs.Runner{Driver: b.options.Driver().Locate, Enter: plainly}
	go func() { ended <- sharing.Keeper{MPS: &sharing.MPS{Dir: b.options.MPSDir, Programs: runner}}.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	b.await(func() bool {
		_, err := os.Stat(filepath.Join(b.options.MPSDir, "keeper.sock"))
		return err == nil
	}, "the keeper listens")
	c := b.claim("u1", []string{gpuConfig(`{"strategy":"MPS"}`)}, device{name: "gpu-0"})
	b.mustPrepare(c)
	_ = commands()
	b.loseSpec(c)
	if got := commands(); got != "" {
		t.Errorf("the daemon was told %q", got)
	}
	if problem := b.unprepare(c); problem != "" {
		t.Error(problem)
	}
}

// The virtual machine runs on, and its GPU stays bound.
func TestLostSpecIsWrittenAgainWithoutChangesToAVirtualMachinesGPU(t *testing.T) {
	b, k := passBench(t, vfioForms, false)
	b.awaitNames(passedName, "gpu-vfio-0000-5e-00-0")
	c := b.claim("v1", nil, device{name: passedName})
	b.mustPrepare(c)
	closeIt := k.Open("qemu-kvm", passedGPU)
	defer closeIt()
	writes := len(k.Writes)
	b.loseSpec(c)
	if len(k.Writes) > writes || k.Driver(passedGPU) != "vfio-pci" {
		t.Errorf("the driver is %s after writes %v", k.Driver(passedGPU), k.Writes[writes:])
	}
}

// A MIG instance with processes stays as it is.
func TestLostSpecIsWrittenAgainWithTheSameMIGInstance(t *testing.T) {
	b := newBench(t, gputest.New(t, 1))
	c := b.claim("u1", nil, device{name: "gpu-0-mig-1g5gb-19-0"})
	ids := b.mustPrepare(c)
	before := b.edits(c, ids...)
	b.loseSpec(c)
	if after := b.edits(c, ids...); nodes(after) != nodes(before) {
		t.Errorf("device nodes\n%s\nwere\n%s", nodes(after), nodes(before))
	}
}
