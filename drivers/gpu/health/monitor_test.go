package health

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/go-logr/logr/funcr"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/gputest"
	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/node/atomicfile"
)

// bench is a Monitor with a settable clock, and its listener.
type bench struct {
	*follower
	machine  *gputest.Machine
	node     *inventory.Node
	now      time.Time
	reported []Fault
	healed   []Fault
	hearing  func() // called with each event, if set
}

func newBench(t *testing.T, path, boot string) *bench {
	t.Helper()
	return benchOn(t, gputest.New(t, 2), path, boot)
}

func benchOn(t *testing.T, machine *gputest.Machine, path, boot string) *bench {
	t.Helper()
	b := &bench{machine: machine, now: time.Unix(1_800_000_000, 0)}
	n, err := inventory.Reader{NVML: b.machine, Locate: func(id string) (inventory.Place, error) {
		return inventory.Place{BusID: id},
			nil
	}}.Read()
	if err != nil {
		t.Fatal(err)
	}
	b.node = n
	m, err := New(Options{
		NVML: b.machine, Path: path, Boot: boot, Now: func() time.Time { return b.now }, Node: func() *inventory.Node { return b.node },
	})
	if err != nil {
		t.Fatal(err)
	}
	b.follower = m.follow(b)
	return b
}

func (b *bench) Happened(_ context.Context, f Fault, _ bool) {
	if b.hearing != nil {
		b.hearing()
	}
	b.reported = append(b.reported, f)
}

func (b *bench) Healed(_ context.Context, f Fault) { b.healed = append(b.healed, f) }

func (b *bench) Checked(context.Context) {}

func (b *bench) xid(t *testing.T, code uint64) {
	b.event(t.Context(), nvml.EventData{Device: b.machine.GPUs[0], EventType: nvml.EventTypeXidCriticalError, EventData: code,
		GpuInstanceId: wholeGPU, ComputeInstanceId: wholeGPU})
}

func TestMonitorHealsFaults(t *testing.T) {
	for name, c := range map[string]struct {
		xid      uint64
		after    time.Duration
		recovery uint32
		boot     string
		want     bool
	}{
		"a fatal one heals when the GPU needs nothing more":    {xid: 119, after: settle, want: true},
		"not at once: the driver works the recovery out later": {xid: 119, after: time.Second},
		"not while the GPU needs a reset": {xid: 119, after: time.Hour,
			recovery: uint32(nvml.GPU_RECOVERY_ACTION_GPU_RESET)},
		"not by a reboot that did not help": {xid: 119, boot: "b2",
			recovery: uint32(nvml.GPU_RECOVERY_ACTION_NODE_REBOOT)},
		"by a reboot that did":                          {xid: 119, boot: "b2", want: true},
		"a warning heals when it was quiet":             {xid: 63, after: quiet, want: true},
		"not before":                                    {xid: 63, after: quiet - time.Second},
		"a warning heals by a reboot":                   {xid: 63, boot: "b2", want: true},
		"an unknown error is fatal, and heals like one": {xid: 999, after: settle, want: true},
		"an unknown error stands while the GPU wants the bus reset": {xid: 999, after: time.Hour,
			recovery: uint32(nvml.GPU_RECOVERY_ACTION_BUS_RESET)},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "faults.json")
			b := newBench(t, path, "b1")
			b.xid(t, c.xid)
			if len(b.Faults()) != 1 {
				t.Fatalf("faults %v", b.Faults())
			}
			now := b.now
			if c.boot != "" {
				b = newBench(t, path, c.boot) // reads the kept faults
			}
			b.now = now.Add(c.after)
			b.machine.GPUs[0].SetRecovery(c.recovery)
			b.heal(t.Context())
			if healed := len(b.Faults()) == 0; healed != c.want {
				t.Errorf("healed %t, want %t", healed, c.want)
			}
			if again := newBench(t, path, c.boot); len(again.Faults()) != len(b.Faults()) {
				t.Errorf("kept on disk: %v, standing: %v", again.Faults(), b.Faults())
			}
		})
	}
}

