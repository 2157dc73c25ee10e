package nvmltest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gpufabric.io/fakes/built"
	"gpufabric.io/fakes/fault"
	"gpufabric.io/fakes/internal/memdir"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/trace"
	"gpufabric.io/fakes/tree"
)

func TestMain(m *testing.M) { os.Exit(memdir.Run(m)) }

// client renders a node and gives its root and a command that runs testdata/client.c on its library.
func client(t *testing.T, args ...string) (root string, cmd *exec.Cmd) {
	t.Helper()
	p, err := profile.Load("h100-hgx")
	if err != nil {
		t.Fatal(err)
	}
	root = t.TempDir()
	if err := tree.Render(t.Context(), tree.Options{Profile: p, Root: root, PlainDevices: true,
		LibraryDir: filepath.Join(built.Dir(t), "lib")}); err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(t.TempDir(), "client")
	if out, err := exec.CommandContext(t.Context(), "gcc", "-o", binary, "testdata/client.c", "-ldl").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd = exec.CommandContext(t.Context(), binary, append([]string{filepath.Join(root, "driver/usr/lib64/libnvidia-ml.so.1")}, args...)...)
	cmd.Stderr = os.Stderr
	return root, cmd
}

// numbers runs a client and reads the two numbers that it prints, the first of which must be 0 (NVML_SUCCESS).
func numbers(t *testing.T, cmd *exec.Cmd) int {
	t.Helper()
	out, err := cmd.Output()
	var result, number int
	if _, scanErr := fmt.Sscan(string(out), &result, &number); err != nil || scanErr != nil || result != 0 {
		t.Fatalf("%q %v", out, err)
	}
	return number
}

// TestOldVersionsStayInTheirStructures: the name without a version has 32 bytes and the second version 52; the third, of 68, would
// overwrite what follows.
func TestOldVersionsStayInTheirStructures(t *testing.T) {
	for function, size := range map[string]int{"nvmlDeviceGetPciInfo": 32, "nvmlDeviceGetPciInfo_v2": 52, "nvmlDeviceGetPciInfo_v3": 68} {
		t.Run(function, func(t *testing.T) {
			_, cmd := client(t, "written", function)
			if reached := numbers(t, cmd); reached > size {
				t.Errorf("it writes %d bytes into a structure of %d", reached, size)
			}
		})
	}
}

// A driver may be installed after the library was loaded and started without success: the library must not remember where it
// looked.
func TestLibraryFindsADriverThatComesLater(t *testing.T) {
	root, cmd := client(t)
	elsewhere := filepath.Join(t.TempDir(), "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")
	library, err := os.ReadFile(cmd.Args[1])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(elsewhere), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(elsewhere, library, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd.Args = []string{cmd.Args[0], elsewhere, "late", root}
	const notLoaded = 9 // NVML_ERROR_DRIVER_NOT_LOADED
	if before := numbers(t, cmd); before != notLoaded {
		t.Errorf("before its driver it starts with %d, want %d", before, notLoaded)
	}
}

func TestDelaySurvivesASignal(t *testing.T) {
	root, cmd := client(t, "slow")
	if err := fault.Apply(root, "delay", fault.Arguments{"function": "nvmlDeviceGetName", "ms": "300"}); err != nil {
		t.Fatal(err)
	}
	if took := numbers(t, cmd); took < 300 {
		t.Errorf("a call that is to take 300 ms took %d", took)
	}
}

func TestTraceIsCompleteForALongProgramName(t *testing.T) {
	_, cmd := client(t, "written", "nvmlDeviceGetPciInfo_v3")
	file := filepath.Join(t.TempDir(), "trace")
	cmd.Env = append(os.Environ(), "FAKEFABRIC_TRACE="+file)
	cmd.Args[0] = strings.Repeat("n", 4000)
	numbers(t, cmd)
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // only read from
	calls, damaged, err := trace.Read(f)
	if err != nil || damaged != 0 || len(calls) != 3 {
		t.Errorf("%d calls, %d damaged lines, %v; want the three calls", len(calls), damaged, err)
	}
}

// nvml.h: NVML_ERROR_LIB_RM_VERSION_MISMATCH (18).
func TestLibraryDoesNotStartWithModulesOfAnotherVersion(t *testing.T) {
	root, cmd := client(t, "written", "nvmlDeviceGetPciInfo_v3")
	if err := fault.Apply(root, "driver-version", fault.Arguments{"version": "535.261.03"}); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "trace")
	cmd.Env = append(os.Environ(), "FAKEFABRIC_TRACE="+file)
	if err := cmd.Run(); err == nil {
		t.Error("the client was served")
	}
	text, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(text), "\tnvmlInit_v2\t18\t") {
		t.Errorf("the trace has no nvmlInit_v2 that ended with 18: %s, %v", text, err)
	}
}
