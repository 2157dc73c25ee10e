package plugin

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpufabric.io/drivers/gpu/gputest"
	"gpufabric.io/drivers/gpu/programs"
	"gpufabric.io/drivers/gpu/sharing"
)

// mpsControl puts a stand-in for the driver's control daemon under the driver's root, which notes its commands. It returns a
// function that returns the notes since its last call.
func mpsControl(t *testing.T, m *gputest.Machine) func() string {
	t.Helper()
	log := m.Path("mps.log")
	gputest.MPSControl(t, m.Path("driver"), log, "")
	read := 0
	return func() string {
		text, _ := os.ReadFile(log)
		since := text[read:]
		read = len(text)
		return strings.TrimSpace(string(since))
	}
}

// plainly runs a program without a mount namespace of its own, which not every machine allows.
func plainly(_, program string, args ...string) *exec.Cmd { return exec.Command(program, args...) }

func TestMPSDaemonRunsAsLongAsItsClaim(t *testing.T) {
	m := gputest.New(t, 2)
	commands := mpsControl(t, m)
	b := newBench(t, m)
	b.stop()
	b.enter = plainly
	b.start()
	config := gpuConfig(`{"strategy":"MPS","mpsConfig":{"defaultActiveThreadPercentage":50,"defaultPinnedDeviceMemoryLimit":"10Gi",` +
		`"defaultPerDevicePinnedMemoryLimit":{"1":"4Gi"}}}`)
	c := b.claim("u1", []string{config}, device{name: "gpu-0"}, device{name: "gpu-1"})
	ids := b.mustPrepare(c)
	want := fmt.Sprintf("start %s,%s\nset_default_active_thread_percentage 50\nset_default_device_pinned_mem_limit 0 "+
		"10240M\nset_default_device_pinned_mem_limit 1 4096M", m.GPUs[0].UUID, m.GPUs[1].UUID)
	if got := commands(); got != want {
		t.Errorf("the daemon was told\n%s\nwant\n%s", got, want)
	}
	if mode := m.GPUs[1].ComputeMode(); mode != nvml.COMPUTEMODE_EXCLUSIVE_PROCESS {
		t.Errorf("compute mode %d", mode)
	}
	e := b.edits(c, ids[0])
	mounted := map[string]string{}
	for _, m := range e.Mounts {
		mounted[m.ContainerPath] = m.HostPath
	}
	dir := filepath.Join(b.options.MPSDir, "u1")
	if mounted["/tmp/nvidia-mps"] != filepath.Join(dir, "pipe") || mounted["/dev/shm"] != filepath.Join(dir, "shm") {
		t.Errorf("mounts %v", mounted)
	}
	// The daemon ends with the plugin, and starts again with it.
	b.stop()
	if got := commands(); got != "quit -t 5" {
		t.Errorf("the end of the plugin told %q", got)
	}
	b.start()
	b.await(func() bool { return strings.Contains(commands(), "1 4096M") }, "the daemon is set up again")
	if problem := b.unprepare(c); problem != "" {
		t.Error(problem)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("the claim's MPS directory is left")
	}
	if mode := m.GPUs[1].ComputeMode(); mode != nvml.COMPUTEMODE_DEFAULT {
		t.Errorf("compute mode %d after the claim", mode)
	}
}

func TestMPSOnAMIGDevice(t *testing.T) {
	m := gputest.New(t, 1)
	commands := mpsControl(t, m)
	b := newBench(t, m)
	b.stop()
	b.enter = plainly
	b.start()
	c := b.claim("u1", []string{`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"MigDeviceConfig","sharing":{"strategy":"MPS"}}`},
		device{name: "gpu-0-mig-3g20gb-9-0"})
	b.mustPrepare(c)
	if got := commands(); !strings.HasPrefix(got, "start MIG-") {
		t.Errorf("the daemon was told %s", got)
	}
	if problem := b.unprepare(c); problem != "" {
		t.Error(problem)
	}
	if left := m.GPUs[0].Instances(); len(left) > 0 {
		t.Errorf("instances left: %v", left)
	}
}

