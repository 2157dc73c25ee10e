package conformance

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"

	"gpufabric.io/fakes/built"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/tree"
)

func TestLibraryUsesLittleMemory(t *testing.T) {
	p, err := profile.Load("h100-hgx")
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	if err := tree.Render(t.Context(), tree.Options{Profile: p, Root: root, LibraryDir: filepath.Join(built.Dir(t), "lib"),
		PlainDevices: true}); err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(t.TempDir(), "weight")
	if out, err := exec.CommandContext(t.Context(), "gcc", "-o", binary, "testdata/weight.c", "-ldl").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out := output(t, nil, binary, filepath.Join(root, "driver/usr/lib64/libnvidia-ml.so.1"))
	var threads, handlers, kib, gpus int
	if _, err := fmt.Sscan(out, &threads, &handlers, &kib, &gpus); err != nil {
		t.Fatalf("%q: %v", out, err)
	}
	t.Logf("%d KiB", kib)
	if threads != 0 || handlers != 0 || kib >= 64 || gpus != 8 {
		t.Errorf("threads +%d, signal handlers +%d, memory +%d KiB, %d GPUs; allowed are 0, 0, 63", threads, handlers, kib, gpus)
	}
}