func TestMonitorHealsWithoutARecoveryAction(t *testing.T) {
	for name, c := range map[string]struct {
		xid  uint64
		lost bool
		want bool
	}{
		"a GPU that was lost and answers again was reset":   {xid: 79, want: true},
		"not one that does not answer":                      {xid: 79, lost: true},
		"nothing shows that one with another error was too": {xid: 119},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, filepath.Join(t.TempDir(), "faults.json"), "b1")
			b.machine.GPUs[0].GetFieldValuesFunc = func([]nvml.FieldValue) nvml.Return { return nvml.ERROR_NOT_SUPPORTED }
			b.machine.GPUs[0].SetLost(true)
			b.xid(t, c.xid)
			b.machine.GPUs[0].SetLost(c.lost)
			b.now = b.now.Add(settle)
			b.heal(t.Context())
			if healed := len(b.Faults()) == 0; healed != c.want {
				t.Errorf("healed %t, want %t", healed, c.want)
			}
		})
	}
}

func TestMonitorIgnoresMistakesOfApplications(t *testing.T) {
	b := newBench(t, filepath.Join(t.TempDir(), "faults.json"), "b1")
	b.xid(t, 31)
	if len(b.Faults()) != 0 || len(b.reported) != 1 || b.reported[0].Fatal {
		t.Errorf("faults %v, reported %v", b.Faults(), b.reported)
	}
}

// Events on claims need the API server, which may hang. The kubelet's view of the GPU must not hang with it.
func TestMonitorTaintsBeforeItNotifiesHolders(t *testing.T) {
	b := newBench(t, filepath.Join(t.TempDir(), "faults.json"), "boot-1")
	_, changed := b.Watch()
	var order []string
	b.hearing = func() {
		select {
		case <-changed:
			order = append(order, "shown")
		default:
		}
		order = append(order, "reported")
	}
	b.xid(t, 119)
	if got := strings.Join(order, ", "); got != "shown, reported" {
		t.Errorf("the fault was %s; want it shown, then reported", got)
	}
}

func TestMonitorCountsARepeatedFaultOnce(t *testing.T) {
	b := newBench(t, filepath.Join(t.TempDir(), "faults.json"), "b1")
	b.xid(t, 48)
	first := b.now
	b.now = b.now.Add(time.Minute)
	b.xid(t, 48)
	if f := b.Faults(); len(f) != 1 || !f[0].Since.Equal(first) || !f[0].Last.Equal(b.now) {
		t.Errorf("faults %v", f)
	}
}

// Events of memory errors have no number, so a storm of corrected errors and an uncorrected one differ only in severity.
func TestMonitorKeepsAFatalFaultBesideAWarning(t *testing.T) {
	b := newBench(t, filepath.Join(t.TempDir(), "faults.json"), "boot-1")
	for _, kind := range []uint64{nvml.EventTypeSingleBitEccErrorStorm, nvml.EventTypeDoubleBitEccError} {
		b.event(t.Context(), nvml.EventData{Device: b.machine.GPUs[0], EventType: kind, GpuInstanceId: wholeGPU, ComputeInstanceId: wholeGPU})
	}
	taints := Taints(b.Faults(), []*devices.Device{{Form: devices.Whole, GPU: b.node.GPUs[0],
		API: resourceapi.Device{Name: "gpu-0"}}})["gpu-0"]
	if len(taints) != 1 || taints[0].Effect != resourceapi.DeviceTaintEffectNoSchedule {
		t.Errorf("taints %+v, want one that keeps new claims away", taints)
	}
	// The warning ends with time, the fatal fault only when the GPU reports that it is healthy.
	b.machine.GPUs[0].SetRecovery(uint32(nvml.GPU_RECOVERY_ACTION_GPU_RESET))
	b.now = b.now.Add(quiet)
	b.heal(t.Context())
	if left := b.Faults(); len(left) != 1 || !left[0].Fatal {
		t.Errorf("left %+v, want the fatal one", left)
	}
}

