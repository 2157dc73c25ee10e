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

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/resource"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/gpu/gputest"
	"gpufabric.io/drivers/gpu/programs"
	"gpufabric.io/drivers/hardware/driver"
	"gpufabric.io/drivers/node/tmpfs"
)

// newMPS makes an MPS whose daemons run shell commands before they listen. It returns a function that reads the commands that they
// got.
func newMPS(t *testing.T, before string) (m *MPS, commands func() string) {
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

// A killed plugin takes its daemons with it; their pipes stay. The settings of the ended daemons must be set in those that replace
// them.
func TestMPSStartsDespiteThePipeOfADeadDaemon(t *testing.T) {
	t.Parallel()
	m, commands := newMPS(t, "")
	pipe := m.directory("u1").path("pipe")
	if err := errors.Join(os.MkdirAll(pipe, 0o755), os.WriteFile(filepath.Join(pipe, "control"), nil, 0o600),
		os.WriteFile(filepath.Join(pipe, "pid"), []byte("0x"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := m.Start(t.Context(), "u1", limited("gpu")); err != nil {
		t.Fatal(err)
	}
	if got, want := commands(), "start gpu; set_default_active_thread_percentage 50"; got != want {
		t.Errorf("told %q, want %q", got, want)
	}
}

// After a reboot a claim's daemon is resumed while its claim is prepared again.
func TestMPSStartsOneDaemonForAClaim(t *testing.T) {
	t.Parallel()
	m, commands := newMPS(t, "sleep 0.1")
	var starts sync.WaitGroup
	for range 4 {
		starts.Go(func() {
			if err := m.Start(t.Context(), "u1", limited("gpu")); err != nil {
				t.Error(err)
			}
		})
	}
	starts.Wait()
	if got, want := commands(), "start gpu; set_default_active_thread_percentage 50"; got != want {
		t.Errorf("told %q, want %q", got, want)
	}
}

func TestMPSReplacesADaemonOfOtherDevices(t *testing.T) {
	t.Parallel()
	m, commands := newMPS(t, "")
	for _, start := range []func() error{
		func() error { return m.Start(t.Context(), "u1", Settings{Devices: []string{"MIG-of-the-last-boot"}}) },
		func() error { return m.Start(t.Context(), "u1", Settings{Devices: []string{"MIG-of-this-boot"}}) },
		func() error { return m.Resume(t.Context(), "u1", Settings{Devices: []string{"MIG-of-the-last-boot"}}) },
	} {
		if err := start(); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := commands(), "start MIG-of-the-last-boot; quit -t 5; start MIG-of-this-boot"; got != want {
		t.Errorf("told %q, want %q", got, want)
	}
}

// Every watch of a pipe is one of the 128 inotify instances that a user has on a node.
// It counts the process's inotify instances, so it does not run beside other tests.
func TestMPSUsesOneWatchForADaemonThatKeepsEnding(t *testing.T) {
	m, commands := newMPS(t, "echo out of memory; exit 3")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.Start(ctx, "u1", limited("gpu")) }()
	for deadline := time.Now().Add(time.Minute); strings.Count(commands(), "start") < 4; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("told %q", commands())
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

func TestMPSClientsOfSeveralUsersShareServerOnRequest(t *testing.T) {
	t.Parallel()
	m, commands := newMPS(t, "")
	yes := true
	s := Settings{Devices: []string{"gpu"}, Config: &v1beta1.MpsConfig{MultiUser: &yes}}
	if err := m.Start(t.Context(), "u1", s); err != nil {
		t.Fatal(err)
	}
	if got, want := commands(), "start gpu -multiuser-server"; got != want {
		t.Errorf("told %q, want %q", got, want)
	}
}

// A client that connects before the first command gets a server with the limits that the daemon started with, for the server's life.
func TestDaemonStartsWithItsLimitsInItsEnvironment(t *testing.T) {
	t.Parallel()
	m, _ := newMPS(t, `echo "$CUDA_MPS_ACTIVE_THREAD_PERCENTAGE $CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" > "$CUDA_MPS_LOG_DIRECTORY/limits"`)
	percent, limit := 30, resource.MustParse("4Gi")
	s := Settings{Devices: []string{"GPU-a", "GPU-b", "GPU-c"}, Config: &v1beta1.MpsConfig{
		DefaultActiveThreadPercentage: &percent, DefaultPinnedDeviceMemoryLimit: &limit,
		DefaultPerDevicePinnedMemoryLimit: map[string]resource.Quantity{"GPU-b": resource.MustParse("1500Mi")},
	}}
	if err := m.Start(t.Context(), "u1", s); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(m.directory("u1").path("log/limits"))
	if want := "30 0=4096M,1=1500M,2=4096M\n"; err != nil || string(text) != want {
		t.Errorf("it starts with %q, %v, want %q", text, err, want)
	}
}

// A server that goes on after its daemon crashed would hold the GPU, which allows only one process.
func TestMPSEndsServersOfACrashedDaemon(t *testing.T) {
	t.Parallel()
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
	if state := processState(servers[0]); state != "" && state != "Z" { // it may not have been reaped
		t.Errorf("the server of the daemon that crashed lives on, in state %s", state)
	}
	if state := processState(servers[1]); state == "" {
		t.Error("the server of the daemon that runs ended")
	}
	m.Close()
}

// processState is the state letter in /proc/PID/stat, empty for a process that is gone.
func processState(pid string) string {
	text, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return ""
	}
	_, after, _ := strings.Cut(string(text), ") ")
	return after[:1]
}

// The containers of one claim can fill neither /run nor another claim's directories.
func TestMPSBoundsTheDirectoryOfAClaim(t *testing.T) {
	t.Parallel()
	m, _ := newMPS(t, "")
	m.Bounds = tmpfs.Bounds{Bytes: 1 << 20, Files: 64}
	mine, theirs := m.directory("u1"), m.directory("u2")
	err := mine.prepare()
	if errors.Is(err, unix.EPERM) {
		t.Skipf("mounting is for root alone: %v", err)
	}
	t.Cleanup(func() {
		if err := errors.Join(mine.remove(), theirs.remove()); err != nil {
			t.Error(err)
		}
	})
	if err := errors.Join(err, theirs.prepare(), mine.prepare()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"shm", "pipe", "log"} {
		err := os.WriteFile(mine.path(name+"/junk"), make([]byte, 17<<20), 0o600)
		if !errors.Is(err, unix.ENOSPC) {
			t.Errorf("17 MiB in the directory %s: %v", name, err)
		}
		t.Logf("attacker sees: %v", err)
	}
	if err := os.WriteFile(theirs.path("shm/theirs"), make([]byte, 1<<19), 0o600); err != nil {
		t.Errorf("another claim's directory is full, too: %v", err)
	}
	if err := os.WriteFile(mine.path("settings.json"), []byte("{}"), 0o600); err != nil {
		t.Errorf("the keeper cannot keep the claim's settings: %v", err)
	}
	// After a reboot the file systems are gone and their directories stay: they get bounds again.
	if err := errors.Join(tmpfs.Release(theirs.path("shm")), theirs.prepare()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(theirs.path("shm/junk"), make([]byte, 2<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("after a boot 2 MiB in a /dev/shm of 1 MiB: %v", err)
	}
	if err := mine.remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(filepath.Dir(mine.path("shm"))); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a claim that ended leaves its directory: %v", err)
	}
}

// Containers from before an upgrade keep their directories.
func TestMPSDoesNotMountOverExistingFiles(t *testing.T) {
	t.Parallel()
	m, _ := newMPS(t, "")
	d := m.directory("u1")
	if err := d.prepare(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.path("shm/theirs"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	m.Bounds = tmpfs.Bounds{Bytes: 1 << 20, Files: 64}
	d = m.directory("u1")
	err := d.prepare()
	if errors.Is(err, unix.EPERM) {
		t.Skipf("mounting is for root alone: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(d.path("shm/theirs")); err != nil {
		t.Errorf("a container's /dev/shm is another than its daemon's: %v", err)
	}
	if err := d.remove(); err != nil {
		t.Fatal(err)
	}
}

func TestMPSNamesAnInvalidSize(t *testing.T) {
	t.Parallel()
	for size, want := range map[string]int64{"": 0, "0": 0, "1Gi": 1 << 30} {
		if got, err := ParseBounds(size); err != nil || got.Bytes != want {
			t.Errorf("%q is %d bytes, %v", size, got.Bytes, err)
		}
	}
	for _, size := range []string{"much", "-1Gi"} {
		if _, err := ParseBounds(size); err == nil || !strings.Contains(err.Error(), "--mps-size") {
			t.Errorf("%q: %v", size, err)
		}
	}
}
