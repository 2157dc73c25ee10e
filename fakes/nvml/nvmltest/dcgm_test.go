package nvmltest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpufabric.io/fakes/built"
	"gpufabric.io/fakes/fault"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/tree"
)

// Each line of testdata/dcgm.c is a call, its result and its value. Results are 0 (success), 2 (an argument is wrong), 3 (not supported),
// 7 (no room) and 25 (another version of the structure).
const (
	onGB300 = `platform 0 1 1 2
C2C 0 1
SRAM 0 0
SRAM of another version 25 0
rows 0 5952 0
violation 0 0
margin 0 49
retired pages 3 0
retired pending 3 0
InfoROM ECC 0 7.16
InfoROM ECC without room 7 0
boost 0 2070
memory clocks 7 1
memory clock 0 3996
graphics clocks 7 1
power samples 0 180000
PCIe speed 0 64000
fans 0 0
module power 0 488000
module limit 0 2900000
memory power 0 36000
GPU limit 0 1400000
C2C links 0 1
C2C status 0 1
memory temperature 0 38
power cap 0 0
retired 3 0
inbound atomics 0 63
GPM 0 1
metrics of no samples 2 0
sample 0 0
metrics 0 0
metric 2 0 60
metric 10 0 20
metric 60 0 0
metric 476 3 0
`
	onT4 = `platform 3 0 0 0
C2C 3 0
SRAM 3 0
SRAM of another version 25 0
rows 3 0 0
violation 0 0
margin 3 0
retired pages 0 0
retired pending 0 0
InfoROM ECC 0 5.0
InfoROM ECC without room 7 0
boost 0 1590
memory clocks 7 1
memory clock 0 5001
graphics clocks 7 1
power samples 0 34000
PCIe speed 0 8000
fans 0 0
module power 3 0
module limit 3 0
memory power 3 0
GPU limit 0 70000
C2C links 3 0
C2C status 3 0
memory temperature 3 0
power cap 0 0
retired 0 0
inbound atomics 3 0
GPM 0 0
metrics of no samples 2 0
sample 3 0
metrics 2 0
`
)

func TestLibraryHasEveryFunctionOfDCGM(t *testing.T) {
	header, err := exec.CommandContext(t.Context(), "go", "list", "-find", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml/pkg/nvml").Output()
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(t.TempDir(), "dcgm")
	library := filepath.Join(built.Dir(t), "lib")
	include := "-I" + strings.TrimSpace(string(header))
	if out, err := exec.CommandContext(t.Context(), "gcc", "-Wno-deprecated-declarations", include, "-o", binary, "testdata/dcgm.c",
		filepath.Join(library, "libnvidia-ml.so.1")).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for name, c := range map[string]struct{ watts, want string }{"gb300-nvl72": {"180", onGB300}, "t4": {"34", onT4}} {
		t.Run(name, func(t *testing.T) {
			p, err := profile.Load(name)
			if err != nil {
				t.Fatal(err)
			}
			p.Driver.Version = "999.99" // a driver that lacks no function
			root := t.TempDir()
			if err := tree.Render(t.Context(), tree.Options{Profile: p, Root: root, PlainDevices: true, LibraryDir: library}); err != nil {
				t.Fatal(err)
			}
			if err := fault.Apply(root, "util", fault.Arguments{"gpu": "0", "percent": "60"}); err != nil {
				t.Fatal(err)
			}
			if err := fault.Apply(root, "power", fault.Arguments{"gpu": "0", "watts": c.watts}); err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), binary)
			cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(root, "driver/usr/lib64"))
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			if diff := cmp.Diff(c.want, string(out)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
