package conformance

import (
	"context"
	"encoding/xml"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/state"
)

// smiVersions are NVIDIA's nvidia-smi that Debian packages, with the CUDA version of the driver that each belongs to.
var smiVersions = map[string]string{"535": "12.2", "550": "12.4"}

// smi is NVIDIA's nvidia-smi inside a node.
type smi struct {
	*node
	program string
}

// newSMI renders a profile with the driver that the program belongs to.
func newSMI(t *testing.T, version, name string) smi {
	t.Helper()
	program := nvidiaProgram(t, "nvidia-smi", version, "usr/lib/nvidia/current/nvidia-smi")
	p, err := profile.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	full := regexp.MustCompile(`nvidia-smi_([0-9.]+)`).FindStringSubmatch(program)
	p.Driver.Version, p.Driver.CUDA = full[1], smiVersions[version]
	return smi{renderNode(t, p), program}
}

// says runs the program to its end. Any output on standard error is a failure.
func (s smi) says(t *testing.T, args ...string) string {
	t.Helper()
	out, complaint := s.run(t, s.program, args...)
	if complaint != "" {
		t.Errorf("nvidia-smi %s complains: %s", strings.Join(args, " "), complaint)
	}
	return out
}

// forEachSMI runs a test with each version on each profile that has GPUs.
func forEachSMI(t *testing.T, test func(*testing.T, smi)) {
	for version := range smiVersions {
		for _, name := range withGPUs(t) {
			t.Run(version+"/"+name, func(t *testing.T) { test(t, newSMI(t, version, name)) })
		}
	}
}

// TestNvidiaSMI runs all commands of the program on one node. Those that change something run after the others.
func TestNvidiaSMI(t *testing.T) {
	forEachSMI(t, func(t *testing.T, s smi) {
		for _, c := range []struct {
			name  string
			check func(*testing.T, smi)
		}{
			{"lists every GPU", listsEveryGPU},
			{"shows the table", showsTheTable},
			{"queries what the profile says", queriesTheProfile},
			{"answers query-gpu", answersQueryGPU},
			{"shows the topology", showsTheTopology},
			{"shows the CPU that is nearest to a GPU", showsTheNearestCPU},
			{"shows every NVLink", showsEveryNVLink},
			{"counts the errors of every NVLink", countsNVLinkErrors},
			{"makes a recording that is the profile", recordsTheProfile},
			{"sets the time slice", setsTheTimeSlice},
			{"sets modes", setsModes},
			{"resets GPUs", resetsGPUs},
			{"shows processes", showsProcesses},
			{"resets no GPU that is in use", resetsNoGPUInUse},
		} {
			t.Run(c.name, func(t *testing.T) { c.check(t, s) })
		}
	})
}

// busID is how nvidia-smi writes a PCI address.
func busID(a profile.PCIAddress) string { return strings.ToUpper("0000" + a.String()) }

func listsEveryGPU(t *testing.T, s smi) {
	var want strings.Builder
	for i, g := range s.GPUs {
		fmt.Fprintf(&want, "GPU %d: %s (UUID: %s)\n", i, s.Profile.GPUs.Model.Name, g.UUID)
	}
	if diff := cmp.Diff(want.String(), s.says(t, "-L")); diff != "" {
		t.Errorf("-profile +nvidia-smi -L:\n%s", diff)
	}
}

