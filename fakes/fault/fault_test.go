package fault_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpufabric.io/fakes/fault"
	"gpufabric.io/fakes/imex"
	"gpufabric.io/fakes/internal/memdir"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/state"
	"gpufabric.io/fakes/tree"
)

func TestMain(m *testing.M) { os.Exit(memdir.Run(m)) }

func render(t *testing.T, name string) string {
	t.Helper()
	p, err := profile.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	if err := tree.Render(t.Context(), tree.Options{Profile: p, Root: root, PlainDevices: true}); err != nil {
		t.Fatal(err)
	}
	return root
}

func body(t *testing.T, root string) *state.Body {
	t.Helper()
	f, err := state.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	b, err := f.Read()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func inject(t *testing.T, root, event string, args fault.Arguments) {
	t.Helper()
	if err := fault.Apply(root, event, args); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, parts ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(parts...))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

func TestECCCountsErrorsOfSRAMApart(t *testing.T) {
	root := render(t, "h100-hgx")
	inject(t, root, "ecc", fault.Arguments{"gpu": "0", "kind": "uncorrected", "place": "sram", "count": "2"})
	if e := body(t, root).GPUs[0].Core.ECC; e.VolatileSRAM.Parity != 2 || e.AggregateSRAM.Parity != 2 || e.VolatileUncorrected != 0 {
		t.Errorf("%+v", e)
	}
	err := fault.Apply(root, "ecc", fault.Arguments{"gpu": "0", "place": "l3"})
	if err == nil || !strings.Contains(err.Error(), "dram or sram") {
		t.Errorf("an unknown place: %v", err)
	}
}

func TestNVLinkDownDegradesTheHealthThatTheMachineReports(t *testing.T) {
	root := render(t, "gb300-nvl72")
	inject(t, root, "nvlink-down", fault.Arguments{"gpu": "1", "link": "4"})
	// Bits 0 and 1 of the mask: 1 degraded, 2 not (NVML_GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_* of nvml.h).
	if g := body(t, root).GPUs[1]; g.Core.FabricSummary != 3 || g.Core.FabricHealth&3 != 1 {
		t.Errorf("summary %d, mask %#x; want limited capacity with degraded bandwidth", g.Core.FabricSummary, g.Core.FabricHealth)
	}
}

func TestEventsChangeTheirFields(t *testing.T) {
	root := render(t, "h100-hgx")
	for name, c := range map[string]struct {
		args fault.Arguments
		ok   func(*state.GPU) bool
	}{
		"ecc": {fault.Arguments{"gpu": "1", "kind": "uncorrected", "count": "3"},
			func(g *state.GPU) bool { return g.Core.ECC.VolatileUncorrected == 3 }},
		"mem": {fault.Arguments{"gpu": "1", "mib": "1000"}, func(g *state.GPU) bool { return g.Core.MemoryUsed == 1000<<20 }},
		"util": {fault.Arguments{"gpu": "1", "percent": "80"},
			func(g *state.GPU) bool { return g.Core.UtilizationGPU == 80 && g.Core.ClockSM == 1980 }},
		"temp":     {fault.Arguments{"gpu": "1", "celsius": "91"}, func(g *state.GPU) bool { return g.Core.Temperature == 91 }},
		"power":    {fault.Arguments{"gpu": "1", "watts": "650"}, func(g *state.GPU) bool { return g.Core.Power == 650000 }},
		"mig-mode": {fault.Arguments{"gpu": "1"}, func(g *state.GPU) bool { return g.Core.MIGCurrent == 1 && g.Core.MIGPending == 1 }},
		"mig-busy": {fault.Arguments{"gpu": "1"}, func(g *state.GPU) bool { return g.Core.MIGBusy == 1 }},
		"nvlink-down": {fault.Arguments{"gpu": "1", "link": "4"}, func(g *state.GPU) bool {
			return g.Links[4].Active == 0 && g.Core.FabricSummary == 0 // this machine reports no health of its fabric
		}},
		"clique-change": {fault.Arguments{"clique": "7", "cluster": "69a19a31-f41c-45a5-8245-579b6bce5bdd"},
			func(g *state.GPU) bool { return g.Core.FabricClique == 7 && g.Core.FabricCluster[0] == 0x69 }},
	} {
		inject(t, root, name, c.args)
		if g := body(t, root).GPUs[1]; !c.ok(g) {
			t.Errorf("%s: %+v", name, g.Core)
		}
	}
	inject(t, root, "delay", fault.Arguments{"function": "nvmlDeviceGetName", "ms": "5"})
	if b := body(t, root); b.Node.DelayCount != 1 {
		t.Errorf("%d delays", b.Node.DelayCount)
	}
}

// The module is loaded on demand, and gets its major number then (nvidia_uvm_modprobe and nvidia_uvm_mknod in
// NVIDIA/nvidia-modprobe).
func TestUnifiedMemoryDevicesAreThereOnlyWhileTheirModuleIs(t *testing.T) {
	root := render(t, "t4-edge")
	look := func() (nodes, majors int) {
		for _, name := range []string{"nvidia-uvm", "nvidia-uvm-tools"} {
			if _, err := os.Stat(filepath.Join(root, "dev", name)); err == nil {
				nodes++
			}
		}
		return nodes, strings.Count(read(t, root, "proc/devices"), "nvidia-uvm")
	}
	inject(t, root, "uvm-unload", nil)
	if nodes, majors := look(); nodes != 0 || majors != 0 {
		t.Errorf("unloaded: %d nodes, %d majors", nodes, majors)
	}
	inject(t, root, "uvm-load", nil)
	if nodes, majors := look(); nodes != 2 || majors != 1 {
		t.Errorf("loaded: %d nodes, %d majors in\n%s", nodes, majors, read(t, root, "proc/devices"))
	}
}

func TestPortGoesDownWithItsInterfaceAndComesBack(t *testing.T) {
	root := render(t, "gb200-nvl72")
	port := filepath.Join(root, "sys/class/infiniband/mlx5_1/ports/1")
	inject(t, root, "port-down", fault.Arguments{"device": "mlx5_1"})
	got := []string{read(t, port, "state"), read(t, root, "sys/class/net/ibP2p3s0/carrier"), read(t, root, "sys/class/net/ibP2p3s0/operstate"),
		read(t, port, "counters/link_downed"), read(t, root, "sys/class/infiniband/mlx5_0/ports/1/state")}
	if s := strings.Join(got, ", "); s != "1: DOWN, 0, down, 1, 4: ACTIVE" {
		t.Error(s)
	}
	inject(t, root, "port-up", fault.Arguments{"device": "mlx5_1"})
	if s := read(t, port, "state") + " " + read(t, port, "phys_state"); s != "4: ACTIVE 5: LinkUp" {
		t.Error(s)
	}
	inject(t, root, "firmware-change", fault.Arguments{"device": "mlx5_1", "version": "28.99.1"})
	if s := read(t, root, "sys/class/infiniband/mlx5_1/fw_ver"); s != "28.99.1" {
		t.Error(s)
	}
}

// A card in switchdev mode has its cable at the last port. Its representors and virtual functions keep their links.
func TestFaultTakesDownOnlyTheUplinkOfAnESwitch(t *testing.T) {
	root := render(t, "switchdev")
	down := func() string {
		links, err := filepath.Glob(filepath.Join(root, "sys/class/*/*/carrier"))
		if err != nil {
			t.Fatal(err)
		}
		ports, err := filepath.Glob(filepath.Join(root, "sys/class/infiniband/mlx5_[0-9]/ports/*/state"))
		if err != nil {
			t.Fatal(err)
		}
		var without []string
		for _, path := range append(links, ports...) {
			if text := read(t, path); text == "0" || text == "1: DOWN" {
				relative, _ := filepath.Rel(filepath.Join(root, "sys/class"), path)
				without = append(without, relative)
			}
		}
		return strings.Join(without, " ")
	}
	before := down()
	inject(t, root, "port-down", fault.Arguments{"device": "mlx5_0"})
	const uplink = "infiniband/mlx5_0/ports/18/state"
	if after := down(); strings.Contains(before, uplink) || !strings.Contains(after, uplink) ||
		strings.Replace(strings.Replace(after, "net/ens1f0np0/carrier ", "", 1), uplink+" ", "", 1) != before {
		t.Errorf("without link were %s; after the event %s", before, after)
	}
	if state := read(t, root, "sys/class/infiniband/mlx5_0/ports/18/phys_state"); state != "3: Disabled" {
		t.Errorf("the uplink's phys_state is %s", state)
	}
	inject(t, root, "port-up", fault.Arguments{"device": "mlx5_0"})
	if after := down(); after != before {
		t.Errorf("without link are %s after the port came back; before %s", after, before)
	}
}

func TestInjectRejectsImpossibleFaults(t *testing.T) {
	for name, c := range map[string]struct {
		profile, event, want string
		args                 fault.Arguments
	}{
		"MIG on a T4": {"t4-edge", "mig-busy", "no MIG", fault.Arguments{"gpu": "0"}},
		"a port that is not there": {"t4-edge", "port-up", "the node has mlx5_0, mlx5_1, mlx5_2, mlx5_3",
			fault.Arguments{"device": "mlx5_9"}},
		"a device that is a directory": {"t4-edge", "firmware-change", "the node has mlx5_0, mlx5_1, mlx5_2, mlx5_3",
			fault.Arguments{"device": ".", "version": "1"}},
		"a device that is a path": {"t4-edge", "port-down", "the node has mlx5_0, mlx5_1, mlx5_2, mlx5_3",
			fault.Arguments{"device": "elsewhere/mlx5_0"}},
		"a port that is up already": {"t4-edge", "port-up", "ACTIVE already", fault.Arguments{"device": "mlx5_0"}},
		"a GPU that is not there":   {"t4-edge", "temp", "the node has 4", fault.Arguments{"gpu": "4", "celsius": "1"}},
		"a GPU that is not lost":    {"t4-edge", "gpu-back", "not lost", fault.Arguments{"gpu": "0"}},
		"NVLink on an L40S":         {"l40s-8", "nvlink-down", "no NVLink", fault.Arguments{"gpu": "0", "link": "0"}},
		"a clique without a fabric": {"l40s-8", "clique-change", "no NVLink fabric", fault.Arguments{"clique": "1"}},
		"IMEX on an HGX":            {"h100-hgx", "imex-kill", "no IMEX", nil},
		"a GPU instance without":    {"a100-40", "xid", "no GPU instance 2", fault.Arguments{"gpu": "0", "code": "94", "gi": "2"}},
	} {
		t.Run(name, func(t *testing.T) {
			root := render(t, c.profile)
			before := *body(t, root).GPUs[0]
			err := fault.Apply(root, c.event, c.args)
			if !errors.Is(err, fault.ErrRefused) || !strings.Contains(err.Error(), c.want) {
				t.Error(err)
			}
			if *body(t, root).GPUs[0] != before {
				t.Error("the state changed")
			}
		})
	}
}

func TestInjectNamesEveryWrongArgument(t *testing.T) {
	root := render(t, "t4-edge")
	err := fault.Apply(root, "temp", fault.Arguments{"gpu": "0", "degrees": "4", "kelvin": "1"})
	for _, want := range []string{"celsius is missing", `no argument "degrees"`, `no argument "kelvin"`, "allowed: gpu, celsius"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in %v", want, err)
		}
	}
	if err := fault.Apply(root, "tempest", nil); err == nil || !strings.Contains(err.Error(), "xid, ecc") {
		t.Errorf("an unknown event: %v", err)
	}
	if err := fault.Apply(root, "temp", fault.Arguments{"gpu": "0", "celsius": "hot"}); err == nil ||
		!strings.Contains(err.Error(), "from 0 to 150") {
		t.Error(err)
	}
	if err := fault.Apply(t.TempDir(), "temp", fault.Arguments{"gpu": "0", "celsius": "3"}); err == nil {
		t.Error("an empty directory took an event")
	}
}