func TestMonitorSparesNeighboursOfAMIGInstance(t *testing.T) {
	b := newBench(t, filepath.Join(t.TempDir(), "faults.json"), "b1")
	f := Fault{GPU: b.node.GPUs[0].UUID, Kind: ECC, Code: 95, Fatal: true, Placement: &inventory.Placement{Start: 4, Size: 4}, Since: b.now}
	taints := Taints([]Fault{f}, devices.NewPool(b.node, devices.Options{Forms: devices.Forms{Mode: devices.ModeFlexible}}).Devices())
	for name, want := range map[string]bool{
		"gpu-0": true, "gpu-0-shared": true, "gpu-0-mig-3g20gb-9-4": true, "gpu-0-mig-1g5gb-19-6": true, "gpu-0-mig-7g40gb-0-0": true,
		"gpu-0-mig-3g20gb-9-0": false, "gpu-0-mig-1g5gb-19-3": false, "gpu-1": false,
	} {
		if got := len(taints[name]) == 1; got != want {
			t.Errorf("%s tainted %t, want %t", name, got, want)
		}
	}
}

// The unreadable file may have held a fault of any GPU. So each stays tainted, across restarts too, until an administrator has checked them
// and deletes the file.
func TestFaultsThatCannotBeReadTaintEveryGPUUntilSomebodyClearsThem(t *testing.T) {
	for name, raw := range map[string]string{
		"cut": `{"kind":"gpufabric-faults","version":1,"value":{"faults":[{"gpu":"GPU-`, "empty": "",
		"changed": `{"kind":"gpufabric-faults","version":1,"sha256":"00","value":{"faults":[]}}`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, filepath.Join(dir, "faults.json"), []byte(raw))
			machine := gputest.New(t, 2)
			n, err := inventory.Reader{NVML: machine, Locate: func(id string) (inventory.Place, error) {
				return inventory.Place{BusID: id},
					nil
			}}.Read()
			if err != nil {
				t.Fatal(err)
			}
			options := Options{
				NVML: machine, Path: filepath.Join(dir, "faults.json"), Now: time.Now, Node: func() *inventory.Node { return n },
			}
			heard := &bench{}
			var m *follower
			for range 2 { // a restart forgets nothing
				made, err := New(options)
				if err == nil || !strings.Contains(err.Error(), "are deleted") {
					t.Fatalf("error %v, want it to say what to delete", err)
				}
				m = made.follow(heard)
				m.heal(t.Context())
				m.readAgain(t.Context())
				taints := Taints(m.Faults(), devices.NewPool(n, devices.Options{}).Devices())
				for _, device := range []string{"gpu-0", "gpu-1"} {
					if got := taints[device]; len(got) != 1 || got[0].Key != devices.Driver+"/record" || got[0].Effect != "NoSchedule" {
						t.Errorf("%s has the taints %v", device, got)
					}
				}
			}
			if len(heard.healed) > 0 {
				t.Errorf("%d faults healed by themselves", len(heard.healed))
			}
			faults, changed := m.Watch()
			if len(faults) != 2 {
				t.Errorf("faults %v, want one for each GPU", faults)
			}
			if err := os.RemoveAll(filepath.Join(dir, "unreadable")); err != nil {
				t.Fatal(err)
			}
			m.readAgain(t.Context())
			select {
			case <-changed:
			default:
				t.Error("those who watch the faults were not woken")
			}
			if got := m.Faults(); len(got) > 0 || len(heard.healed) != 2 {
				t.Errorf("after the file was deleted: faults %v, %d healed", got, len(heard.healed))
			}
			if _, err := New(options); err != nil {
				t.Errorf("the next start: %v", err)
			}
		})
	}
}

