package smi_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"gpufabric.io/fakes/nvmlstate"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/smi"
	"gpufabric.io/fakes/state"
	"gpufabric.io/fakes/tree"
)

func render(t *testing.T, name string) string {
	t.Helper()
	p, err := profile.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	if err := tree.Render(t.Context(), tree.Options{Profile: p, Root: root, PlainDevices: true}); err != nil {
		t.Fatal(err)
	}
	return root
}

func run(t *testing.T, root string, args ...string) string {
	t.Helper()
	out, err := try(root, args...)
	if err != nil {
		t.Fatalf("nvidia-smi %v: %v", args, err)
	}
	return out
}

func try(root string, args ...string) (string, error) {
	var out bytes.Buffer
	c := smi.Command{Root: root, Stdout: &out, Now: time.Date(2025, 12, 10, 10, 24, 44, 0, time.UTC)}
	err := c.Run(args)
	return out.String(), err
}

// squeeze removes the padding, which the recorded table does not have.
func squeeze(s string) string {
	var lines []string
	for line := range strings.SplitSeq(s, "\n") {
		if f := strings.Join(strings.Fields(line), " "); f != "" {
			lines = append(lines, f)
		}
	}
	return strings.Join(lines, "\n")
}

const recordedTable = `Wed Dec 10 10:24:44 2025
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 580.173.02 Driver Version: 580.173.02 CUDA Version: 13.0 |
+-----------------------------------------+------------------------+----------------------+
| GPU Name Persistence-M | Bus-Id Disp.A | Volatile Uncorr. ECC |
| Fan Temp Perf Pwr:Usage/Cap | Memory-Usage | GPU-Util Compute M. |
| | | MIG M. |
|=========================================+========================+======================|
| 0 NVIDIA GB200 On | 00000008:01:00.0 Off | 0 |
| N/A 37C P0 169W / 1200W | 0MiB / 189471MiB | 0% Default |
| | | Disabled |
+-----------------------------------------+------------------------+----------------------+
| 1 NVIDIA GB200 On | 00000009:01:00.0 Off | 0 |
| N/A 37C P0 157W / 1200W | 0MiB / 189471MiB | 0% Default |
| | | Disabled |
+-----------------------------------------+------------------------+----------------------+
| 2 NVIDIA GB200 On | 00000018:01:00.0 Off | 0 |
| N/A 38C P0 158W / 1200W | 0MiB / 189471MiB | 0% Default |
| | | Disabled |
+-----------------------------------------+------------------------+----------------------+
| 3 NVIDIA GB200 On | 00000019:01:00.0 Off | 0 |
| N/A 37C P0 166W / 1200W | 0MiB / 189471MiB | 0% Default |
| | | Disabled |
+-----------------------------------------+------------------------+----------------------+
+-----------------------------------------------------------------------------------------+
| Processes: |
| GPU GI CI PID Type Process name GPU Memory |
| ID ID Usage |
|=========================================================================================|
| No running processes found |
+-----------------------------------------------------------------------------------------+`

func TestTableIsThatOfTheRecordedMachine(t *testing.T) {
	if diff := cmp.Diff(recordedTable, squeeze(run(t, render(t, "gb200-nvl72")))); diff != "" {
		t.Errorf("(-recorded +got):\n%s", diff)
	}
}

func TestTableLinesAreAsWideAsTheFrame(t *testing.T) {
	root := render(t, "a100-40")
	enableMIG(t, root)
	run(t, root, "mig", "-cgi", "9,14,19", "-C")
	for _, args := range [][]string{nil, {"mig", "-lgip"}, {"mig", "-lgi"}, {"mig", "-lci"}} {
		width := 0
		for line := range strings.SplitSeq(run(t, root, args...), "\n") {
			switch {
			case strings.HasPrefix(line, "+"):
				width = len(line)
			case strings.HasPrefix(line, "|") && len(line) != width:
				t.Errorf("%v: %d wide, the frame %d: %s", args, len(line), width, line)
			}
		}
	}
}

