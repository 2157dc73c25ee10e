package plugin

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"gpufabric.io/drivers/computedomain/hostimex"
	"gpufabric.io/drivers/hardware/nvml"
	"gpufabric.io/drivers/hardware/pci"
	"gpufabric.io/fakes/fault"
	"gpufabric.io/fakes/nvmlstate"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/state"
	"gpufabric.io/fakes/tree"
)

// libraryWith is a driver of a version whose only GPU reports this fabric. With another code than success it does not start.
// symbols reports of each function of the library that it exists, but for one.
type symbols struct{ lacks string }

func (s symbols) LookupSymbol(name string) error {
	if name == s.lacks {
		return errors.New("undefined symbol")
	}
	return nil
}

func libraryWith(start nvmllib.Return, version string, info nvmllib.GpuFabricInfo, code nvmllib.Return) nvmllib.Interface {
	return &mock.Interface{
		ExtensionsFunc:             func() nvmllib.ExtendedInterface { return symbols{"nvmlDeviceGetPlatformInfo"} },
		InitFunc:                   func() nvmllib.Return { return start },
		ShutdownFunc:               func() nvmllib.Return { return nvmllib.SUCCESS },
		SystemGetDriverVersionFunc: func() (string, nvmllib.Return) { return version, nvmllib.SUCCESS },
		DeviceGetCountFunc:         func() (int, nvmllib.Return) { return 1, nvmllib.SUCCESS },
		DeviceGetHandleByIndexFunc: func(int) (nvmllib.Device, nvmllib.Return) {
			return &mock.Device{
				GetUUIDFunc:          func() (string, nvmllib.Return) { return "GPU-0", nvmllib.SUCCESS },
				GetGpuFabricInfoFunc: func() (nvmllib.GpuFabricInfo, nvmllib.Return) { return info, code },
			}, nvmllib.SUCCESS
		},
	}
}

func TestFabricDistinguishesNoDriverJoiningAndNoFabric(t *testing.T) {
	joined := nvmllib.GpuFabricInfo{ClusterUuid: [16]uint8{1}, CliqueId: 7, State: nvmllib.GPU_FABRIC_STATE_COMPLETED}
	inProgress := nvmllib.GpuFabricInfo{State: nvmllib.GPU_FABRIC_STATE_IN_PROGRESS}
	const clique, good = "01000000-0000-0000-0000-000000000000.7", "580.95.05"
	for name, c := range map[string]struct {
		start, code nvmllib.Return
		version     string
		info        nvmllib.GpuFabricInfo
		board       board
		boardErr    error
		last        string
		host        bool
		state       nvml.FabricState
		kind, says  string
		remembered  string
	}{
		"a node without GPUs": {start: nvmllib.ERROR_LIBRARY_NOT_FOUND, state: nvml.NoFabric},
		"GPUs whose driver is not there": {start: nvmllib.ERROR_LIBRARY_NOT_FOUND, board: board{gpus: 4, multiNode: true},
			state: nvml.NoFabric, kind: problemNoDriver, says: "4 NVIDIA GPUs"},
		"a driver that is not loaded": {start: nvmllib.ERROR_DRIVER_NOT_LOADED, board: board{gpus: 8}, state: nvml.NoFabric,
			kind: problemNoDriver, says: "not loaded"},
		"a rack's node whose GPUs are not even on PCI": {start: nvmllib.ERROR_DRIVER_NOT_LOADED, last: clique, remembered: clique,
			state: nvml.NoFabric, kind: problemNoDriver, says: "last in NVLink clique " + clique},
		"a bus that cannot be read": {start: nvmllib.ERROR_DRIVER_NOT_LOADED, boardErr: errors.New("no sysfs"),
			state: nvml.NoFabric, kind: problemNoDriver},
		"a rack's node that has joined": {version: good, info: joined, board: board{gpus: 4, multiNode: true}, state: nvml.Joined,
			remembered: clique},
		"a rack's node that is joining":          {version: good, info: inProgress, board: board{gpus: 4, multiNode: true}, state: nvml.Joining},
		"a board that says in progress for ever": {version: good, info: inProgress, board: board{gpus: 8}, state: nvml.NoFabric},
		"GPUs nobody knows, on a node that was in a rack": {version: good, info: inProgress, board: board{gpus: 4}, last: clique,
			remembered: clique, state: nvml.Joining},
		"joining, on a bus that cannot be read": {version: good, info: inProgress, boardErr: errors.New("no sysfs"),
			state: nvml.Joining},
		"a driver that says there is no fabric": {version: good, code: nvmllib.ERROR_NOT_SUPPORTED, last: clique, state: nvml.NoFabric},
		"a driver that is too old": {version: "570.86.15", info: joined, state: nvml.Joined, kind: problemOldDriver,
			says: "is 570.86.15, and IMEX needs 570.158.01 or later", remembered: clique},
		"the first driver that will do": {version: "570.158.01", info: joined, state: nvml.Joined, remembered: clique},
		"an old driver without fabric":  {version: "535.1", code: nvmllib.ERROR_NOT_SUPPORTED, state: nvml.NoFabric},
		"a node with an nvidia-imex of its own": {version: good, info: joined, host: true, state: nvml.Joined, kind: problemHostDaemon,
			says: "systemctl disable --now nvidia-imex.service", remembered: clique},
	} {
		t.Run(name, func(t *testing.T) {
			reader := &fabricReader{
				library: libraryWith(c.start, c.version, c.info, c.code), last: newLastFabric(t.TempDir()),
				board: func(context.Context) (board, error) { return c.board, c.boardErr }, hostDaemon: func() bool { return c.host },
			}
			if err := reader.last.remember(c.last); err != nil {
				t.Fatal(err)
			}
			for range 2 { // the second time the library is open
				got := reader.read(t.Context())
				if !got.known || got.state != c.state || got.problemKind != c.kind || !strings.Contains(got.problem, c.says) ||
					(got.state == nvml.Joined) != (got.clique != "") {
					t.Errorf("%+v; want %s, %q saying %q", got, c.state, c.kind, c.says)
				}
			}
			if last, err := reader.last.clique(); err != nil || last != c.remembered {
				t.Errorf("it remembers %q, %v; want %q", last, err, c.remembered)
			}
		})
	}
}

