package limiter

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// run builds a target of the Makefile and returns its output.
func run(t *testing.T, arguments ...string) string {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("skipped: the library cannot be built without gcc")
	}
	container := filepath.Join(t.TempDir(), "container")
	// Tests have processes of other users, which a container's directories let in.
	if err := os.Chmod(filepath.Dir(filepath.Dir(container)), 0o755); err != nil {
		t.Fatal(err)
	}
	all := append([]string{"--no-print-directory", "-C", "library", "OUT=" + filepath.Join(t.TempDir(), "build"), "TESTS=" + container},
		arguments...)
	out, err := exec.CommandContext(t.Context(), "make", all...).CombinedOutput()
	if err != nil {
		t.Fatalf("make %s: %v\n%s", strings.Join(arguments, " "), err, out)
	}
	return string(out)
}

func TestLimiterCountsMemoryOfDriver(t *testing.T) {
	t.Log(run(t, "SECONDS=0", "unit"))
}

// Processes are killed with kill -9 at any moment. Their memory is then free again, and the container never has more than its
// limit.
func TestSixtyFourProcessesKilledAtRandomKeepToTheLimit(t *testing.T) {
	t.Log(run(t, "SECONDS=4", "stress"))
}

func TestLimiterSurvivesRandomBytesInFiles(t *testing.T) {
	t.Log(run(t, "fuzz"))
}

func TestLimiterPassesTheSanitizers(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the library three times; -short asks for none of it")
	}
	t.Log(run(t, "sanitize"))
}
