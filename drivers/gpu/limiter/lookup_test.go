package limiter

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// NCCL binds the memory of NVLink SHARP to multicast objects. CUDA 13.1 has second versions of these functions, with a device among
// their arguments, and cuGetProcAddress returns them by the name of the first ones.
func TestLibraryPassesArgumentsOfEachVersionOfMulticastBindings(t *testing.T) {
	build := filepath.Join(t.TempDir(), "build")
	run(t, "OUT="+build, filepath.Join(build, "libvgpu.so"))
	directory := t.TempDir()
	program := filepath.Join(directory, "program")
	for _, arguments := range [][]string{
		{"-shared", "-fPIC", "-o", filepath.Join(directory, "libcuda.so.1"), "testdata/multicast_driver.c"},
		{"-o", program, "testdata/multicast.c", "-ldl"},
	} {
		if out, err := exec.CommandContext(t.Context(), "gcc", arguments...).CombinedOutput(); err != nil {
			t.Fatalf("gcc %v: %v\n%s", arguments, err, out)
		}
	}
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Env = []string{"LD_LIBRARY_PATH=" + directory, "LD_PRELOAD=" + filepath.Join(build, "libvgpu.so")}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	want := strings.Repeat("memory 1 200000000 2 300000000 400000000 5\nmemory of 7 1 200000000 2 300000000 400000000 5\n"+
		"address 1 200000000 2 400000000 5\naddress of 7 1 200000000 2 400000000 5\n", 2)
	if string(out) != want {
		t.Errorf("the driver got\n%swant\n%s", out, want)
	}
}
