package plugin

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/gpu/gputest"
	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/gpu/partition"
)

// administered makes instances as an administrator before the plugin starts.
func administered(t *testing.T, g *gputest.GPU, profile, start int) {
	t.Helper()
	gpu := read(t, g)
	if err := partition.SetMode(gpu, true); err != nil {
		t.Fatal(err)
	}
	p, ok := gpu.MIG.Profile(profile)
	if !ok {
		t.Fatalf("no profile %d", profile)
	}
	for _, at := range p.Placements {
		if at.Start == start {
			if _, err := partition.Create(gpu, p, at); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func read(t *testing.T, g *gputest.GPU) *inventory.GPU {
	t.Helper()
	m := gputest.New(t, 0)
	m.GPUs = []*gputest.GPU{g}
	n, err := inventory.Reader{NVML: m, Locate: func(id string) (inventory.Place, error) { return inventory.Place{BusID: id}, nil }}.Read()
	if err != nil {
		t.Fatal(err)
	}
	return n.GPUs[0]
}

func TestPrepareMakesMIGDeviceAtItsPlacement(t *testing.T) {
	b := newBench(t, gputest.New(t, 2))
	g := b.machine.GPUs[1]
	c := b.claim("u1", nil, device{name: "gpu-1-mig-1g5gb-19-3"}, device{name: "gpu-1-mig-3g20gb-9-4"})
	ids := b.mustPrepare(c)
	if diff := cmp.Diff([]string{"19@3", "9@4"}, g.Instances()); diff != "" {
		t.Errorf("instances (-want +got):\n%s", diff)
	}
	// GPU 1's capabilities start at minor 3+135; instances 1 and 2 have nine each.
	if got, want := nodes(b.edits(c, ids[0])),
		"nvidia-caps/nvidia-cap147 nvidia-caps/nvidia-cap148 nvidia-uvm nvidia1 nvidiactl"; got != want {
		t.Errorf("first device's nodes %s, want %s", got, want)
	}
	if got, want := nodes(b.edits(c, ids[1])), "nvidia-caps/nvidia-cap156 nvidia-caps/nvidia-cap157 nvidia1"; got != want {
		t.Errorf("second device's nodes %s, want %s", got, want)
	}
	if problem := b.unprepare(c); problem != "" {
		t.Error(problem)
	}
	if left := g.Instances(); len(left) > 0 {
		t.Errorf("left after unprepare: %v", left)
	}
	// The whole GPU can be given out again: MIG mode is switched off.
	whole := b.claim("u2", nil, device{name: "gpu-1"})
	b.mustPrepare(whole)
	if mode, _, _ := g.GetMigMode(); mode != 0 {
		t.Error("the whole GPU was handed out in MIG mode")
	}
}

func TestPrepareRemovesIncompleteMIGDevice(t *testing.T) {
	b := newBench(t, gputest.New(t, 1))
	g := b.machine.GPUs[0]
	g.FailCompute = 1
	c := b.claim("u1", nil, device{name: "gpu-0-mig-2g10gb-14-2"})
	if _, problem := b.prepare(c); !strings.Contains(problem, "compute instance") {
		t.Errorf("the error does not say what failed: %s", problem)
	}
	if left := g.Instances(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	b.mustPrepare(c)
	if diff := cmp.Diff([]string{"14@2"}, g.Instances()); diff != "" {
		t.Errorf("the second try (-want +got):\n%s", diff)
	}
}

func TestPrepareTakesOverInstanceMadeBeforeCrash(t *testing.T) {
	b := newBench(t, gputest.New(t, 1))
	g := b.machine.GPUs[0]
	c := b.claim("u1", nil, device{name: "gpu-0-mig-1g5gb-19-0"})
	b.mustPrepare(c)
	b.stop()
	// As a crash between the announcement and the record leaves it: no CDI spec, and no compute instance yet.
	if err := os.Remove(filepath.Join(b.options.CDIRoot, "k8s.gpu.nvidia.com-claim_u1.json")); err != nil {
		t.Fatal(err)
	}
	g.DropCompute()
	b.start()
	ids := b.mustPrepare(c)
	if diff := cmp.Diff([]string{"19@0"}, g.Instances()); diff != "" {
		t.Errorf("instances (-want +got):\n%s", diff)
	}
	if got := nodes(b.edits(c, ids...)); !strings.Contains(got, "nvidia-cap12 nvidia-caps/nvidia-cap13") {
		t.Errorf("device nodes %s", got)
	}
	if problem := b.unprepare(c); problem != "" {
		t.Error(problem)
	}
	if left := g.Instances(); len(left) > 0 {
		t.Errorf("left after unprepare: %v", left)
	}
}

func TestRebootMakesMIGInstanceAgain(t *testing.T) {
	b := newBench(t, gputest.New(t, 1))
	c := b.claim("u1", nil, device{name: "gpu-0-mig-1g5gb-19-5"})
	b.mustPrepare(c)
	b.stop()
	b.machine.Boot(t, "boot-2")
	b.start()
	b.mustPrepare(c)
	if diff := cmp.Diff([]string{"19@5"}, b.machine.GPUs[0].Instances()); diff != "" {
		t.Errorf("instances (-want +got):\n%s", diff)
	}
}

func TestPluginOffersAndKeepsInstancesOfAdministrator(t *testing.T) {
	m := gputest.New(t, 2)
	administered(t, m.GPUs[0], 9, 0)
	administered(t, m.GPUs[0], 19, 4)
	b := newBench(t, m)
	var got []string
	for _, s := range b.slices() {
		for _, d := range s.Spec.Devices {
			if strings.HasPrefix(d.Name, "gpu-0") {
				got = append(got, d.Name)
			}
		}
	}
	if diff := cmp.Diff([]string{"gpu-0-mig-1g5gb-19-4", "gpu-0-mig-3g20gb-9-0"}, sorted(got)); diff != "" {
		t.Errorf("offered of GPU 0 (-want +got):\n%s", diff)
	}
	c := b.claim("u1", nil, device{name: "gpu-0-mig-3g20gb-9-0"})
	b.mustPrepare(c)
	if problem := b.unprepare(c); problem != "" {
		t.Error(problem)
	}
	if diff := cmp.Diff([]string{"9@0", "19@4"}, m.GPUs[0].Instances()); diff != "" {
		t.Errorf("instances (-want +got):\n%s", diff)
	}
}

func TestPluginRemovesUnknownInstancesOnRequest(t *testing.T) {
	m := gputest.New(t, 2)
	administered(t, m.GPUs[0], 9, 0)
	administered(t, m.GPUs[0], 19, 4)
	b := newBench(t, m)
	b.mustPrepare(b.claim("u1", nil, device{name: "gpu-0-mig-3g20gb-9-0"}))
	b.event("Node", "MIGInstancesFound")
	b.stop()
	b.options.UnknownMIG = "remove"
	b.start()
	// The instance that was not made for the claim, but that it holds, belongs to a running pod.
	if diff := cmp.Diff([]string{"9@0"}, m.GPUs[0].Instances()); diff != "" {
		t.Errorf("instances (-want +got):\n%s", diff)
	}
	// An administrator who makes instances after the start is aware of the driver.
	b.layout("training", twoLayouts, "cut")
	await(t, b.reports, v1alpha1.MIGLayoutApplied, "1 of 1 GPUs")
	if diff := cmp.Diff([]string{"9@0", "19@4", "19@5"}, sortedAs(m.GPUs[1].Instances(), "9@0", "19@4", "19@5")); diff != "" {
		t.Errorf("instances of the layout (-want +got):\n%s", diff)
	}
}

// A GPU of which a claim has a part is not offered whole just because GPUs are no longer divided.
func TestMIGInstanceKeepsGPUWhenFormsChange(t *testing.T) {
	m := gputest.New(t, 1)
	b := newBench(t, m)
	holder := b.claim("u1", nil, device{name: "gpu-0-mig-1g5gb-19-3"})
	b.mustPrepare(holder)
	b.stop()
	b.options.MIG = "static"
	b.start()
	b.await(func() bool { return b.running().serving.Load() != nil }, "the role serves")
	pool := b.running().serving.Load().kind.Hardware().Pool
	if pool.Device("gpu-0") != nil || pool.Device("gpu-0-mig-1g5gb-19-3") == nil {
		t.Errorf("offered are %d devices, want the claim's alone", len(pool.Devices()))
	}
	if problem := b.unprepare(holder); problem != "" {
		t.Fatal(problem)
	}
	b.taints("gpu-0", "")
	b.mustPrepare(b.claim("u2", nil, device{name: "gpu-0"}))
}

// While a claim's record is unreadable, the owner of an instance is unknown.
func TestUnknownInstancesStayWhereARecordWasSetAside(t *testing.T) {
	m := gputest.New(t, 1)
	b := newBench(t, m)
	b.mustPrepare(b.claim("u1", nil, device{name: "gpu-0-mig-3g20gb-9-0"}))
	b.stop()
	if err := os.WriteFile(filepath.Join(b.options.StateDir, "claims/u1.claim"), []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.options.UnknownMIG = "remove"
	b.start()
	if diff := cmp.Diff([]string{"9@0"}, m.GPUs[0].Instances()); diff != "" {
		t.Errorf("a running pod's instances (-want +got):\n%s", diff)
	}
	b.event("Node", "MIGInstancesKept")
}

// Where GPUs are not divided on demand, a MIG device is only known once it was seen. Its holder must still be found after a
// restart, before another claim, a MIGLayout or a device plugin can take the GPU.
func TestMIGInstanceStaysAllocatedAfterRestart(t *testing.T) {
	m := gputest.New(t, 2)
	administered(t, m.GPUs[1], 14, 0)
	b := newBench(t, m, func(o *Options) { o.MIG = "static" })
	holder := b.claim("u1", nil, device{name: "gpu-1-mig-2g10gb-14-0"})
	b.mustPrepare(holder)
	b.stop()
	b.start()
	b.refused(b.claim("u2", nil, device{name: "gpu-1-mig-2g10gb-14-0"}), "is held by claim default/claim-u1")
	b.layout("training", twoLayouts, "cut")
	await(t, b.reports, v1alpha1.MIGLayoutWaiting, "claim default/claim-u1")
	if diff := cmp.Diff([]string{"14@0"}, m.GPUs[1].Instances()); diff != "" {
		t.Errorf("instances (-want +got):\n%s", diff)
	}
}

func TestPluginIgnoresInstanceThatAppearsLater(t *testing.T) {
	b := newBench(t, gputest.New(t, 1))
	administered(t, b.machine.GPUs[0], 19, 0)
	for _, name := range []string{"gpu-0-mig-1g5gb-19-0", "gpu-0-mig-2g10gb-14-0", "gpu-0", "gpu-0-shared"} {
		c := b.claim("u-"+name, nil, device{name: name})
		_, problem := b.prepare(c)
		if !strings.Contains(problem, "nvidia-smi mig") {
			t.Errorf("%s: the refusal does not say what to do: %q", name, problem)
		}
		if problem := b.unprepare(c); problem != "" {
			t.Error(problem)
		}
	}
	if diff := cmp.Diff([]string{"19@0"}, b.machine.GPUs[0].Instances()); diff != "" {
		t.Errorf("instances (-want +got):\n%s", diff)
	}
}

func TestUnprepareRemovesInstanceWhenItsProcessEnds(t *testing.T) {
	b := newBench(t, gputest.New(t, 1))
	g := b.machine.GPUs[0]
	c := b.claim("u1", nil, device{name: "gpu-0-mig-1g5gb-19-0"})
	b.mustPrepare(c)
	g.Busy = 3
	if problem := b.unprepare(c); problem != "" {
		t.Error(problem)
	}
	if left := g.Instances(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestMIGOperationDelaysOnlyItsGPU(t *testing.T) {
	m := gputest.New(t, 2)
	begun, proceed := make(chan struct{}, 10), make(chan struct{})
	m.GPUs[0].BeforeMIG = func() { begun <- struct{}{}; <-proceed }
	b := newBench(t, m)
	b.mustPrepare(b.claim("warm", nil, device{name: "gpu-1-mig-1g5gb-19-6"}))
	slow := make(chan string, 1)
	c := b.claim("slow", nil, device{name: "gpu-0-mig-1g5gb-19-0"})
	go func() {
		_, problem := b.prepare(c)
		slow <- problem
	}()
	<-begun
	for _, name := range []string{"gpu-1-mig-1g5gb-19-0", "gpu-1-mig-1g5gb-19-1"} {
		b.mustPrepare(b.claim(name, nil, device{name: name}))
	}
	close(proceed)
	if problem := <-slow; problem != "" {
		t.Error(problem)
	}
}
