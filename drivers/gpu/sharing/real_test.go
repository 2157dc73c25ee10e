package sharing

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/gpu/gputest"
	"gpufabric.io/drivers/gpu/programs"
	"gpufabric.io/drivers/hardware/driver"
)

// These tests run NVIDIA's own nvidia-cuda-mps-control, which needs no GPU, in driver roots with the C libraries of Debian 11 and
// 13. They are skipped where tests/nvidia-programs has not fetched them.

// real makes an MPS with the real control daemon in a driver root with a C library.
func real(t *testing.T, libc string) *MPS {
	t.Helper()
	gputest.NeedsMounts(t)
	root := gputest.DriverRoot(t, libc != "libc6_2.31", gputest.NVIDIAProgram(t, libc), gputest.NVIDIAProgram(t, "nvidia-cuda-mps_550"))
	dev := t.TempDir()
	for _, node := range []string{"nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1"} {
		if err := os.WriteFile(filepath.Join(dev, node), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	dir, err := os.MkdirTemp("", "mps") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	m := &MPS{Dir: dir, Programs: programs.Runner{
		Driver: func() driver.Location { return driver.Location{Root: driver.Here(root), Dev: driver.Here(dev)} },
		Enter:  programs.Reexec("driver-program"),
	}}
	t.Cleanup(func() {
		m.Close()
		_ = os.RemoveAll(dir)
	})
	return m
}

// answer is the real daemon's answer to a command for claim u1.
func answer(t *testing.T, m *MPS, command string) string {
	t.Helper()
	m.mu.Lock()
	d := m.daemons["u1"]
	m.mu.Unlock()
	said, err := d.send(t.Context(), command)
	if err != nil {
		t.Fatal(err)
	}
	return said
}

func settings(config v1beta1.MpsConfig) Settings {
	return Settings{Devices: []string{"GPU-a", "GPU-b"}, Nodes: []string{"nvidia0", "nvidia1"}, Config: &config}
}

func TestRealDaemonTakesTheLimitsOfAClaim(t *testing.T) {
	t.Parallel()
	for _, libc := range []string{"libc6_2.31", "libc6_2.41"} {
		t.Run(libc, func(t *testing.T) {
			m := real(t, libc)
			percent, limit := 50, resource.MustParse("10Gi")
			s := settings(v1beta1.MpsConfig{
				DefaultActiveThreadPercentage: &percent, DefaultPinnedDeviceMemoryLimit: &limit,
				DefaultPerDevicePinnedMemoryLimit: map[string]resource.Quantity{"1": resource.MustParse("1500Mi")},
			})
			if err := m.Start(t.Context(), "u1", s); err != nil {
				t.Fatal(err)
			}
			for command, want := range map[string]string{
				"get_default_active_thread_percentage": "50.0", "get_default_device_pinned_mem_limit 0": "10G",
				"get_default_device_pinned_mem_limit 1": "1G", "get_server_list": "",
			} {
				if got := answer(t, m, command); got != want {
					t.Errorf("%s: %q, want %q", command, got, want)
				}
			}
			start := time.Now()
			if err := m.Stop(t.Context(), "u1"); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(start); took > quitPatience {
				t.Errorf("it ended after %s: killed, and not by %q", took, quit())
			}
		})
	}
}

func TestRealDaemonIgnoringASettingIsReported(t *testing.T) {
	t.Parallel()
	m := real(t, "libc6_2.41")
	little := resource.MustParse("1000")
	err := m.Start(t.Context(), "u1", settings(v1beta1.MpsConfig{DefaultPinnedDeviceMemoryLimit: &little}))
	if err == nil || !strings.Contains(err.Error(), "rejected") {
		t.Errorf("a limit below a mebibyte, with which it sets none: %v", err)
	}
	yes := true
	ctx, cancel := contextFor(t, 5*time.Second)
	defer cancel()
	err = m.Start(ctx, "u1", settings(v1beta1.MpsConfig{MultiUser: &yes}))
	if err == nil || !strings.Contains(err.Error(), "multiUser") || !strings.Contains(err.Error(), "newer driver") {
		t.Errorf("multiUser, which version 550 does not know: %v", err)
	}
}

// The real daemon opens its lock and its PID file through links, and truncates their targets: as root, on the host, if it did not
// have its own root.
func TestRealDaemonDoesNotFollowATenantsLinks(t *testing.T) {
	t.Parallel()
	m := real(t, "libc6_2.41")
	if err := m.Start(t.Context(), "u1", settings(v1beta1.MpsConfig{})); err != nil {
		t.Fatal(err)
	}
	outside := t.TempDir()
	kept, pipe := filepath.Join(outside, "kept"), m.directory("u1").path("pipe")
	if err := os.WriteFile(kept, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"control_lock", "nvidia-cuda-mps-control.pid", "log"} {
		// A file that the daemon has not made yet is made through the link.
		if err := errors.Join(os.RemoveAll(filepath.Join(pipe, name)), os.Symlink(kept, filepath.Join(pipe, name))); err != nil {
			t.Fatal(err)
		}
	}
	m.Close()
	// As if the links came back right after the directory was emptied.
	d := &daemon{directory: m.directory("u1"), programs: m.Programs, settings: settings(v1beta1.MpsConfig{})}
	if err := d.directory.prepare(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"control_lock", "nvidia-cuda-mps-control.pid"} {
		if err := os.Symlink(kept, filepath.Join(pipe, name)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := contextFor(t, 2*time.Second)
	defer cancel()
	cmd, err := d.command(ctx, "-f")
	if err != nil {
		t.Fatal(err)
	}
	out, _ := cmd.CombinedOutput() // it is killed by ctx, or cannot start
	if text, err := os.ReadFile(kept); err != nil || string(text) != "kept" {
		t.Errorf("what a link led to is %q, %v; it said %s", text, err, out)
	}
	info, err := os.Stat(kept)
	if err != nil {
		t.Fatal(err)
	}
	if links := info.Sys().(*syscall.Stat_t).Nlink; links != 1 {
		t.Errorf("%d names lead to it", links)
	}
}

func TestRealDaemonOutlivesItsRequester(t *testing.T) {
	t.Parallel()
	m := real(t, "libc6_2.41")
	end := keep(t, m)
	percent := 30
	s := settings(v1beta1.MpsConfig{DefaultActiveThreadPercentage: &percent})
	for range 2 {
		if err := (Kept{Dir: m.Dir}).Resume(t.Context(), "u1", s); err != nil {
			t.Fatal(err)
		}
	}
	if got := answer(t, m, "get_default_active_thread_percentage"); got != "30.0" {
		t.Errorf("it has %q", got)
	}
	if err := (Kept{Dir: m.Dir}).Stop(t.Context(), "u1"); err != nil {
		t.Error(err)
	}
	end()
}
