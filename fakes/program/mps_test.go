package program_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gpufabric.io/fakes/built"
)

// TestMPSDaemonListensWhenItsStartReturns runs what scripts do: start the daemon, and talk to it in the next line.
func TestMPSDaemonListensWhenItsStartReturns(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "nvidia-cuda-mps-control")
	if err := os.Symlink(filepath.Join(built.Dir(t), "fakefabric"), program); err != nil {
		t.Fatal(err)
	}
	control := func(stdin string, args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), program, args...)
		cmd.Env = append(os.Environ(), "CUDA_MPS_PIPE_DIRECTORY="+filepath.Join(dir, "pipe"), "CUDA_MPS_LOG_DIRECTORY="+filepath.Join(dir, "log"))
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := control("", "-d"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	defer func() {
		if out, err := control("quit\n"); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	}()
	if out, err := control("get_default_active_thread_percentage\n"); err != nil || out != "100.0\n" {
		t.Errorf("the line after -d: %q %v", out, err)
	}
	if out, err := control("", "-d"); err == nil || !strings.Contains(out, "already running") {
		t.Errorf("a second -d: %q %v", out, err)
	}
}
