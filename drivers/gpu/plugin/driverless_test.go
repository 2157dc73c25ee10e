package plugin

import (
	"sync/atomic"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpufabric.io/drivers/gpu/gputest"
)

// unloaded is a machine whose driver is not loaded while away is set.
type unloaded struct {
	*gputest.Machine
	away atomic.Bool
}

func (m *unloaded) Init() nvml.Return {
	if m.away.Load() {
		return nvml.ERROR_DRIVER_NOT_LOADED
	}
	return m.Machine.Init()
}

// A node's pods must be able to end while it has no driver: otherwise neither the node can be drained nor a driver container, which evicts
// them first, install a driver.
func TestUnprepareReleasesClaimsWhileThereIsNoDriver(t *testing.T) {
	t.Parallel() // it waits
	b := newBench(t, gputest.New(t, 2))
	whole, mig := b.claim("u1", nil, device{name: "gpu-0"}), b.claim("u2", nil, device{name: "gpu-1-mig-1g5gb-19-3"})
	b.mustPrepare(whole)
	b.mustPrepare(mig)
	b.stop()
	lib := &unloaded{Machine: b.machine}
	lib.away.Store(true)
	b.lib = lib
	b.start()
	if b.running().serving.Load() != nil {
		t.Fatal("GPUs are offered without a driver")
	}
	for _, c := range []string{"u1", "u2"} {
		if problem := b.unprepare(b.get(c)); problem != "" {
			t.Errorf("unprepare %s without a driver: %s", c, problem)
		}
	}
	b.refused(b.claim("u3", nil, device{name: "gpu-0"}), "waiting for the NVIDIA driver")
	t.Log("attacker sees: nothing; its claims are released")
	lib.away.Store(false)
	b.await(func() bool { return b.running().serving.Load() != nil }, "the driver is there")
	if left := b.machine.GPUs[1].Instances(); len(left) > 0 {
		t.Errorf("instances of a claim that ended without a driver: %v", left)
	}
	b.mustPrepare(b.claim("u4", nil, device{name: "gpu-1"}))
}
