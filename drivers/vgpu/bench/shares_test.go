package bench

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpufabric.io/build/short"
	"gpufabric.io/drivers/node/host"
)

// seconds is how long each percentage is measured: with -seconds=30 the test measures what the command does.
var seconds = flag.Uint("seconds", 1, "how long each percentage of the cores is measured; above 1 all of them are")

// limited is a machine with this project's library, on which cores are measured for a second each.
func limited(t *testing.T) Options {
	t.Helper()
	private(t)
	o := machine(t, "570.158.01")
	library := t.TempDir()
	build(t, "../../gpu/limiter/library", "OUT="+library)
	o.Library, o.Seconds, o.Rounds = filepath.Join(library, "libvgpu.so"), *seconds, 1
	return o
}

// How exact a percentage is depends on how busy the test's machine is: see docs/reports/measurements.md. Here each process has work done
// and is charged for it.
func TestSharesMeasureEachPercentageOfCores(t *testing.T) {
	short.Skip(t, "make test without SHORT=1")
	o := limited(t)
	o.Together = []Together{{Cores: []int{75}}, {Lend: true, Cores: []int{25, 75}}, {Lend: true, Graph: true, Cores: []int{50, 50}}}
	if *seconds > 1 {
		o.Together, o.Repeats, o.Rounds = everything(), 200, 5
	}
	var progress strings.Builder
	o.Progress = &progress
	result, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(result.cores.rows) < 5 || result.cores.kernel <= 0 || result.cores.again <= 0 {
		t.Fatalf("measured %+v", result.cores)
	}
	for _, k := range result.cores.rows {
		if k.had <= 0 || k.charged <= 0 {
			t.Errorf("%s: process %d had %.1f %% and is charged %.1f %%", k.of, k.which, k.had, k.charged)
		}
	}
	if !strings.Contains(progress.String(), "Measuring 25 % beside 75 % for ") {
		t.Errorf("told: %s", progress.String())
	}
	var text strings.Builder
	if err := result.Write(&text); err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + text.String())
	for _, line := range []string{
		`(?m)^Cores, [0-9]+ s each, by kernels of [0-9.]+ ms$`,
		`(?m)^75 %, nothing lent +75 +[0-9.]+ +[-+][0-9.]+ +[0-9.]+$`,
		`(?m)^25 % beside 75 % +25 +[0-9.]+ +[-+][0-9.]+ +[0-9.]+\n  the other one +75 +[0-9.]+ `,
		`(?m)^50 % beside 50 %, by graphs +50 +[0-9.]+ `,
		`(?m)^no limit, measured again +- +[0-9.]+ `,
		`(?m)^Most off is [-+][0-9.]+ points`,
	} {
		if !regexp.MustCompile(line).MatchString(text.String()) {
			t.Errorf("no line is %s in\n%s", line, text.String())
		}
	}
}

func TestSharesRejectALimitThatIsNotInForce(t *testing.T) {
	private(t)
	o := machine(t, "570.158.01")
	o.Seconds, o.Rounds, o.Library = 1, 1, o.CUDA // it can be loaded, and limits nothing
	o.Together = []Together{{Cores: []int{10}}}
	result, err := Run(t.Context(), o)
	if err == nil || !strings.Contains(err.Error(), "10 %, nothing lent: the process of 10 % was charged nothing, so nothing limited it") {
		t.Fatalf("error %v", err)
	}
	if len(result.ways) == 0 || len(result.ways[0].rounds) == 0 {
		t.Error("what was measured before is lost")
	}
}

