package programs

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpufabric.io/drivers/gpu/gputest"
	"gpufabric.io/drivers/node/seccomp/seccomptest"
)

// imposter is a driver root whose control daemon is this test program.
func imposter(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	program := filepath.Join(root, "usr/bin/nvidia-cuda-mps-control")
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(own)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(program), 0o755), os.WriteFile(program, content, 0o755)); err != nil { //nolint:gosec // run
		t.Fatal(err)
	}
	return root
}

func TestSeccompLimitsAnUnprivilegedProgram(t *testing.T) {
	gputest.NeedsMounts(t)
	share := Share{Apart: true, Unprivileged: true}
	out, err := run(t, runner(imposter(t), t.TempDir()), share, "nvidia-cuda-mps-control", seccomptest.Word)
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Logf("attacker sees: %s", strings.ReplaceAll(out, "\n", ", "))
	if out != seccomptest.Refused {
		t.Errorf("the kernel answers\n%s\nwant\n%s", out, seccomptest.Refused)
	}
}
