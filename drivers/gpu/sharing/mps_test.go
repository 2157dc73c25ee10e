package sharing

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/gpu/gputest"
	"gpufabric.io/drivers/gpu/programs"
	"gpufabric.io/drivers/hardware/driver"
)

// newMPS makes an MPS whose daemons do something before they listen, and returns what reads what they were told.
func newMPS(t *testing.T, before string) (m *MPS, told func() string) {
	t.Helper()
	root := t.TempDir()
	m = &MPS{
		Dir: t.TempDir(),
		Programs: programs.Runner{
			Driver: func() driver.Location { return driver.Location{Root: driver.Here(root), Dev: driver.Here(root)} },
			Enter:  func(_, program string, args ...string) *exec.Cmd { return exec.Command(program, args...) },
		},
	}
	gputest.MPSControl(t, root, "$CUDA_MPS_LOG_DIRECTORY/told", before)
	t.Cleanup(m.Close)
	return m, func() string {
		text, _ := os.ReadFile(m.directory("u1").path("log/told"))
		return strings.ReplaceAll(strings.TrimSpace(string(text)), "\n", "; ")
	}
}

func limited(device string) Settings {
	percent := 50
	return Settings{Devices: []string{device}, Config: &v1beta1.MpsConfig{DefaultActiveThreadPercentage: &percent}}
}

// A plugin that is killed takes its daemons with it, whose pipes stay. What they were told must be told to those that come after them.
func TestADaemonIsSetUpThoughThePipeOfADeadOneIsThere(t *testing.T) {
	m, told := newMPS(t, "")
	pipe := m.directory("u1").path("pipe")
	if err := errors.Join(os.MkdirAll(pipe, 0o755), os.WriteFile(filepath.Join(pipe, "control"), nil, 0o600),
		os.WriteFile(filepath.Join(pipe, "pid"), []byte("0x"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := m.Start(t.Context(), "u1", limited("gpu")); err != nil {
		t.Fatal(err)
	}
	if got, want := told(), "start gpu; set_default_active_thread_percentage 50"; got != want {
		t.Errorf("told %q, want %q", got, want)
	}
}

// After a reboot a claim's daemon is resumed and its claim prepared again at the same time.
func TestAClaimHasOneDaemonHoweverManyStartIt(t *testing.T) {
	m, told := newMPS(t, "sleep 0.1")
	var starts sync.WaitGroup
	for range 4 {
		starts.Go(func() {
			if err := m.Start(t.Context(), "u1", limited("gpu")); err != nil {
				t.Error(err)
			}
		})
	}
	starts.Wait()
	if got, want := told(), "start gpu; set_default_active_thread_percentage 50"; got != want {
		t.Errorf("told %q, want %q", got, want)
	}
}

func TestADaemonOfOtherDevicesTakesThePlaceOfTheOneThatRuns(t *testing.T) {
	m, told := newMPS(t, "")
	for _, start := range []func() error{
		func() error { return m.Start(t.Context(), "u1", Settings{Devices: []string{"MIG-of-the-last-boot"}}) },
		func() error { return m.Start(t.Context(), "u1", Settings{Devices: []string{"MIG-of-this-boot"}}) },
		func() error { return m.Resume(t.Context(), "u1", Settings{Devices: []string{"MIG-of-the-last-boot"}}) },
	} {
		if err := start(); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := told(), "start MIG-of-the-last-boot; quit -t 5; start MIG-of-this-boot"; got != want {
		t.Errorf("told %q, want %q", got, want)
	}
}

// Every watch of a pipe is one of the 128 inotify instances that a user has on a node.
func TestADaemonThatKeepsEndingCostsNoMoreThanOneWatch(t *testing.T) {
	m, told := newMPS(t, "echo out of memory; exit 3")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.Start(ctx, "u1", limited("gpu")) }()
	for deadline := time.Now().Add(time.Minute); strings.Count(told(), "start") < 4; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("told %q", told())
		}
	}
	if n := watches(t); n > 1 {
		t.Errorf("%d inotify instances are open", n)
	}
	cancel()
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "out of memory") {
		t.Errorf("error %v, want it to have the daemon's last words", err)
	}
	if n := watches(t); n > 0 {
		t.Errorf("%d inotify instances are left", n)
	}
}

func watches(t *testing.T) (n int) {
	t.Helper()
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range open {
		if target, _ := os.Readlink("/proc/self/fd/" + file.Name()); strings.Contains(target, "inotify") {
			n++
		}
	}
	return n
}

func TestClientsOfSeveralUsersShareAServerWhereTheClaimSaysSo(t *testing.T) {
	m, told := newMPS(t, "")
	yes := true
	s := Settings{Devices: []string{"gpu"}, Config: &v1beta1.MpsConfig{MultiUser: &yes}}
	if err := m.Start(t.Context(), "u1", s); err != nil {
		t.Fatal(err)
	}
	if got, want := told(), "start gpu -multiuser-server"; got != want {
		t.Errorf("told %q, want %q", got, want)
	}
}

// A server that goes on after its daemon crashed would hold the GPU, which lets one process in alone.
func TestTheServersOfADaemonThatCrashedEndWithIt(t *testing.T) {
	m, _ := newMPS(t, `sleep 300 & echo $! >> "$CUDA_MPS_LOG_DIRECTORY/servers"; [ -e "$CUDA_MPS_LOG_DIRECTORY/crashed" ] || { touch `+
		`"$CUDA_MPS_LOG_DIRECTORY/crashed"; exit 3; }`)
	if err := m.Start(t.Context(), "u1", limited("gpu")); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(m.directory("u1").path("log/servers"))
	if err != nil {
		t.Fatal(err)
	}
	servers := strings.Fields(string(text))
	if len(servers) != 2 {
		t.Fatalf("servers %v, want the one of the daemon that crashed and the one of the next", servers)
	}
	if state := processState(servers[0]); state != "" && state != "Z" { // nobody may have waited for it
		t.Errorf("the server of the daemon that crashed lives on, in state %s", state)
	}
	if state := processState(servers[1]); state == "" {
		t.Error("the server of the daemon that runs ended")
	}
	m.Close()
}

// processState is the letter that /proc/PID/stat has for a process, empty for one that is gone.
func processState(pid string) string {
	text, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return ""
	}
	_, after, _ := strings.Cut(string(text), ") ")
	return after[:1]
}