func TestSharesSkipAGPUInUse(t *testing.T) {
	o := machine(t, "570.158.01")
	r, err := o.look()
	if err != nil || r.others != 0 {
		t.Fatalf("%d others use a GPU that nobody uses (%v)", r.others, err)
	}
	if o.libraries, err = gather(o.CUDA); err != nil {
		t.Fatal(err)
	}
	o.Seconds = 1
	err = converse(t.Context(), o.process(t.Context(), r.gpu), func(in io.WriteCloser, out *json.Decoder) error {
		var ready report
		if err := errors.Join(json.NewEncoder(in).Encode(o.order(0, false)), out.Decode(&ready)); err != nil {
			return err
		}
		if r, err = o.look(); err != nil || r.others != 1 {
			t.Errorf("%d others use the GPU (%v), want 1", r.others, err)
		}
		if err := o.shares(t.Context(), r); err != nil || !errors.Is(r.cores.absent, errAbsent) {
			t.Errorf("measured beside another process: %v, %v", err, r.cores.absent)
		}
		return nil
	})
	// The process got no order to begin.
	if err == nil || !strings.Contains(err.Error(), "wait until the others can begin") {
		t.Errorf("the other process ended with %v", err)
	}
}

func TestTableMarksMissedGoals(t *testing.T) {
	busy := filepath.Join(t.TempDir(), "loadavg")
	if err := os.WriteFile(busy, []byte("9001.25 4.01 3.14 5/678 91011\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	half := Together{Lend: true, Cores: []int{50, 50}}
	s := shares{seconds: 30, kernel: 1010 * time.Microsecond, again: 97.5, rows: []kept{
		{of: Together{Cores: []int{10}}, had: 10.4, charged: 10.6},
		{of: half, had: 46.2, charged: 49.9}, {of: half, which: 1, had: 48.1, charged: 49.8}}}
	o, quiet := Options{LoadAverage: busy}, Options{LoadAverage: busy + ".not"}
	s.loads = [2]float64{quiet.load(), o.load()}
	var text strings.Builder
	s.write(&text)
	want := `
Cores, 30 s each, by kernels of 1.01 ms

percent                    limit    had    off   charged
10 %, nothing lent            10   10.4   +0.4      10.6
50 % beside 50 %              50   46.2   -3.8      49.9
  the other one               50   48.1   -1.9      49.8
no limit, measured again       -   97.5      -         -

100 % is what a process without a limit did in the same time, before. Charged is the GPU's time as the library counts it.
Most off is -3.8 points (50 % in: 50 % beside 50 %): the goal of 3 points is missed.
The machine's load was 0.0 at the beginning and 9001.2 at the end, and it has PROCESSORS processors: ` +
		`processes waited for one, and the GPU for them. Measure again when it is below.
The GPU or its machine was not as fast all the time: what is measured again should be 100. Do not believe differences smaller than 3 points.
`
	want = strings.Replace(want, "PROCESSORS", fmt.Sprint(runtime.NumCPU()), 1)
	if text.String() != want {
		t.Errorf("got\n%s\nwant\n%s", text.String(), want)
	}
}

func TestCommandPrintsTheTables(t *testing.T) {
	o := machine(t, "570.158.01")
	command := Command(host.Host{NVML: func(string) nvml.Interface { return o.NVML }})
	var out, reported strings.Builder
	command.SetOut(&out)
	command.SetErr(&reported)
	driver := strings.TrimSuffix(o.CUDA, "/usr/lib64/libcuda.so.1")
	command.SetArgs([]string{"bench", "--driver-root=" + driver, "--seconds=0", "--memory=64", "--repeats=2", "--rounds=1",
		"--limiter-library="})
	if err := command.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Memory and launches, with a limit of 64 MiB", "library: not measured: --limiter-library is empty",
		"cores: not measured: --seconds is 0"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
	if !strings.Contains(reported.String(), "Measuring limits of memory, and launches\n") {
		t.Errorf("told: %s", reported.String())
	}
}

func TestSharesBoundTheDuration(t *testing.T) {
	for _, seconds := range []string{"1", "301", "-1", "x"} {
		command := benchCommand(host.Host{})
		command.SetArgs([]string{"--seconds=" + seconds})
		command.SetOut(io.Discard)
		command.SetErr(io.Discard)
		if err := command.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "seconds") {
			t.Errorf("--seconds=%s: %v", seconds, err)
		}
	}
}