func TestFabricSurvivesADamagedRecord(t *testing.T) {
	last := newLastFabric(filepath.Join(t.TempDir(), "state"))
	if err := last.remember("c.1"); err != nil {
		t.Fatal(err)
	}
	if clique, err := last.clique(); err != nil || clique != "c.1" {
		t.Fatalf("%q, %v", clique, err)
	}
	if err := os.WriteFile(last.path, []byte(`{"cli`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := last.clique(); err == nil || !strings.Contains(err.Error(), last.path) {
		t.Errorf("a damaged file: %v", err)
	}
	if err := last.remember("c.2"); err != nil {
		t.Error(err)
	}
}

// NVML lists GPUs when it starts. A driver container makes /dev/nvidiactl and the GPUs' nodes one after another, and a role that starts
// NVML between two of them would see a node without GPUs, which is a node without fabric, for as long as it runs.
func TestFabricIsReadAgainWhenGPUsComeAfterNVML(t *testing.T) {
	joined := nvmllib.GpuFabricInfo{ClusterUuid: [16]uint8{1}, CliqueId: 7, State: nvmllib.GPU_FABRIC_STATE_COMPLETED}
	library := libraryWith(nvmllib.SUCCESS, "580.95.05", joined, nvmllib.SUCCESS).(*mock.Interface)
	there, listed := 0, 0
	library.InitFunc = func() nvmllib.Return { listed = there; return nvmllib.SUCCESS }
	library.DeviceGetCountFunc = func() (int, nvmllib.Return) { return listed, nvmllib.SUCCESS }
	reader := &fabricReader{
		library: library, last: newLastFabric(t.TempDir()), hostDaemon: func() bool { return false },
		board: func(context.Context) (board, error) { return board{gpus: 4, bound: 4, multiNode: true}, nil },
	}
	got := reader.read(t.Context())
	if !got.passing() || got.problemKind != problemNoDriver || !strings.Contains(got.problem, "taken 4 GPUs of the node") {
		t.Errorf("without a GPU in NVML: %+v", got)
	}
	there = 3
	if got = reader.read(t.Context()); got.state != nvml.Joined {
		t.Errorf("with three of four GPUs: %+v", got)
	}
	there = 4
	if got = reader.read(t.Context()); got.state != nvml.Joined || listed != 4 {
		t.Errorf("with four GPUs: %+v, %d listed", got, listed)
	}
	if starts := len(library.InitCalls()); starts != 3 {
		t.Errorf("NVML was started %d times, want 3", starts)
	}
	if got = reader.read(t.Context()); got.state != nvml.Joined || len(library.InitCalls()) != 3 {
		t.Errorf("after that it is started again, though every GPU is there: %+v, %d starts", got, len(library.InitCalls()))
	}
}

func TestPCIShowsWhetherNVLinkLeavesTheNode(t *testing.T) {
	for name, want := range map[string]board{
		"gb200-nvl72": {gpus: 4, bound: 4, multiNode: true},
		"b200-hgx":    {gpus: 8, bound: 8},
		"h100-hgx":    {gpus: 8, bound: 8},
		"l40s-8":      {gpus: 8, bound: 8},
	} {
		p, err := profile.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		root := t.TempDir()
		if err := tree.Render(t.Context(), tree.Options{Profile: p, Nodes: 1, Root: root}); err != nil {
			t.Fatal(err)
		}
		if got, err := readBoard(t.Context(), pci.NewFS(filepath.Join(root, "sys"))); err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, want)
		}
	}
}