func TestLostGPUAcceptsOnlyGPUBack(t *testing.T) {
	root := render(t, "t4-edge")
	inject(t, root, "gpu-lost", fault.Arguments{"gpu": "2"})
	if err := fault.Apply(root, "temp", fault.Arguments{"gpu": "2", "celsius": "50"}); !errors.Is(err, fault.ErrRefused) {
		t.Error(err)
	}
	inject(t, root, "gpu-back", fault.Arguments{"gpu": "2"})
	if body(t, root).GPUs[2].Core.Lost != 0 {
		t.Error("still lost")
	}
}

func TestInjectSerializesWriters(t *testing.T) {
	root := render(t, "h100-hgx")
	const each = 40
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range each {
				if err := fault.Apply(root, "ecc", fault.Arguments{"gpu": "0"}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if got := body(t, root).GPUs[0].Core.ECC.VolatileCorrected; got != 4*each {
		t.Errorf("%d errors counted; %d were injected", got, 4*each)
	}
}

func TestIMEXFaultsReachTheDaemonsFile(t *testing.T) {
	root := render(t, "gb200-nvl72")
	inject(t, root, "imex-partition", fault.Arguments{"peers": "10.0.0.1,node-b"})
	inject(t, root, "imex-kill", nil)
	inject(t, root, "imex-fail", nil)
	inject(t, root, "imex-silence", fault.Arguments{"questions": "-N"})
	path := filepath.Join(root, "state", imex.FaultsName)
	f, err := imex.ReadFaults(path)
	if err != nil || f.Kills != 1 || strings.Join(f.Partitioned, " ") != "10.0.0.1 node-b" {
		t.Errorf("%+v %v", f, err)
	}
	inject(t, root, "imex-heal", nil)
	if f, err = imex.ReadFaults(path); err != nil || f.Partitioned != nil || f.Kills != 1 {
		t.Errorf("%+v %v", f, err)
	}
}

// The bits are those of NVML_GPU_FABRIC_HEALTH_MASK_* of nvml.h.
func TestFabricHealthSetsTheMaskAndTheSummary(t *testing.T) {
	const healthy, limited, unhealthy = 1, 3, 2
	root := render(t, "gb300-nvl72")
	before := body(t, root).GPUs[1].Core
	step := func(args fault.Arguments, shift, value, summary uint32) {
		t.Helper()
		inject(t, root, "fabric-health", args)
		width := uint32(3)
		if shift == 8 {
			width = 0xf
		}
		core := body(t, root).GPUs[1].Core
		if got := core.FabricHealth >> shift & width; got != value || core.FabricSummary != summary {
			t.Errorf("%v: mask %#x, summary %d; want %d at bit %d, and summary %d", args, core.FabricHealth, core.FabricSummary, value, shift,
				summary)
		}
	}
	step(fault.Arguments{"problem": "bandwidth"}, 0, 1, limited)
	step(fault.Arguments{"problem": "route-recovery", "gpu": "1"}, 2, 1, unhealthy)
	step(fault.Arguments{"problem": "route-recovery", "gpu": "1", "present": "false"}, 2, 2, limited)
	step(fault.Arguments{"problem": "route-unhealthy"}, 4, 1, unhealthy)
	step(fault.Arguments{"problem": "access-timeout-recovery"}, 6, 1, unhealthy)
	step(fault.Arguments{"problem": "no-partition"}, 8, 4, unhealthy)
	step(fault.Arguments{"problem": "insufficient-nvlinks"}, 8, 5, unhealthy)
	for _, problem := range []string{"route-unhealthy", "access-timeout-recovery", "insufficient-nvlinks"} {
		inject(t, root, "fabric-health", fault.Arguments{"problem": problem, "present": "false"})
	}
	step(fault.Arguments{"problem": "bandwidth", "present": "false"}, 0, 2, healthy)
	if after := body(t, root).GPUs[1].Core; after.FabricHealth != before.FabricHealth {
		t.Errorf("mask %#x, before %#x", after.FabricHealth, before.FabricHealth)
	}
	for problem, value := range map[string]uint32{"incompatible-gpu-firmware": 6, "invalid-location": 7, "gpu-state-invalid": 8} {
		step(fault.Arguments{"problem": problem}, 8, value, unhealthy)
	}
	// Drivers up to 580.173 report neither.
	if err := fault.Apply(root, "fabric-health", fault.Arguments{"problem": "partition-unassigned"}); !errors.Is(err, fault.ErrRefused) {
		t.Errorf("a GB300 with driver 580 reports whether it has a partition: %v", err)
	}
	root = render(t, "vr-nvl72")
	if mask := body(t, root).GPUs[1].Core.FabricHealth; mask>>12 != 1|1<<2 {
		t.Errorf("mask %#x of a whole Vera Rubin: want a partition and a connected fabric manager", mask)
	}
	step(fault.Arguments{"problem": "partition-unassigned"}, 12, 2, unhealthy)
	step(fault.Arguments{"problem": "partition-unassigned", "present": "false"}, 12, 1, healthy)
	step(fault.Arguments{"problem": "fabric-manager-disconnected"}, 14, 2, unhealthy)

	for message, args := range map[string]fault.Arguments{
		`problem is "dust", want one of access-timeout-recovery, bandwidth, `: {"problem": "dust"},
		"present is":         {"problem": "bandwidth", "present": "maybe"},
		"no GPU 9":           {"problem": "bandwidth", "gpu": "9"},
		"the health is so":   {"problem": "bandwidth", "present": "false"},
		"problem is missing": {},
	} {
		if err := fault.Apply(root, "fabric-health", args); err == nil || !strings.Contains(err.Error(), message) {
			t.Errorf("%v: %v, want %q", args, err, message)
		}
	}
	if err := fault.Apply(render(t, "h100-hgx"), "fabric-health", fault.Arguments{"problem": "bandwidth"}); !errors.Is(err, fault.ErrRefused) {
		t.Errorf("a machine that reports no health of its fabric: %v", err)
	}
}

func TestOppositeUndoesAnEvent(t *testing.T) {
	root := render(t, "gb300-nvl72")
	undone := map[string]fault.Arguments{
		"gpu-lost":       {"gpu": "1"},
		"nvlink-down":    {"gpu": "1", "link": "4"},
		"port-down":      {"device": "mlx5_0"},
		"uvm-unload":     {},
		"mig-busy":       {"gpu": "1"},
		"fabric-health":  {"problem": "route-unhealthy"},
		"delay":          {"function": "*", "ms": "5"},
		"imex-partition": {"peers": "*"},
		"imex-silence":   {},
	}
	before := body(t, root)
	for name, args := range undone {
		inject(t, root, name, args)
		event, with, ok := fault.Opposite(name, args)
		if !ok {
			t.Errorf("%s has no opposite", name)
			continue
		}
		inject(t, root, event, with)
		if after := body(t, root); !reflect.DeepEqual(before.Node, after.Node) || !reflect.DeepEqual(before.GPUs[1].Core, after.GPUs[1].Core) ||
			!reflect.DeepEqual(before.GPUs[1].Links, after.GPUs[1].Links) {
			t.Errorf("%s leaves the node changed", event)
		}
	}
	if got := read(t, root, "sys/class/infiniband/mlx5_0/ports/1/state"); got != "4: ACTIVE" {
		t.Errorf("the port is %s", got)
	}
	for _, name := range []string{"xid", "ecc", "temp", "gpu-back", "imex-kill", "meteor"} {
		if event, _, ok := fault.Opposite(name, fault.Arguments{"gpu": "1"}); ok {
			t.Errorf("%s is undone by %s", name, event)
		}
	}
	for name, args := range map[string]fault.Arguments{"mig-busy": {"gpu": "1", "busy": "false"},
		"fabric-health": {"problem": "bandwidth", "present": "false"}} {
		if event, with, ok := fault.Opposite(name, args); ok {
			t.Errorf("%s%v is undone by %s%v", name, args, event, with)
		}
	}
}

func TestXIDIsWrittenToTheKernelLog(t *testing.T) {
	root := render(t, "h100-hgx")
	inject(t, root, "xid", fault.Arguments{"gpu": "1", "code": "31"})
	inject(t, root, "gpu-lost", fault.Arguments{"gpu": "2"})
	b := body(t, root)
	var want []string
	for gpu, text := range map[int]string{1: "31, pid='<unknown>', name=<unknown>, injected by fakefabric",
		2: "79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."} {
		core := b.GPUs[gpu].Core
		address := fmt.Sprintf("PCI:%04x:%02x:%02x", core.Domain, core.Bus, core.Device)
		want = append(want, fmt.Sprintf("NVRM: GPU at %s: GPU-%s", address, profile.FormatUUID(core.UUID)),
			fmt.Sprintf("NVRM: Xid (%s): %s", address, text))
	}
	var got []string
	form := regexp.MustCompile(`^[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d [^ ]+ kernel: \[ *\d+\.\d{6}\] (.*)$`)
	for line := range strings.Lines(read(t, state.KernelLog(root))) {
		match := form.FindStringSubmatch(strings.TrimSpace(line))
		if match == nil {
			t.Fatalf("line %q is not as rsyslog writes it", line)
		}
		got = append(got, match[1])
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("kernel log (-want +got):\n%s", diff)
	}

	if err := os.Truncate(state.KernelLog(root), 1<<20); err != nil {
		t.Fatal(err)
	}
	inject(t, root, "xid", fault.Arguments{"gpu": "1", "code": "31"})
	if lines := strings.Count(read(t, state.KernelLog(root)), "\n"); lines != 1 {
		t.Errorf("the next log has %d line ends, want 1", lines)
	}
	if _, err := os.Stat(state.KernelLog(root) + ".1"); err != nil {
		t.Error(err)
	}

	p, err := profile.Load("h100-hgx")
	if err != nil {
		t.Fatal(err)
	}
	if err := tree.Render(t.Context(), tree.Options{Profile: p, Root: root, PlainDevices: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(state.KernelLog(root)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the next machine has the log of this one: %v", err)
	}
}
