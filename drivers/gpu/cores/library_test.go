package cores

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpufabric.io/drivers/gpu/limiter"
	"gpufabric.io/fakes/built"
	"gpufabric.io/fakes/nvmlstate"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/tree"
)

// seconds is how long each container works: with -seconds=30 the test measures a quiet machine.
var seconds = flag.Float64("seconds", 1, "how long each container launches kernels")

// machine renders a node with the CUDA stand-in, and returns its libcuda.so.1 and the first two GPUs.
func machine(t *testing.T) (cuda string, gpus [2]string) {
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
	for i := range gpus {
		d, r := lib.DeviceGetHandleByIndex(i)
		if r != nvml.SUCCESS {
			t.Fatal(r)
		}
		if gpus[i], r = d.GetUUID(); r != nvml.SUCCESS {
			t.Fatal(r)
		}
	}
	return filepath.Join(root, "driver/usr/lib64/libcuda.so.1"), gpus
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

// compiled is a program of testdata.
func compiled(t *testing.T, name string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), name)
	command(t, "gcc", "-o", program, "testdata/"+name+".c", "-ldl")
	return program
}

// container is the files of one, and the library that looks for them there.
type container struct{ files, library string }

// libraries is where the tests keep the libraries of two containers, which they use one after another.
var libraries string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	var err error
	if libraries, err = os.MkdirTemp("", "cores-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(libraries) }() // leftovers are in a directory for temporary files
	return m.Run()
}

// pair are two containers, the library of which is built once.
func pair(t *testing.T) (out [2]container) {
	t.Helper()
	for i := range out {
		directory := filepath.Join(libraries, fmt.Sprint(i))
		out[i] = container{filepath.Join(directory, "files"), filepath.Join(directory, "testing/libvgpu.so")}
		if err := os.MkdirAll(out[i].files, 0o700); err != nil {
			t.Fatal(err)
		}
		command(t, "make", "-C", "../../gpu/limiter/library", "OUT="+directory, "TESTS="+out[i].files, out[i].library)
	}
	return out
}

