//shows:vgpu-limits
package cores

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpufabric.io/drivers/gpu/limiter"
	"gpufabric.io/fakes/built"
	"gpufabric.io/fakes/nvmlstate"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/tree"
)

// seconds is how long each container works: with -seconds=30 the test says what a quiet machine keeps.
var seconds = flag.Float64("seconds", 1, "how long each container launches kernels")

// machine renders a node with the CUDA stand-in, and returns its libcuda.so.1 and the first GPU.
func machine(t *testing.T) (cuda, gpu string) {
	t.Helper()
	p, err := profile.Load("l40s-8")
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	if err := tree.Render(t.Context(), tree.Options{Profile: p, Root: root, PlainDevices: true,
		LibraryDir: filepath.Join(built.Dir(t), "lib")}); err != nil {
		t.Fatal(err)
	}
	lib := nvmlstate.New(root)
	if r := lib.Init(); r != nvml.SUCCESS {
		t.Fatal(r)
	}
	d, r := lib.DeviceGetHandleByIndex(0)
	if r != nvml.SUCCESS {
		t.Fatal(r)
	}
	if gpu, r = d.GetUUID(); r != nvml.SUCCESS {
		t.Fatal(r)
	}
	return filepath.Join(root, "driver/usr/lib64/libcuda.so.1"), gpu
}

func command(t *testing.T, program string, arguments ...string) {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("skipped: the libraries cannot be built without gcc")
	}
	if out, err := exec.CommandContext(t.Context(), program, arguments...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", program, arguments, err, out)
	}
}

// place is a container's files, and the library that looks for them there. A claim's share of a GPU has a socket of its own.
func place(t *testing.T, a *Arbiter, name, gpu string, cores int, claim bool) (preload string) {
	t.Helper()
	files, err := os.MkdirTemp("", "place-") // shorter than the test's own: a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(files) })
	out, turns, limits := t.TempDir(), filepath.Join(files, "turns"), filepath.Join(files, "limits")
	if claim {
		turns, limits = filepath.Join(files, "turns.d", gpu), filepath.Join(files, "limits.d", name)
	}
	for _, path := range []string{turns, limits} {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	given := []limiter.Limit{{UUID: gpu, Cores: cores}}
	text, err := limiter.Text(given, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(limits, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := a.Open(name, given); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(a.Path(name), turns); err != nil {
		t.Fatal(err)
	}
	library := filepath.Join(out, "testing/libvgpu.so")
	command(t, "make", "-C", "../../gpu/limiter/library", "OUT="+out, "TESTS="+files, library)
	return "LD_PRELOAD=" + library
}

// What a container ran is bounded whatever the machine does: it ran in its turns, and those are counted. Nobody waits for ever.
func TestTheLibraryAsksTheArbiterAndKeepsToItsTurns(t *testing.T) {
	cuda, gpu := machine(t)
	spin := filepath.Join(t.TempDir(), "spin")
	command(t, "gcc", "-o", spin, "testdata/spin.c", "-ldl")
	for _, test := range []struct {
		lend      bool
		cores     []int
		processes int // of each container
		claim     bool
	}{
		{false, []int{25}, 1, false}, {true, []int{50, 50}, 1, false}, {false, []int{10, 75}, 1, false},
		{false, []int{25}, 2, true}, {true, []int{50, 50}, 2, true},
	} {
		a := &Arbiter{Directory: t.TempDir(), Lend: test.lend}
		count, passed := make([]float64, len(test.cores)), make([]float64, len(test.cores))
		var preload []string
		for i, cores := range test.cores {
			preload = append(preload, place(t, a, fmt.Sprintf("uid-%d_main", i), gpu, cores, test.claim))
		}
		var all sync.WaitGroup
		var mu sync.Mutex
		began := time.Now()
		for i := range test.cores {
			for range test.processes {
				process := exec.CommandContext(t.Context(), spin, cuda, fmt.Sprint(*seconds))
				process.Env = append(os.Environ(), preload[i])
				process.Stderr = os.Stderr
				all.Go(func() {
					out, err := process.Output()
					if err != nil {
						t.Error(err)
					}
					var ran, took float64
					if n, err := fmt.Sscan(string(out), &ran, &took); n != 2 {
						t.Errorf("%q: %v", out, err)
					}
					mu.Lock()
					defer mu.Unlock()
					count[i], passed[i] = count[i]+ran, max(passed[i], took)
				})
			}
		}
		all.Wait()
		charged := map[string]float64{}
		for name := range a.containers {
			charged[name] = float64(a.Charged(name, gpu).Milliseconds())
		}
		for i, cores := range test.cores {
			had := charged[fmt.Sprintf("uid-%d_main", i)]
			t.Logf("%d processes, claim %t, lent %t, %d %%: %.1f %% in %.0f ms; charged %.0f ms", test.processes, test.claim,
				test.lend, cores, 100*count[i]/passed[i], passed[i], had)
			// A kernel of the stand-in lasts a millisecond; its clock has microseconds.
			if count[i] == 0 || count[i] > had+2 {
				t.Errorf("lent %t, %d %%: %.0f ms of kernels ran, and %.0f ms are charged", test.lend, cores, count[i], had)
			}
			most := float64(time.Since(began).Milliseconds())*float64(cores)/100 + float64((reserve + turn).Milliseconds()) + 50
			if !test.lend && count[i] > most {
				t.Errorf("%d processes of %d %%: %.0f ms of kernels, at most %.0f", test.processes, cores, count[i], most)
			}
		}
		a.Stop()
	}
}
