package bench

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpufabric.io/drivers/gpu/memorylimits"
	"gpufabric.io/fakes/built"
	"gpufabric.io/fakes/cgrouptest"
	"gpufabric.io/fakes/fault"
	"gpufabric.io/fakes/nvmlstate"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/tree"
)

// TestMain runs the test's own program also as the benchmark's worker.
func TestMain(m *testing.M) {
	if os.Args[len(os.Args)-1] == worker {
		if err := work(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// machine is eight L40S with the CUDA stand-in and a driver of this version.
func machine(t *testing.T, driver string) Options { return machineOf(t, "l40s-8", driver) }

func machineOf(t *testing.T, kind, driver string) Options {
	t.Helper()
	p, err := profile.Load(kind)
	if err != nil {
		t.Fatal(err)
	}
	p.Driver.Version = driver
	root := t.TempDir()
	if err := tree.Render(t.Context(), tree.Options{Profile: p, Root: root, PlainDevices: true,
		LibraryDir: filepath.Join(built.Dir(t), "lib")}); err != nil {
		t.Fatal(err)
	}
	lib := nvmlstate.New(root)
	if r := lib.Init(); r != nvml.SUCCESS {
		t.Fatal(r)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Options{NVML: lib, CUDA: filepath.Join(root, "driver/usr/lib64/libcuda.so.1"), Bytes: 256 << 20, Repeats: 3, Rounds: 2,
		Program: program, Arguments: []string{worker}, Cgroups: memorylimits.Tree{Root: "/nowhere"}}
}

// build builds the C parts. It skips the test, with the reason, if there is no C compiler.
func build(t *testing.T, directory string, arguments ...string) {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("skipped: the libraries cannot be built without gcc")
	}
	out, err := exec.CommandContext(t.Context(), "make", append([]string{"-C", directory}, arguments...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("make -C %s: %v\n%s", directory, err, out)
	}
}

// private skips a test if processes may not have their own mounts.
func private(t *testing.T) {
	t.Helper()
	command := exec.CommandContext(t.Context(), "/bin/true")
	command.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if err := command.Run(); err != nil {
		t.Skipf("skipped: no process can have a mount namespace of its own here: %v", err)
	}
}

func TestBenchMeasuresEachLimiterBesideNone(t *testing.T) {
	private(t)
	mount, path := cgrouptest.Make(t)
	o := machine(t, "615.10")
	self, library := filepath.Join(t.TempDir(), "cgroup"), t.TempDir()
	build(t, "../../gpu/limiter/library", "OUT="+library)
	if err := os.WriteFile(self, []byte("0::/"+filepath.Base(path)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o.Library, o.Cgroups = filepath.Join(library, "libvgpu.so"), memorylimits.Tree{Root: mount, Self: self}
	result, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range result.ways {
		if w.absent != nil || len(w.rounds) != 2 {
			t.Fatalf("%s: %d rounds, absent because %v", w.name, len(w.rounds), w.absent)
		}
		limited := w.name != "no limit"
		for _, f := range w.rounds {
			if f.Pair <= 0 || f.Launch <= 0 || f.Graph <= 0 || (f.Refuse > 0) != limited || (f.Total == 256<<20) != limited {
				t.Errorf("%s: %+v", w.name, f)
			}
			want := uint64(256 << 20)
			if !limited {
				want += step // it continues until it has one step more than the limit
			}
			if f.Had != want {
				t.Errorf("%s: %d bytes could be had, want %d", w.name, f.Had, want)
			}
		}
	}
	var text strings.Builder
	if err := result.Write(&text); err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + text.String())
	for _, line := range []string{
		`(?m)^NVIDIA L40S, GPU-[-0-9a-f]+, driver 615\.10, CUDA [0-9.]+$`,
		`(?m)^library .*/libvgpu\.so \(SHA-256 [0-9a-f]{12}\)$`,
		`(?m)^Memory and launches, with a limit of 256 MiB$`,
		`(?m)^median \(least to most\) +no limit +library +library, cores +driver$`,
		`(?m)^memory that cuMemGetInfo shows \(MiB\) +[0-9]{5} +256 +256 +256$`,
		`(?m)^memory that could be had, in steps of 2 MiB \(MiB\) +258 +256 +256 +256$`,
		`(?m)^refuse an allocation \(ns\) +- +[0-9]`,
		`(?m)^launch a graph of 10 of them \(ns\) +[0-9]`,
		`(?m)^cores: not measured: --seconds is 0$`,
	} {
		if !regexp.MustCompile(line).MatchString(text.String()) {
			t.Errorf("no line is %s in\n%s", line, text.String())
		}
	}
	if left, err := os.ReadDir(path); err != nil {
		t.Error(err)
	} else {
		for _, entry := range left {
			if entry.IsDir() {
				t.Errorf("the cgroup %s still exists", entry.Name())
			}
		}
	}
}

func TestBenchSkipsALimiterWithItsReason(t *testing.T) {
	o := machine(t, "570.158.01")
	result, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if err := result.Write(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"library: not measured", "library, cores: not measured", "driver: not measured",
		"it came with r615"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is not in\n%s", want, text.String())
		}
	}
}

func TestBenchReportsAnImpossibleMeasurement(t *testing.T) {
	o := machine(t, "570.158.01")
	for name, test := range map[string]struct {
		change func(*Options)
		wrong  string
	}{
		"no such GPU":         {func(o *Options) { o.GPU = "GPU-00000000-0000-0000-0000-000000000000" }, "find the GPU"},
		"more than is free":   {func(o *Options) { o.Bytes = 1 << 40 }, "are allowed"},
		"less than a step":    {func(o *Options) { o.Bytes = 1 }, "are allowed"},
		"no CUDA":             {func(o *Options) { o.CUDA += ".not" }, "libcuda.so.1.not"},
		"no such program":     {func(o *Options) { o.Program += ".not" }, "start a process"},
		"no driver's library": {func(o *Options) { o.CUDA = o.Program }, "(CUDA's error -1)"},
	} {
		t.Run(name, func(t *testing.T) {
			changed := o
			test.change(&changed)
			if _, err := Run(t.Context(), changed); err == nil || !strings.Contains(err.Error(), test.wrong) {
				t.Errorf("got %v, want %q", err, test.wrong)
			}
		})
	}
	divided := machineOf(t, "a100-40", "570.158.01")
	if err := fault.Apply(filepath.Join(filepath.Dir(divided.CUDA), "../../.."), "mig-mode", fault.Arguments{"gpu": "0"}); err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), divided); err == nil || !strings.Contains(err.Error(), "without MIG") {
		t.Errorf("a GPU that is divided: %v", err)
	}
	if _, err := o.once(t.Context(), "no limit", "GPU-none"); err == nil || errors.Is(err, errAbsent) || !strings.Contains(err.Error(),
		"cuInit") {
		t.Errorf("a GPU that CUDA does not show: %v", err)
	}
}