// seat gives the container limits and a seat, in the place of those that it had. It returns the variable by which a process has the
// library.
func (c container) seat(t *testing.T, s *Seats, name string, limits ...limiter.Limit) (preload string) {
	t.Helper()
	for _, directory := range []string{"cores", "cores.own"} {
		path := filepath.Join(c.files, directory)
		if err := errors.Join(os.RemoveAll(path), os.Mkdir(path, 0o700)); err != nil {
			t.Fatal(err)
		}
	}
	text, err := limiter.Text(limits, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(c.files, "limits"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	open(t, s, name, limits...)
	for _, m := range s.Mounts(name, limits) {
		if err := os.Symlink(m.HostPath, filepath.Join(c.files, strings.TrimPrefix(m.ContainerPath, "/usr/local/vgpu/"))); err != nil {
			t.Fatal(err)
		}
	}
	return "LD_PRELOAD=" + c.library
}

// The time that a container ran is bounded whatever the machine does: it is charged for it, and pauses when its budget is used up.
// No launch waits for ever.
func TestLibraryKeepsToItsBudget(t *testing.T) {
	cuda, gpus := machine(t)
	gpu, spin := gpus[0], compiled(t, "spin")
	containers := pair(t)
	for _, test := range []struct {
		lend      bool
		cores     []int
		processes int // of each container
	}{
		{false, []int{25}, 1}, {true, []int{50, 50}, 1}, {false, []int{10, 75}, 1}, {false, []int{25}, 2},
	} {
		s := &Seats{Directory: t.TempDir(), Lend: test.lend}
		count, passed := make([]float64, len(test.cores)), make([]float64, len(test.cores))
		var preload []string
		for i, cores := range test.cores {
			preload = append(preload, containers[i].seat(t, s, fmt.Sprintf("uid-%d_main", i), share(gpu, cores)))
		}
		var all sync.WaitGroup
		var mu sync.Mutex
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
		for i, cores := range test.cores {
			had := s.Charged(fmt.Sprintf("uid-%d_main", i), gpu).Milliseconds()
			t.Logf("%d processes, lent %t, %d %%: %.1f %% in %.0f ms; charged %d ms", test.processes, test.lend, cores, 100*count[i]/passed[i],
				passed[i], had)
			if count[i] == 0 || had == 0 {
				t.Errorf("lent %t, %d %%: %.0f ms of kernels ran, and %d ms are charged", test.lend, cores, count[i], had)
			}
			// A debt of 100 ms, the savings, and the work ahead of the GPU.
			most := passed[i]*float64(cores)/100 + 100 + 30 + 20*float64(test.processes) + 50
			if !test.lend && count[i] > most {
				t.Errorf("%d processes of %d %%: %.0f ms of kernels, at most %.0f", test.processes, cores, count[i], most)
			}
		}
	}
}

// A step ends when all ranks are there. Where containers exclude each other from a GPU, a rank of one job waits for a GPU that the other
// job has, which waits for the GPU of the first job's other rank.
func TestLibraryLetsJobsOverTheSameGPUsGoOn(t *testing.T) {
	cuda, gpus := machine(t)
	gang := compiled(t, "gang")
	containers := pair(t)
	for _, jobs := range []int{1, 2} {
		for _, lend := range []bool{true, false} {
			s := &Seats{Directory: t.TempDir(), Lend: lend}
			var preload []string
			for i := range jobs {
				preload = append(preload, containers[i].seat(t, s, fmt.Sprintf("uid-%d_main", i), share(gpus[0], 50), share(gpus[1], 50)))
			}
			var all sync.WaitGroup
			for i := range 2 * jobs {
				job, rank := i/2, i%2
				process := exec.CommandContext(t.Context(), gang, cuda, fmt.Sprint(rank), fmt.Sprint(job), "2", fmt.Sprint(*seconds))
				process.Env, process.Stderr = append(os.Environ(), preload[job]), os.Stderr
				all.Go(func() {
					out, err := process.Output() // it hangs where a step does not end
					var steps, took, longest float64
					if n, _ := fmt.Sscan(string(out), &steps, &took, &longest); n != 3 || err != nil {
						t.Errorf("%q: %v", out, err)
					}
					t.Logf("jobs %d, lent %t, job %d, rank %d: %.0f steps a second, the longest of %.0f ms", jobs, lend, job, rank,
						1000*steps/took, longest)
				})
			}
			all.Wait()
			if had := s.Charged("uid-0_main", gpus[1]); had == 0 {
				t.Error("nothing is charged to a rank")
			}
		}
	}
}

// NCCL's kernels wait for their peers beside compute on other streams.
func TestLibraryLetsPassALaunchForWhichAKernelWaits(t *testing.T) {
	cuda, gpus := machine(t)
	waits, spin := compiled(t, "waits"), compiled(t, "spin")
	containers := pair(t)
	rounds := int(10 * *seconds)
	for _, percent := range []int{10, 50} {
		for _, neighbour := range []bool{false, true} {
			s := &Seats{Directory: t.TempDir(), Lend: neighbour}
			process := exec.CommandContext(t.Context(), waits, cuda, fmt.Sprint(rounds), "1000")
			process.Env, process.Stderr = append(os.Environ(), containers[0].seat(t, s, "uid-0_main", share(gpus[0], percent))), os.Stderr
			stop := func() {}
			if neighbour {
				other := exec.CommandContext(t.Context(), spin, cuda, "600")
				other.Env = append(os.Environ(), containers[1].seat(t, s, "uid-1_main", share(gpus[0], max(1, 100-percent))))
				if err := other.Start(); err != nil {
					t.Fatal(err)
				}
				stop = func() { _ = other.Process.Kill(); _ = other.Wait() } // it was to go on for longer
			}
			out, err := process.Output() // it hangs where a round does not end
			stop()
			if err != nil || len(out) == 0 {
				t.Errorf("%d %%, beside another %t: %q (%v)", percent, neighbour, out, err)
			}
			t.Logf("%d %%, beside another %t: longest round and 90th percentile in ms: %s", percent, neighbour, out)
		}
	}
}
