package smi_test

import (
	"encoding/xml"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The cases have the output of nvidia-smi -q -x of seven machines (see testdata/machines.tsv) at the highest memory clock: the number of
// graphics clocks, the first three and the last two.
func TestQueryListsTheSupportedClocksOfSevenRealMachines(t *testing.T) {
	for name, want := range map[string]struct {
		memory         string
		count          int
		first3AndLast2 []string
	}{
		"a100-40":     {"1215 MHz", 81, []string{"1410 MHz", "1395 MHz", "1380 MHz", "225 MHz", "210 MHz"}},
		"h100-hgx":    {"2619 MHz", 110, []string{"1980 MHz", "1965 MHz", "1950 MHz", "360 MHz", "345 MHz"}},
		"b200-hgx":    {"3996 MHz", 247, []string{"1965 MHz", "1957 MHz", "1950 MHz", "127 MHz", "120 MHz"}},
		"gb200-nvl72": {"3996 MHz", 260, []string{"2062 MHz", "2055 MHz", "2047 MHz", "127 MHz", "120 MHz"}},
		"gb300-nvl72": {"3996 MHz", 261, []string{"2070 MHz", "2062 MHz", "2055 MHz", "127 MHz", "120 MHz"}},
		"l40s-8":      {"9001 MHz", 155, []string{"2520 MHz", "2505 MHz", "2490 MHz", "225 MHz", "210 MHz"}},
		"t4":          {"5001 MHz", 87, []string{"1590 MHz", "1575 MHz", "1560 MHz", "315 MHz", "300 MHz"}},
	} {
		t.Run(name, func(t *testing.T) {
			var log struct {
				GPUs []struct {
					Memory   string   `xml:"supported_clocks>supported_mem_clock>value"`
					Graphics []string `xml:"supported_clocks>supported_mem_clock>supported_graphics_clock"`
				} `xml:"gpu"`
			}
			if err := xml.Unmarshal([]byte(run(t, render(t, name), "-q", "-x")), &log); err != nil {
				t.Fatal(err)
			}
			g := log.GPUs[0]
			if n := len(g.Graphics); n < 5 {
				t.Fatalf("graphics clocks %v", g.Graphics)
			}
			got := append(append([]string{}, g.Graphics[:3]...), g.Graphics[len(g.Graphics)-2:]...)
			if diff := cmp.Diff(want.first3AndLast2, got); diff != "" || g.Memory != want.memory || len(g.Graphics) != want.count {
				t.Errorf("%d clocks at %s, want %d at %s (-real +fake):\n%s", len(g.Graphics), g.Memory, want.count, want.memory, diff)
			}
		})
	}
}
