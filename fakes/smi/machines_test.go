package smi_test

import (
	"encoding/xml"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpufabric.io/fakes/fault"
)

// element is one of any name, with its text and its children.
type element struct {
	XMLName  xml.Name
	Text     string    `xml:",chardata"`
	Children []element `xml:",any"`
}

// leaves gives the text of each element below e that has no children, by its path; the first of a path counts.
func (e element) leaves(path string, into map[string]string) {
	for _, c := range e.Children {
		at := strings.TrimPrefix(path+"/"+c.XMLName.Local, "/")
		if len(c.Children) > 0 {
			c.leaves(at, into)
		} else if _, seen := into[at]; !seen {
			into[at] = strings.TrimSpace(c.Text)
		}
	}
}

func firstGPU(t *testing.T, name string) map[string]string {
	t.Helper()
	var log element
	if err := xml.Unmarshal([]byte(run(t, render(t, name), "-q", "-x")), &log); err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, c := range log.Children {
		if c.XMLName.Local == "gpu" {
			c.leaves("", found)
			break
		}
	}
	return found
}

func TestQueryPrintsTheElementsOfSevenRealMachines(t *testing.T) {
	data, err := os.ReadFile("testdata/machines.tsv")
	if err != nil {
		t.Fatal(err)
	}
	var lines [][]string
	for line := range strings.Lines(string(data)) {
		if !strings.HasPrefix(line, "#") {
			lines = append(lines, strings.Split(strings.TrimSuffix(line, "\n"), "\t"))
		}
	}
	for column, name := range lines[0][1:] {
		t.Run(name, func(t *testing.T) {
			want, got, all := map[string]string{}, map[string]string{}, firstGPU(t, name)
			for _, row := range lines[1:] {
				path, value := row[0], strings.Trim(row[column+1], `"`)
				found, ok := all[path]
				switch {
				case !ok:
					found = "-"
				case value == "*":
					found = "*"
				}
				want[path], got[path] = value, found
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-real +fake):\n%s", diff)
			}
		})
	}
}