func showsTheTable(t *testing.T, s smi) {
	out := s.says(t)
	p := s.Profile
	wants := []string{"Default", "Driver Version: " + p.Driver.Version, "CUDA Version: " + p.Driver.CUDA, "No running processes found"}
	for _, g := range s.GPUs {
		wants = append(wants, busID(g.Address))
	}
	for _, want := range wants {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
	// The column is too narrow for six digits in the older table.
	memory := fmt.Sprintf(`/ +%.5s`, fmt.Sprint(p.GPUs.Model.MemoryMiB))
	if p.GPUs.Model.Integrated {
		memory = `N/A`
	}
	if !regexp.MustCompile(memory).MatchString(out) {
		t.Errorf("no memory (%s) in:\n%s", memory, out)
	}
}

// smiLog is the part of nvidia-smi -q -x that a profile decides.
type smiLog struct {
	Driver string   `xml:"driver_version"`
	CUDA   string   `xml:"cuda_version"`
	GPUs   []smiGPU `xml:"gpu"`
}

type smiGPU struct {
	ID           string `xml:"id,attr"`
	Name         string `xml:"product_name"`
	Architecture string `xml:"product_architecture"`
	UUID         string `xml:"uuid"`
	Serial       string `xml:"serial"`
	Minor        int    `xml:"minor_number"`
	MIG          string `xml:"mig_mode>current_mig"`
	Memory       string `xml:"fb_memory_usage>total"`
	Fabric       string `xml:"fabric>state"`
}

// architectures are the words of these versions for ours. Both versions are older than Blackwell.
var architectures = map[string]string{"turing": "Turing", "ampere": "Ampere", "ada": "Ada Lovelace", "hopper": "Hopper",
	"blackwell": "Unknown", "rubin": "Unknown"}

func queriesTheProfile(t *testing.T, s smi) {
	p := s.Profile
	want := smiLog{Driver: p.Driver.Version, CUDA: p.Driver.CUDA}
	for _, g := range s.GPUs {
		m := p.GPUs.Model
		w := smiGPU{ID: busID(g.Address), Name: m.Name, Architecture: architectures[m.Architecture], UUID: g.UUID,
			Serial: g.Serial, Minor: g.Minor, MIG: "N/A", Memory: inMiB(m, "%d MiB", "N/A"), Fabric: "N/A"}
		if m.MIG != nil {
			w.MIG = "Disabled"
		}
		if p.Fabric != nil {
			w.Fabric = "Completed"
		}
		want.GPUs = append(want.GPUs, w)
	}
	out := s.says(t, "-q", "-x")
	var got smiLog
	if err := xml.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-profile +nvidia-smi -q -x:\n%s", diff)
	}
	if text := s.says(t, "-q"); strings.Count(text, "Product Name") != len(s.GPUs) {
		t.Errorf("-q has another number of GPUs than %d:\n%s", len(s.GPUs), text)
	}
}

func answersQueryGPU(t *testing.T, s smi) {
	fields := []string{"index", "uuid", "name", "pci.bus_id", "driver_version", "memory.total", "mig.mode.current", "compute_mode",
		"compute_cap", "serial"}
	var want []string
	for i, g := range s.GPUs {
		m := s.Profile.GPUs.Model
		mode := "[N/A]"
		if m.MIG != nil {
			mode = "Disabled"
		}
		want = append(want, strings.Join([]string{fmt.Sprint(i), g.UUID, m.Name, busID(g.Address), s.Profile.Driver.Version,
			inMiB(m, "%d", "[N/A]"), mode,
			"Default", m.ComputeCapability, g.Serial}, ", "))
	}
	got := strings.Split(strings.TrimSpace(s.says(t, "--query-gpu="+strings.Join(fields, ","), "--format=csv,noheader,nounits")), "\n")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-profile +nvidia-smi --query-gpu:\n%s", diff)
	}
}

// topologyRow is a row of topo -m, legendLine one of its legend of NICs.
var (
	topologyRow = regexp.MustCompile(`(?m)^((?:GPU|NIC)\d+)\t(.*)$`)
	legendLine  = regexp.MustCompile(`(?m)^  (NIC\d+): (\S+)`)
)

