package drain

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"gpufabric.io/drivers/node/host"
)

// order runs a command.
func order(t *testing.T, command func(host.Host) *cobra.Command, args ...string) error {
	t.Helper()
	cmd := command(host.Host{Stdout: io.Discard, Stderr: io.Discard})
	cmd.SetArgs(args)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	return cmd.ExecuteContext(t.Context())
}

func TestCommandReportsThatNoPluginRuns(t *testing.T) {
	if err := order(t, Command, "--state-dir", t.TempDir()); err == nil || !strings.Contains(err.Error(), "no gpu-plugin answers") {
		t.Errorf("got %v", err)
	}
}

func TestCommandDrainsANodeWithoutGPUPlugin(t *testing.T) {
	d := directory(t)
	release := make(chan struct{}, 2)
	uses, _ := run(t, d, "vgpu-plugin", release)
	expect(t, uses, true)
	alone := []string{"--without-gpu-plugin", "--drain-dir", d.Path}
	if err := order(t, Command, append(alone, "--timeout", "50ms")...); err == nil || !strings.Contains(err.Error(), "vgpu-plugin") {
		t.Errorf("a drain without time for vgpu-plugin's pod: %v", err)
	}
	is(t, d, "given up", None, "")
	drained := make(chan error, 1)
	go func() { drained <- order(t, Command, alone...) }()
	await(t, d, Draining) // a pod that ended before would end the role's use of NVML for the first drain
	release <- struct{}{}
	if err := <-drained; err != nil {
		t.Fatal(err)
	}
	expect(t, uses, false)
	is(t, d, "drained", Drained, "")
	if err := order(t, UndrainCommand, alone...); err != nil {
		t.Fatal(err)
	}
	expect(t, uses, true)
	is(t, d, "undrained", None, "")
}

func TestOpenedByNamesProgramsThatHaveAGPUOpen(t *testing.T) {
	proc := t.TempDir()
	process := func(pid, name string, open ...string) {
		t.Helper()
		fds := filepath.Join(proc, pid, "fd")
		if err := os.MkdirAll(fds, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(proc, pid, "comm"), []byte(name+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		for i, target := range open {
			if err := os.Symlink(target, filepath.Join(fds, string(rune('3'+i)))); err != nil {
				t.Fatal(err)
			}
		}
	}
	process("17", "dcgm-exporter", "/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia0")
	process("18", "sshd", "/dev/null", "socket:[1]")
	process("19", "gpufabric", "/dev/nvidiactl")
	got := openedBy(proc, 19)
	if want := []string{"process 17 (dcgm-exporter) still has /dev/nvidia0, /dev/nvidiactl open"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