func TestMPSThatCannotBeHadIsRefused(t *testing.T) {
	b := newBench(t, gputest.New(t, 1))
	for name, c := range map[string]struct {
		device device
		want   string
	}{
		"without the driver's daemon": {device{name: "gpu-0"}, "nvidia-cuda-mps-control"},
		"for a share": {device{name: "gpu-0-shared", share: "s1", capacity: map[string]string{"memory": "1Gi"}},
			"whole GPUs and MIG devices"},
	} {
		t.Run(name, func(t *testing.T) {
			claim := b.claim("u-"+strings.ReplaceAll(name, " ", "-"), []string{gpuConfig(`{"strategy":"MPS"}`)}, c.device)
			if _, problem := b.prepare(claim); !strings.Contains(problem, c.want) {
				t.Errorf("got %q, want it to say %s", problem, c.want)
			}
			if problem := b.unprepare(claim); problem != "" {
				t.Error(problem)
			}
		})
	}
	b.mustPrepare(b.claim("next", nil, device{name: "gpu-0"}))
}

func TestMPSDaemonOutlivesRestartOfPlugin(t *testing.T) {
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
	if got, want := commands(), "start "+m.GPUs[0].UUID; got != want {
		t.Errorf("the daemon was told %q, want %q", got, want)
	}
	b.stop()
	b.start()
	b.mustPrepare(c)
	if got := commands(); got != "" {
		t.Errorf("the restart told the daemon %q", got)
	}
	if problem := b.unprepare(c); problem != "" {
		t.Error(problem)
	}
	if got := commands(); got != "quit -t 5" {
		t.Errorf("the end of the claim told the daemon %q", got)
	}
}

func TestPrepareRefusesMPSLimitOfADeviceOutsideOfTheClaim(t *testing.T) {
	m := gputest.New(t, 1)
	commands := mpsControl(t, m)
	b := newBench(t, m)
	b.stop()
	b.enter = plainly
	b.start()
	c := b.claim("u1", []string{gpuConfig(`{"strategy":"MPS","mpsConfig":{"defaultPinnedDeviceMemoryLimit":"10Gi",` +
		`"defaultPerDevicePinnedMemoryLimit":{"7":"5Gi"}}}`)}, device{name: "gpu-0"})
	want := "defaultPerDevicePinnedMemoryLimit[7]: the claim has no such device; allowed are 0 (" + m.GPUs[0].UUID + ")"
	if _, problem := b.prepare(c); !strings.Contains(problem, want) {
		t.Errorf("got %q", problem)
	}
	if mode := m.GPUs[0].ComputeMode(); commands() != "" || mode != nvml.COMPUTEMODE_DEFAULT {
		t.Errorf("a refused claim starts a daemon, or leaves compute mode %d", mode)
	}
}

func TestPrepareReportsConfigurationWithoutADevice(t *testing.T) {
	b := newBench(t, gputest.New(t, 1))
	b.mustPrepare(b.claim("u1", []string{`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"MigDeviceConfig","sharing":{"strategy":"MPS"}}`},
		device{name: "gpu-0"}))
	const want = "config[0].opaque.parameters has no effect"
	if got := b.event("ResourceClaim", "ConfigWithoutEffect"); !strings.Contains(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestPrepareReportsConfigurationOfADeviceThatIsOnlyObserved(t *testing.T) {
	b := newBench(t, gputest.New(t, 1))
	b.mustPrepare(b.claim("u1", []string{gpuConfig(`{"strategy":"MPS"}`)}, device{name: "gpu-0", admin: true}))
	const want = "config[0].opaque.parameters has no effect"
	if got := b.event("ResourceClaim", "ConfigWithoutEffect"); !strings.Contains(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