func TestFabricHasNoGPUsWithoutPCI(t *testing.T) {
	if got, err := readBoard(t.Context(), pci.NewFS(t.TempDir())); err != nil || got != (board{}) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestFabricDetectsTheNodesDaemonByItsCgroup(t *testing.T) {
	// In a pod, cgroup version 1 omits the node's processes from the list (kernel/cgroup/cgroup-v1.c), so the existence of the
	// directory is the answer.
	for hierarchy, emptyRuns := range map[string]bool{"fs/cgroup": false, "fs/cgroup/systemd": true} {
		sysfs := t.TempDir()
		processes := filepath.Join(sysfs, hierarchy, "system.slice/nvidia-imex.service/cgroup.procs")
		if hostimex.Running(sysfs) {
			t.Errorf("%s: a service without a cgroup runs", hierarchy)
		}
		writeFile(t, processes, "")
		if runs := hostimex.Running(sysfs); runs != emptyRuns {
			t.Errorf("%s: a service whose list of processes is empty runs: %t, want %t", hierarchy, runs, emptyRuns)
		}
		writeFile(t, processes, "4711\n")
		if !hostimex.Running(sysfs) {
			t.Errorf("%s: not seen", hierarchy)
		}
	}
}

// The three are distinguished on fakes that report what real nodes do: a driver that is not loaded leaves PCI as it is; a
// compute tray of a rack reports "in progress" until the fabric manager is done; an HGX board with FABRIC_MODE=1 does so for ever
// (#1263, #1264 of NVIDIA's DRA driver).
func TestFakeNodesInEachStateOfTheirFabricAreDistinguished(t *testing.T) {
	for name, c := range map[string]struct {
		profile, state string
		unloaded       bool
		want           nvml.FabricState
		kind           string
	}{
		"a tray that has joined":               {profile: "gb200-nvl72", want: nvml.Joined},
		"a tray that is joining":               {profile: "gb200-nvl72", state: "in-progress", want: nvml.Joining},
		"a tray that has not begun":            {profile: "gb200-nvl72", state: "not-started", want: nvml.Joining},
		"a tray without its driver":            {profile: "gb200-nvl72", unloaded: true, want: nvml.NoFabric, kind: problemNoDriver},
		"a tray of later GPUs that is joining": {profile: "vr-nvl72", state: "in-progress", want: nvml.Joining},
		"a board":                              {profile: "b200-hgx", want: nvml.NoFabric},
		"a board with FABRIC_MODE=1":           {profile: "b200-hgx", state: "in-progress", want: nvml.NoFabric},
		"an older board with FABRIC_MODE=1":    {profile: "h100-hgx", state: "in-progress", want: nvml.NoFabric},
		"a board without its driver":           {profile: "b200-hgx", unloaded: true, want: nvml.NoFabric, kind: problemNoDriver},
		"a machine with cards in slots":        {profile: "l40s-8", want: nvml.NoFabric},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := profile.Load(c.profile)
			if err != nil {
				t.Fatal(err)
			}
			root := t.TempDir()
			if err := tree.Render(t.Context(), tree.Options{Profile: p, Nodes: 1, Root: root}); err != nil {
				t.Fatal(err)
			}
			if c.state != "" {
				if err := fault.Apply(root, "clique-change", fault.Arguments{"state": c.state}); err != nil {
					t.Fatal(err)
				}
			}
			if c.unloaded {
				if err := os.Remove(state.Path(root)); err != nil {
					t.Fatal(err)
				}
			}
			sysfs := filepath.Join(root, "sys")
			reader := &fabricReader{
				library: nvmlstate.New(root), last: newLastFabric(t.TempDir()), hostDaemon: func() bool { return hostimex.Running(sysfs) },
				board: func(ctx context.Context) (board, error) { return readBoard(ctx, pci.NewFS(sysfs)) },
			}
			if got := reader.read(t.Context()); got.state != c.want || got.problemKind != c.kind {
				t.Errorf("%+v; want %s, %q", got, c.want, c.kind)
			}
			reader.close(t.Context())
		})
	}
}