const recordedTopology = `	GPU0	GPU1	GPU2	GPU3	NIC0	NIC1	NIC2	NIC3	NIC4	NIC5	NIC6	NIC7	CPU Affinity	NUMA Affinity	GPU NUMA ID
GPU0	 X 	NV18	NV18	NV18	SYS	SYS	SYS	SYS	SYS	SYS	SYS	SYS	0-71	0,2-17		N/A
GPU1	NV18	 X 	NV18	NV18	SYS	SYS	SYS	SYS	SYS	SYS	SYS	SYS	0-71	0,2-17		N/A
GPU2	NV18	NV18	 X 	NV18	SYS	SYS	SYS	SYS	SYS	SYS	SYS	SYS	72-143	1,18-33		N/A
GPU3	NV18	NV18	NV18	 X 	SYS	SYS	SYS	SYS	SYS	SYS	SYS	SYS	72-143	1,18-33		N/A
NIC0	SYS	SYS	SYS	SYS	 X 	SYS	SYS	SYS	SYS	SYS	SYS	SYS
NIC1	SYS	SYS	SYS	SYS	SYS	 X 	SYS	SYS	SYS	SYS	SYS	SYS
NIC2	SYS	SYS	SYS	SYS	SYS	SYS	 X 	PIX	SYS	SYS	SYS	SYS
NIC3	SYS	SYS	SYS	SYS	SYS	SYS	PIX	 X 	SYS	SYS	SYS	SYS
NIC4	SYS	SYS	SYS	SYS	SYS	SYS	SYS	SYS	 X 	SYS	SYS	SYS
NIC5	SYS	SYS	SYS	SYS	SYS	SYS	SYS	SYS	SYS	 X 	SYS	SYS
NIC6	SYS	SYS	SYS	SYS	SYS	SYS	SYS	SYS	SYS	SYS	 X 	PIX
NIC7	SYS	SYS	SYS	SYS	SYS	SYS	SYS	SYS	SYS	SYS	PIX	 X 
`

func TestTopologyIsThatOfTheRecordedMachine(t *testing.T) {
	out := run(t, render(t, "gb200-nvl72"), "topo", "-m")
	matrix, _, _ := strings.Cut(out, "\nLegend")
	matrix = strings.NewReplacer("\x1b[4m", "", "\x1b[0m", "").Replace(matrix) // the record has the words alone
	if diff := cmp.Diff(recordedTopology, matrix); diff != "" {
		t.Errorf("(-recorded +got):\n%s", diff)
	}
	if !strings.Contains(out, "NIC7: mlx5_7") {
		t.Error("no legend of NICs")
	}
}

func TestGPUAndNICsBelowOneSwitchArePIX(t *testing.T) {
	out := run(t, render(t, "h100-hgx"), "topo", "-m")
	for line := range strings.SplitSeq(out, "\n") {
		if f := strings.Split(line, "\t"); f[0] == "GPU0" {
			// Columns: name, 8 GPUs, 8 NICs. NICs 0 and 1 are below GPU 0's switch, 2 and 3 on its socket, the rest on the other.
			if diff := cmp.Diff([]string{"PIX", "PIX", "NODE", "NODE", "SYS", "SYS", "SYS", "SYS"}, f[9:17]); diff != "" {
				t.Errorf("GPU0 to NICs (-want +got):\n%s", diff)
			}
			return
		}
	}
	t.Fatalf("no row GPU0 in:\n%s", out)
}

func TestXMLIsWellFormed(t *testing.T) {
	d := xml.NewDecoder(strings.NewReader(run(t, render(t, "l40s-8"), "-q", "-x")))
	gpus := 0
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if s, ok := token.(xml.StartElement); ok && s.Name.Local == "gpu" {
			gpus++
		}
	}
	if gpus != 8 {
		t.Errorf("%d GPUs", gpus)
	}
}

func TestQueriesReturnTheRequestedColumns(t *testing.T) {
	root := render(t, "l40s-8")
	got := run(t, root, "--query-gpu=index,name,memory.total,mig.mode.current", "--format=csv,noheader,nounits", "-i", "7")
	if want := "7, NVIDIA L40S, 46068, [N/A]\n"; got != want {
		t.Errorf("%q; want %q", got, want)
	}
	if _, err := try(root, "--query-gpu=nonsense", "--format=csv"); err == nil || !strings.Contains(err.Error(), "memory.total") {
		t.Errorf("an unknown field: %v; the known ones should be named", err)
	}
}