// FAKEFABRIC_CAPTURES is a directory of outputs of real machines (qx-a100.xml, ...) and a program smidiff.py, which prints in its first
// line how many elements of one the other has.
func TestQueryAgreesWithCaptures(t *testing.T) {
	dir := os.Getenv("FAKEFABRIC_CAPTURES")
	if dir == "" {
		t.Skip("skipped: FAKEFABRIC_CAPTURES names no directory with captures of real machines")
	}
	sums := regexp.MustCompile(`real (\d+) elements, fake \d+; lacking (\d+), only here (\d+), other value (\d+)`)
	for machine, name := range map[string]string{"a100": "a100-40", "h100": "h100-hgx", "b200": "b200-hgx", "gb200": "gb200-nvl72",
		"gb300": "gb300-nvl72", "l40s": "l40s-8", "t4": "t4"} {
		t.Run(machine, func(t *testing.T) {
			fake := filepath.Join(t.TempDir(), "fake.xml")
			if err := os.WriteFile(fake, []byte(run(t, render(t, name), "-q", "-x")), 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := exec.CommandContext(t.Context(), "python3", filepath.Join(dir, "smidiff.py"), filepath.Join(dir, "qx-"+machine+".xml"),
				fake).CombinedOutput()
			found := sums.FindStringSubmatch(string(out))
			if err != nil || found == nil {
				t.Fatalf("%v\n%s", err, out)
			}
			var n [4]int
			for i := range n {
				n[i], _ = strconv.Atoi(found[i+1]) // the pattern has digits
			}
			agree := 100 * float64(n[0]-n[1]-n[3]) / float64(n[0]+n[2])
			t.Logf("%.1f %% of %d elements agree", agree, n[0])
			if agree < 95 {
				t.Errorf("%.1f %% agree, where 95 are wanted:\n%s", agree, out)
			}
		})
	}
}

// The names are those of driver 580's --help-query-gpu, as programs that export metrics use them.
func TestQueryGPUAnswersFieldsAsTheDriverDoes(t *testing.T) {
	const fields = "pcie.link.gen.hostmax,c2c.mode,platform.peer_type,module.power.max_limit,temperature.gpu.tlimit," +
		"fabric.health.bandwidth,clocks.applications.graphics,remapped_rows.histogram.max,clocks_throttle_reasons.gpu_idle," +
		"ecc.errors.uncorrected.volatile.sram,retired_pages.pending,fan.speed"
	for name, want := range map[string]string{
		"gb300-nvl72": "4, Enabled, Switch Connected, 2900.00 W, 49, Full, 2070 MHz, 5952, Active, 0, [N/A], [N/A]\n",
		"t4":          "[N/A], [N/A], [N/A], [N/A], [N/A], N/A, [Requested functionality has been deprecated], [N/A], Active, 0, No, [N/A]\n",
	} {
		got := run(t, render(t, name), "--query-gpu="+fields, "--format=csv,noheader", "-i", "0")
		if got != want {
			t.Errorf("%s: %q\nwant %q", name, got, want)
		}
	}
}

func TestHelpListsEveryFieldThatQueryGPUTakes(t *testing.T) {
	root := render(t, "h100-hgx")
	var names []string
	for line := range strings.Lines(run(t, root, "--help-query-gpu")) {
		for name := range strings.SplitSeq(strings.TrimSpace(line), " or ") {
			if name, err := strconv.Unquote(name); err == nil {
				names = append(names, name)
			}
		}
	}
	row := run(t, root, "--query-gpu="+strings.Join(names, ","), "--format=csv,noheader,nounits", "-i", "0")
	if n := len(strings.Split(row, ", ")); len(names) < 180 || n != len(names) {
		t.Errorf("%d fields, %d values", len(names), n)
	}
}

func TestNVLinkPrintsEachLink(t *testing.T) {
	root := render(t, "gb300-nvl72")
	if err := fault.Apply(root, "nvlink-down", fault.Arguments{"gpu": "1", "link": "3"}); err != nil {
		t.Fatal(err)
	}
	out := run(t, root, "nvlink", "-s", "-i", "1")
	if strings.Count(out, ": 50 GB/s\n") != 17 || !strings.Contains(out, "\t Link 3: <inactive>\n") {
		t.Error(out)
	}
	if got := run(t, root, "nvlink", "-e", "-i", "0"); strings.Count(got, "CRC Errors: 0") != 18 {
		t.Error(got)
	}
	for _, args := range [][]string{{"nvlink"}, {"nvlink", "--nonsense"}, {"nvlink", "-i"}, {"topo", "-p2p", "z"}, {"dmon", "-c", "0"},
		{"pmon", "-c"}} {
		if _, err := try(root, args...); err == nil {
			t.Errorf("%v is taken", args)
		}
	}
}

func TestMonitorsPrintALineForEachGPU(t *testing.T) {
	root := render(t, "h100-hgx")
	if err := fault.Apply(root, "util", fault.Arguments{"gpu": "2", "percent": "70"}); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(run(t, root, "dmon", "-c", "1")), "\n")
	if len(lines) != 10 {
		t.Fatalf("%d lines: %v", len(lines), lines)
	}
	if f := strings.Fields(lines[4]); f[0] != "2" || f[4] != "70" {
		t.Errorf("GPU 2: %v", f)
	}
	if got := run(t, root, "pmon", "-c", "1", "-i", "3"); strings.Count(got, "\n") != 3 || !strings.Contains(got, "    3          -") {
		t.Error(got)
	}
	if got := run(t, root, "topo", "-p2p", "n"); strings.Count(got, "\tOK") != 56 {
		t.Error(got)
	}
}

func TestQueryGPUPrintsTheFieldsOfARealH200(t *testing.T) {
	data, err := os.ReadFile("testdata/h200-query-gpu.tsv")
	if err != nil {
		t.Fatal(err)
	}
	var heads, names, want []string
	for line := range strings.Lines(string(data)) {
		if head, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "\t"); ok {
			name, _, _ := strings.Cut(head, " ")
			heads, names, want = append(heads, head), append(names, name), append(want, value)
		}
	}
	out := run(t, render(t, "h200-hgx"), "--query-gpu="+strings.Join(names, ","), "--format=csv", "-i", "0")
	rows := strings.Split(strings.TrimSpace(out), "\n")
	if diff := cmp.Diff(strings.Join(heads, ", "), rows[0]); diff != "" {
		t.Errorf("heading (-real +fake):\n%s", diff)
	}
	for i, got := range strings.Split(rows[1], ", ") {
		if want[i] != "*" && got != want[i] {
			t.Errorf("%s is %q, on the real one %q", names[i], got, want[i])
		}
	}
}