func FuzzOpen(f *testing.F) {
	f.Add([]byte(`{"version":1,"faults":[{"gpu":"GPU-1","kind":"xid","code":79,"fatal":true,"message":"m",` +
		`"since":"2026-01-01T00:00:00Z","last":"2026-01-01T00:00:00Z"}]}`))
	f.Add([]byte(`{"version":2}`))
	f.Add([]byte("{"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		path := filepath.Join(t.TempDir(), "faults.json")
		write(t, path, raw)
		r, faults, err := open(path, atomicfile.Writer{})
		if err != nil && (len(faults) > 0 || !r.Aside()) {
			t.Fatalf("%v and %v", faults, err)
		}
		for _, fault := range faults {
			_ = fault.String()
			_ = fault.Taint()
		}
	})
}

func TestMonitorHealsAFaultWhenTheClockWasSetBack(t *testing.T) {
	for name, xid := range map[string]uint64{"a fatal one": 119, "a warning": 63} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "faults.json")
			b := newBench(t, path, "b1")
			b.xid(t, xid)
			right := b.now.Add(-24 * time.Hour)
			b = newBench(t, path, "b1") // the plugin was restarted
			b.now = right
			b.heal(t.Context())
			if len(b.Faults()) != 1 {
				t.Fatal("it healed at once")
			}
			b.now = right.Add(quiet)
			b.heal(t.Context())
			if len(b.Faults()) != 0 {
				t.Errorf("%v stands %s after the clock was set back by a day", b.Faults(), quiet)
			}
		})
	}
}

// TestMonitorForgetsTheFaultsOfAGPUThatWasReplaced: its alert would fire until somebody deleted the file.
func TestMonitorForgetsTheFaultsOfAGPUThatWasReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "faults.json")
	b := newBench(t, path, "b1")
	b.xid(t, 79)
	old := b.node.GPUs[0].UUID
	b = newBench(t, path, "b2")
	there := b.node.GPUs[0]
	without := *b.node
	without.GPUs = b.node.GPUs[1:]
	b.node = &without
	b.heal(t.Context())
	if len(b.Faults()) != 1 {
		t.Error("the fault of a GPU that is gone was forgotten")
	}
	replacement := *there
	replacement.UUID = "GPU-00000009-0000-4000-8000-000000000000"
	without.GPUs = append([]*inventory.GPU{&replacement}, without.GPUs...)
	b.heal(t.Context())
	if left := b.Faults(); len(left) != 0 || len(b.healed) != 1 || b.healed[0].GPU != old {
		t.Errorf("another GPU is in its place, and %v stands; over: %v", left, b.healed)
	}
}

// TestMonitorLogsOnceThatEventsCannotBeWaitedFor: the driver may be broken for days.
func TestMonitorLogsOnceThatEventsCannotBeWaitedFor(t *testing.T) {
	b := newBench(t, filepath.Join(t.TempDir(), "faults.json"), "b1")
	answers := []nvml.Return{nvml.ERROR_UNKNOWN, nvml.ERROR_UNKNOWN, nvml.ERROR_UNKNOWN, nvml.ERROR_TIMEOUT, nvml.ERROR_UNKNOWN}
	lines := 0
	logger := funcr.New(func(_, line string) {
		if strings.Contains(line, "Waiting for GPU events failed") {
			lines++
		}
	}, funcr.Options{})
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
		b.machine.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) {
			set := &mock.EventSet{FreeFunc: func() nvml.Return { return nvml.SUCCESS }}
			set.WaitFunc = func(uint32) (nvml.EventData, nvml.Return) {
				if len(answers) == 0 {
					cancel()
					return nvml.EventData{}, nvml.ERROR_TIMEOUT
				}
				next := answers[0]
				answers = answers[1:]
				return nvml.EventData{}, next
			}
			return set, nvml.SUCCESS
		}
		if err := b.run(ctx); err != nil {
			t.Error(err)
		}
	})
	if lines != 2 {
		t.Errorf("%d lines, want one for each time that it begins to fail", lines)
	}
}