func TestSetRejectsUnsupportedValues(t *testing.T) {
	for name, c := range map[string]struct {
		profile, want string
		args          []string
	}{
		"MIG on a T4":            {"t4-edge", "not supported", []string{"-mig", "1"}},
		"a power limit too high": {"l40s-8", "from 100 W to 350 W", []string{"-pl", "5000"}},
		// in milliwatts, and 32 bits, it would be 299.7 W
		"a power limit far too high": {"l40s-8", "from 100 W to 350 W", []string{"-pl", "4295267"}},
		"a power limit below zero":   {"l40s-8", "from 100 W to 350 W", []string{"-pl", "-1"}},
		"an unknown GPU":             {"l40s-8", "8 GPUs", []string{"-L", "-i", "9"}},
		"an unknown option":          {"l40s-8", "-h", []string{"--frobnicate"}},
		"a MIG instance with none":   {"a100-40", "No MIG-enabled devices found", []string{"mig", "-cgi", "19"}},
		"MIG profiles of a T4":       {"t4-edge", "No MIG-supported devices found", []string{"mig", "-lgip"}},
		"exclusive thread":           {"l40s-8", "no longer supported", []string{"-c", "1"}},
	} {
		t.Run(name, func(t *testing.T) {
			if out, err := try(render(t, c.profile), c.args...); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// enableMIG brings GPU 0 into MIG mode, which needs a reset on the GPUs that these tests use.
func enableMIG(t *testing.T, root string) {
	t.Helper()
	run(t, root, "-i", "0", "-mig", "1")
	run(t, root, "-i", "0", "--gpu-reset")
}

func TestMIGModeOfAmpereIsPendingUntilAReset(t *testing.T) {
	for _, name := range []string{"a100-40", "a30-4"} {
		t.Run(name, func(t *testing.T) {
			root := render(t, name)
			modes := func() string {
				return strings.TrimSpace(run(t, root, "-i", "0", "--query-gpu=mig.mode.current,mig.mode.pending", "--format=csv,noheader"))
			}
			if out := run(t, root, "-i", "0", "-mig", "1"); !strings.Contains(out, "pending enabled state") {
				t.Errorf("the change is not told to be pending:\n%s", out)
			}
			if got := modes(); got != "Disabled, Enabled" {
				t.Errorf("before the reset: %s", got)
			}
			monitor := nvmlstate.New(root)
			if r := monitor.Init(); r != nvml.SUCCESS {
				t.Fatal(r)
			}
			if _, err := try(root, "-i", "0", "--gpu-reset"); err == nil || !strings.Contains(err.Error(), "In use by another client") {
				t.Errorf("a reset while a monitor has NVML open: %v", err)
			}
			if got := modes(); got != "Disabled, Enabled" {
				t.Errorf("after a reset that was refused: %s", got)
			}
			if r := monitor.Shutdown(); r != nvml.SUCCESS {
				t.Fatal(r)
			}
			run(t, root, "-i", "0", "--gpu-reset")
			if got := modes(); got != "Enabled, Enabled" {
				t.Errorf("after the reset: %s", got)
			}
		})
	}
}

func TestMIGModeOfHopperChangesAtOnce(t *testing.T) {
	for _, name := range []string{"h100-hgx", "gb200-nvl72"} {
		root := render(t, name)
		run(t, root, "-i", "0", "-mig", "1")
		if got := run(t, root, "-i", "0", "--query-gpu=mig.mode.current", "--format=csv,noheader"); !strings.HasPrefix(got, "Enabled") {
			t.Errorf("%s: %s", name, got)
		}
	}
}

func TestMIGDoesNotDestroyAnInstanceInUse(t *testing.T) {
	root := render(t, "a100-40")
	enableMIG(t, root)
	run(t, root, "mig", "-cgi", "1g.5gb", "-C")
	if _, err := try(root, "mig", "-dgi"); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a GPU instance with a compute instance: %v", err)
	}
	run(t, root, "mig", "-dci")
	run(t, root, "mig", "-dgi")
	if out := run(t, root, "mig", "-lgi"); !strings.Contains(out, "No GPU instances found") {
		t.Error(out)
	}
}

func TestTimeSliceIsSetPerGPUAndListed(t *testing.T) {
	root := render(t, "l40s-8")
	run(t, root, "compute-policy", "-i", "3", "--set-timeslice", "3")
	for gpu, want := range map[string]string{"2": "Default", "3": "Long"} {
		if out := run(t, root, "compute-policy", "-i", gpu, "--list"); !strings.Contains(out, want) {
			t.Errorf("GPU %s: want %s in\n%s", gpu, want, out)
		}
	}
	for _, args := range [][]string{{}, {"--set-timeslice"}, {"--set-timeslice", "4"}, {"--list", "--set-timeslice", "1"}, {"--frobnicate"}} {
		if out, err := try(root, append([]string{"compute-policy"}, args...)...); err == nil {
			t.Errorf("compute-policy %v was taken:\n%s", args, out)
		}
	}
}

func TestContainerSeesItsShare(t *testing.T) {
	root := render(t, "l40s-8")
	uuids := strings.Fields(run(t, root, "--query-gpu=uuid", "--format=csv,noheader"))
	environment := map[string]string{"NVIDIA_VISIBLE_DEVICES": uuids[3], "CUDA_DEVICE_MEMORY_LIMIT_0": "10240m"}
	var out bytes.Buffer
	c := smi.Command{Root: root, Stdout: &out, Now: time.Now(), Getenv: func(name string) string { return environment[name] }}
	if err := c.Run(nil); err != nil {
		t.Fatal(err)
	}
	if text := squeeze(out.String()); strings.Count(text, "NVIDIA L40S") != 1 || !strings.Contains(text, "0MiB / 10240MiB") {
		t.Errorf("want one GPU with 0MiB / 10240MiB:\n%s", text)
	}
	environment["CUDA_DEVICE_MEMORY_LIMIT_0"] = "much"
	if err := c.Run(nil); err == nil || !strings.Contains(err.Error(), "much") {
		t.Errorf("got %v, want the limit named", err)
	}
}

func TestTreeShowsChangesOfFailedCommand(t *testing.T) {
	root := render(t, "a100-40")
	enableMIG(t, root)
	if out, err := try(root, "mig", "-i", "0", "-cgi", "9,9,9"); err == nil {
		t.Fatalf("three halves of a GPU were made:\n%s", out)
	}
	access := func() int {
		files, err := filepath.Glob(filepath.Join(root, "proc/driver/nvidia/capabilities/gpu0/mig/gi*/access"))
		if err != nil {
			t.Fatal(err)
		}
		return len(files)
	}
	if got := access(); got != 2 {
		t.Errorf("%d capability files of the two instances that were made", got)
	}
	run(t, root, "mig", "-i", "0", "-cci", "-gi", "2")
	if out, err := try(root, "mig", "-i", "0", "-dgi"); err == nil {
		t.Fatalf("an instance in use was destroyed:\n%s", out)
	}
	if got := access(); got != 1 {
		t.Errorf("%d capability files of the one instance that is left", got)
	}
}

func TestCommandsSurviveADamagedLayout(t *testing.T) {
	root := render(t, "a100-40")
	enableMIG(t, root)
	run(t, root, "mig", "-i", "0", "-cgi", "9,14", "-C")
	f, err := state.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // only a mapping is given up
	damage := func(change func(*state.GPUInstance)) {
		t.Helper()
		if err := f.Update(func(b *state.Body) error { change(&b.GPUs[0].Instances[0]); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	commands := [][]string{{"-L"}, {"-q"}, {}, {"mig", "-lgip"}, {"mig", "-lgi"}, {"mig", "-lcip"}, {"mig", "-lci"},
		{"mig", "-cci", "-gi", "1"}}
	for _, damaged := range []func(*state.GPUInstance){
		func(gi *state.GPUInstance) { gi.Computes[0].Profile = 1 << 20 },
		func(gi *state.GPUInstance) { gi.Profile = 1 << 20 },
	} {
		damage(damaged)
		for _, args := range commands {
			_, _ = try(root, args...) // whatever the output, it must not panic
		}
	}
}