func showsTheTopology(t *testing.T, s smi) {
	out := s.says(t, "topo", "-m")
	rows := map[string][]string{}
	for _, m := range topologyRow.FindAllStringSubmatch(out, -1) {
		rows[m[1]] = strings.Split(m[2], "\t")
	}
	nics := map[string]string{}
	for _, m := range legendLine.FindAllStringSubmatch(out, -1) {
		nics[m[2]] = m[1]
	}
	for i, a := range s.GPUs {
		for j, b := range s.GPUs {
			want := s.Distance(a.Place(), b.Place()).String()
			if l := s.Profile.GPUs.NVLink; l != nil && i != j {
				want = fmt.Sprintf("NV%d", l.Links)
			}
			checkCell(t, rows, fmt.Sprintf("GPU%d", i), j, want)
		}
	}
	for _, n := range s.NICs {
		if len(nics) == 0 || nics[n.Device] == "" { // without RDMA, or a virtual function
			continue
		}
		for i, g := range s.GPUs {
			checkCell(t, rows, nics[n.Device], i, s.Distance(n.Place(), g.Place()).String())
		}
	}
	if t.Failed() {
		t.Log(out)
	}
	if len(s.NICs) > 0 && len(nics) == 0 {
		t.Errorf("none of %d NICs is shown:\n%s", len(s.NICs), out)
	}
}

func checkCell(t *testing.T, rows map[string][]string, row string, column int, want string) {
	t.Helper()
	if len(rows[row]) <= column {
		t.Fatalf("row %s has no column %d: %q", row, column, rows[row])
	}
	if got := strings.TrimSpace(rows[row][column]); got != want {
		t.Errorf("%s to GPU%d: %s; want %s", row, column, got, want)
	}
}

func showsEveryNVLink(t *testing.T, s smi) {
	out := s.says(t, "nvlink", "-s")
	want := 0
	if l := s.Profile.GPUs.NVLink; l != nil {
		want = l.Links * len(s.GPUs)
	}
	if got := strings.Count(out, "GB/s"); got != want {
		t.Errorf("%d links have a speed; want %d:\n%s", got, want, out)
	}
}

func showsTheNearestCPU(t *testing.T, s smi) {
	for i, g := range s.GPUs {
		if g.NUMA < 0 {
			continue
		}
		out, want := s.says(t, "topo", "-C", "-i", strconv.Itoa(i)), "NUMA IDs of closest CPU: "+strconv.Itoa(g.NUMA)
		if strings.TrimSpace(out) != want {
			t.Errorf("GPU %d: %q; want %q", i, out, want)
		}
	}
}

func countsNVLinkErrors(t *testing.T, s smi) {
	l := s.Profile.GPUs.NVLink
	if l == nil {
		return
	}
	out := s.says(t, "nvlink", "-e")
	for _, errors := range []string{"Replay Errors: 0", "Recovery Errors: 0", "CRC Errors: 0"} {
		if got, want := strings.Count(out, errors), l.Links*len(s.GPUs); got != want {
			t.Errorf("%d links say %s; want %d:\n%s", got, errors, want, out)
		}
	}
}

func setsTheTimeSlice(t *testing.T, s smi) {
	s.says(t, "compute-policy", "--set-timeslice=2", "-i", "0")
	out := s.says(t, "compute-policy", "-l")
	if strings.Count(out, "Medium") != 1 || strings.Count(out, "Default") != len(s.GPUs)-1 {
		t.Errorf("the first GPU alone is to have a medium time slice:\n%s", out)
	}
}

func setsModes(t *testing.T, s smi) {
	s.says(t, "-i", "0", "-c", "EXCLUSIVE_PROCESS")
	s.says(t, "-i", "0", "-pm", "1")
	got := s.says(t, "-i", "0", "--query-gpu=compute_mode,persistence_mode", "--format=csv,noheader")
	if strings.TrimSpace(got) != "Exclusive_Process, Enabled" {
		t.Errorf("compute mode and persistence: %s", got)
	}
}