// TestMIGProfilesAreListedAsOnARealH200 has lines of nvidia-smi mig -lgip and -lgipp of driver 580.159.04, with MIG off.
func TestMIGProfilesAreListedAsOnARealH200(t *testing.T) {
	root := render(t, "h200-hgx")
	out := run(t, root, "mig", "-lgip", "-i", "0")
	for _, want := range []string{
		"|   0  MIG 1g.18gb         19     7/7        16.00      No     16     1     0   |\n" +
			"|                                                               1     1     0   |\n",
		"|   0  MIG 1g.18gb+me      20     1/1        16.00      No     16     1     0   |\n" +
			"|                                                               1     1     1   |\n",
		"|   0  MIG 4g.71gb          5     1/1        69.75      No     64     4     0   |\n",
		"|   0  MIG 7g.141gb         0     1/1        140.00     No     132    7     0   |\n" +
			"|                                                               8     7     1   |\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the real one prints\n%sand the fake\n%s", want, out)
		}
	}
	const placements = "GPU  0 Profile ID 19 Placements: {0,1,2,3,4,5,6}:1\nGPU  0 Profile ID 20 Placements: {0,1,2,3,4,5,6}:1\n" +
		"GPU  0 Profile ID 15 Placements: {0,2,4,6}:2\nGPU  0 Profile ID 14 Placements: {0,2,4}:2\nGPU  0 Profile ID  9 Placements: {0,4}:4\n" +
		"GPU  0 Profile ID  5 Placement : {0}:4\nGPU  0 Profile ID  0 Placement : {0}:8\n"
	if diff := cmp.Diff(placements, run(t, root, "mig", "-lgipp", "-i", "0")); diff != "" {
		t.Errorf("-lgipp (-real +fake):\n%s", diff)
	}
	for _, action := range []string{"-lgi", "-lci", "-lcip"} {
		if got := run(t, root, "mig", action); got != "No MIG-enabled devices found.\n" {
			t.Errorf("%s: %q", action, got)
		}
	}
}

// TestTextsHaveTheFormOfARealH200 has lines of driver 580.159.04.
func TestTextsHaveTheFormOfARealH200(t *testing.T) {
	root := render(t, "h200-hgx")
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"-q", "-i", "0"}, "CUDA Version                                           : 13.0\n\n" +
			"Attached GPUs                                          : 1\nGPU "},
		{[]string{"-q", "-i", "0"}, "        HW Slowdown                                    : Not Active\n" +
			"            HW Thermal Slowdown                        : Not Active\n"},
		{[]string{"-q", "-i", "0"}, "    Retired Pages\n        Single Bit ECC                                 : N/A\n"},
		{[]string{"-q", "-i", "0"}, "        Inactive Uncorrectable Error                   : 0\n"},
		{[]string{"compute-policy", "-l", "-i", "0"}, "| GPU     Name           Value        |\n|=====================================|\n" +
			"|   0   Timeslice       Default       |\n+-------------------------------------+\n"},
		{[]string{"pmon", "-c", "1", "-i", "0"}, "    0          -     -      -      -      -      -      -      -    -              \n"},
		{[]string{"topo", "-p2p", "r"}, " \t\x1b[4mGPU0\t"},
		{[]string{"topo", "-m"}, "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\nGPU0\t X \t"},
		{[]string{"--help-query-gpu"}, "List of valid properties to query for the switch \"--query-gpu\":\n\n\"timestamp\"\n"},
		{[]string{"--help-query-gpu"}, "\n\"pci.bus_id\" or \"gpu_bus_id\"\n"},
	} {
		if got := run(t, root, test.args...); !strings.Contains(got, test.want) {
			t.Errorf("%v: the real one prints %q, the fake\n%s", test.args, test.want, got)
		}
	}
}