// resetsGPUs resets the GPU that other tests have changed, then all GPUs.
func resetsGPUs(t *testing.T, s smi) {
	for _, c := range []struct {
		args []string
		gpus int
	}{{[]string{"-r", "-i", "0"}, 1}, {[]string{"--gpu-reset"}, len(s.GPUs)}} {
		if out := s.says(t, c.args...); strings.Count(out, "was successfully reset.") != c.gpus || !strings.Contains(out, "All done.") {
			t.Errorf("nvidia-smi %v is to reset %d GPUs:\n%s", c.args, c.gpus, out)
		}
	}
	if got := s.says(t, "-i", "0", "--query-gpu=compute_mode", "--format=csv,noheader"); strings.TrimSpace(got) != "Default" {
		t.Errorf("after a reset the compute mode is %s", got)
	}
	if out := s.says(t, "compute-policy", "-l"); strings.Count(out, "Default") != len(s.GPUs) {
		t.Errorf("after a reset time slices are not the default:\n%s", out)
	}
}

// resetsNoGPUInUse follows showsProcesses, which leaves a process on the first GPU.
func resetsNoGPUInUse(t *testing.T, s smi) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, err := s.command(ctx, t, s.program, "-r", "-i", "0").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "In use by another client") {
		t.Errorf("a GPU in use is reset (error: %v):\n%s", err, out)
	}
}

func showsProcesses(t *testing.T, s smi) {
	self := uint32(os.Getpid())
	f, err := state.Open(s.root)
	if err != nil {
		t.Fatal(err)
	}
	err = f.Update(func(b *state.Body) error {
		g, err := b.GPU(0)
		if err != nil {
			return err
		}
		for i, kind := range []uint32{0, 2} {
			g.Processes[i] = state.Process{PID: self, Type: kind, GPUInstance: state.None, ComputeInstance: state.None, Memory: 300 << 20,
				Namespace: state.PIDNamespace()}
			copy(g.Processes[i].Name[:], "/usr/bin/client")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	out := s.says(t)
	if !regexp.MustCompile(fmt.Sprintf(`\|    0 +N/A +N/A +%d +M\+C +/usr/bin/client +\d+MiB \|`, self)).MatchString(out) {
		t.Errorf("no process %d with its name and memory in:\n%s", self, out)
	}
}

func TestNvidiaSMIMakesAndDestroysMIGDevices(t *testing.T) {
	for version := range smiVersions {
		t.Run(version, func(t *testing.T) {
			s := newSMI(t, version, "h100-hgx")
			s.says(t, "-i", "0", "-mig", "1")
			if out := s.says(t, "mig", "-i", "0", "-lgip"); !strings.Contains(out, "MIG 1g.10gb+me") {
				t.Errorf("mig -lgip:\n%s", out)
			}
			if out := s.says(t, "mig", "-i", "0", "-lgipp"); !strings.Contains(out, "{0,1,2,3,4,5,6}:1") {
				t.Errorf("mig -lgipp:\n%s", out)
			}
			s.says(t, "mig", "-i", "0", "-cgi", "9,19", "-C")
			for what, want := range map[string]string{"-lgi": "MIG 3g.40gb", "-lci": "MIG 1g.10gb", "-lcip": "MIG 1c.3g.40gb"} {
				if out := s.says(t, "mig", what); !strings.Contains(out, want) {
					t.Errorf("mig %s has no %s:\n%s", what, want, out)
				}
			}
			if out := s.says(t, "-L"); strings.Count(out, "(UUID: MIG-") != 2 {
				t.Errorf("-L is to list two MIG devices:\n%s", out)
			}
			if out := s.says(t, "-i", "0"); strings.Contains(out, "No MIG devices found") || !strings.Contains(out, "MIG devices:") {
				t.Errorf("the table has no MIG devices:\n%s", out)
			}
			s.says(t, "mig", "-i", "0", "-dci")
			s.says(t, "mig", "-i", "0", "-dgi")
			s.says(t, "-i", "0", "-mig", "0")
			if out := s.says(t, "-L"); strings.Contains(out, "MIG-") {
				t.Errorf("MIG devices are left:\n%s", out)
			}
		})
	}
}
