package claims

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/node/atomicfile"
)

// inMIGMode makes GPUs that are in MIG mode and can switch it at once.
func inMIGMode(uuids ...string) []*inventory.GPU {
	var gpus []*inventory.GPU
	for _, uuid := range uuids {
		gpus = append(gpus, &inventory.GPU{UUID: uuid, MIG: &inventory.MIG{}, Handle: &mock.Device{
			GetMigModeFunc: func() (int, int, nvml.Return) { return nvml.DEVICE_MIG_ENABLE, nvml.DEVICE_MIG_ENABLE, nvml.SUCCESS },
		}})
	}
	return gpus
}

// run is one run of the driver: what it reads, writes and reports.
type run struct {
	*Kind
	reported []string
}

func newRun(dir string, writer atomicfile.Writer, gpus ...*inventory.GPU) *run {
	r := &run{}
	r.Kind = New(&Hardware{Node: &inventory.Node{GPUs: gpus}}, Options{
		LeftFile: filepath.Join(dir, "sharing-left.json"), ModesFile: filepath.Join(dir, "mig-modes.json"), AdoptModes: true, Writer: writer,
		Events: r,
	})
	return r
}

func (r *run) Report(reason, message string) { r.reported = append(r.reported, reason+": "+message) }

func (r *run) Note(reason, message string) { r.Report(reason, message) }

// own returns the GPUs whose MIG mode counts as a claim's.
func (r *run) own() []string { return slices.Sorted(maps.Keys(r.modes.own)) }

func (r *run) stillShared() []string { return slices.Sorted(maps.Keys(r.left)) }

// setAside is how many files the metrics count that could not be read.
func (r *run) setAside(t *testing.T) (files float64) {
	t.Helper()
	for _, c := range r.Collectors()[1:] { // the first is of shares
		files += testutil.ToFloat64(c)
	}
	return files
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatalf("%s: %s: %v", path, text, err)
	}
}

// The texts are what the version before checksums wrote, byte for byte. That version can read what is written now.
func TestFilesOfTheVersionBeforeAreReadAndWritten(t *testing.T) {
	dir := t.TempDir()
	left, modes := filepath.Join(dir, "sharing-left.json"), filepath.Join(dir, "mig-modes.json")
	put(t, left, `[{"gpu":"GPU-a","strategy":"TimeSlicing","interval":"Long"},{"gpu":"GPU-b","strategy":"MPS"}]`)
	put(t, modes, `["GPU-a"]`)
	r := newRun(dir, atomicfile.Writer{}, inMIGMode("GPU-a", "GPU-b")...)
	if got := r.stillShared(); !slices.Equal(got, []string{"GPU-a", "GPU-b"}) || r.left["GPU-a"].Interval != v1beta1.LongTimeSlice {
		t.Errorf("still shared are %v", r.left)
	}
	if got := r.own(); !slices.Equal(got, []string{"GPU-a"}) || len(r.reported) > 0 {
		t.Errorf("claims' modes are those of %v; reported %q", got, r.reported)
	}
	r.leave(sharingData{GPU: "GPU-c", Strategy: v1beta1.MPS}, fmt.Errorf("no answer"))
	r.OwnMode("GPU-b")

	var leftBefore []sharingData
	read(t, left, &leftBefore)
	if len(leftBefore) != 4 || leftBefore[2].GPU != "GPU-c" || leftBefore[3] != (sharingData{}) {
		t.Errorf("the version before reads %v; want three GPUs, and one without a name that no GPU has", leftBefore)
	}
	var modesBefore []string
	read(t, modes, &modesBefore)
	if len(modesBefore) != 3 || !slices.Equal(modesBefore[:2], []string{"GPU-a", "GPU-b"}) {
		t.Errorf("the version before reads %v; want two GPUs, and a text that is no GPU's UUID", modesBefore)
	}
	// That version writes back the entry without a name that it read.
	put(t, left, `[{"gpu":"","strategy":""},{"gpu":"GPU-c","strategy":"MPS"}]`)
	if got := newRun(dir, atomicfile.Writer{}).stillShared(); !slices.Equal(got, []string{"GPU-c"}) {
		t.Errorf("after a downgrade %v are still shared", got)
	}
}

func TestAFileThatCannotBeReadIsSetAsideReportedAndCounted(t *testing.T) {
	for name, text := range map[string]string{
		"cut": `["GPU-a"`, "empty": "", "newer": `[{"version":2,"sha256":"0"}]`, "newer modes": `["version 2 sha256:0"]`, "other": `{"a":1}`,
		"changed": `[{"gpu":"GPU-a","strategy":"MPS"},{"version":1,"sha256":"0"}]`, "changed modes": `["GPU-a","version 1 sha256:0"]`,
	} {
		for _, file := range []string{"sharing-left.json", "mig-modes.json"} {
			if strings.HasSuffix(name, "modes") && file != "mig-modes.json" || (name == "newer" || name == "changed") && file == "mig-modes.json" {
				continue
			}
			t.Run(name+" "+file, func(t *testing.T) {
				dir := t.TempDir()
				put(t, filepath.Join(dir, file), text)
				for start := range 2 {
					r := newRun(dir, atomicfile.Writer{}, inMIGMode("GPU-a")...)
					if reports := len(r.reported); reports != 1-start {
						t.Errorf("start %d reports %q", start, r.reported)
					}
					for _, report := range r.reported {
						if !strings.HasPrefix(report, "StateUnreadable: which GPUs ") || !strings.Contains(report, file) {
							t.Errorf("reported %q", report)
						}
					}
					if file == "mig-modes.json" && len(r.own()) > 0 {
						t.Errorf("start %d takes the MIG mode of %v for claims'; it may be an administrator's", start, r.own())
					}
					if aside := r.setAside(t); aside != 1 {
						t.Errorf("start %d counts %g files", start, aside)
					}
				}
				if kept, err := os.ReadFile(filepath.Join(dir, "unreadable", file)); err != nil || string(kept) != text {
					t.Errorf("set aside is %q, %v", kept, err)
				}
			})
		}
	}
}

func TestAKillAtAnyWriteLeavesTheOldListOrTheNewOne(t *testing.T) {
	for _, step := range atomicfile.Steps() {
		t.Run(string(step), func(t *testing.T) {
			dir, gpus := t.TempDir(), inMIGMode("GPU-a", "GPU-b")
			first := newRun(dir, atomicfile.Writer{})
			first.leave(sharingData{GPU: "GPU-a", Strategy: v1beta1.MPS}, fmt.Errorf("no answer"))
			first.OwnMode("GPU-a")
			killed := newRun(dir, atomicfile.Writer{Before: func(at atomicfile.Step, _ string) error {
				if at == step {
					return atomicfile.Crash()
				}
				return nil
			}}, gpus...)
			killed.leave(sharingData{GPU: "GPU-b", Strategy: v1beta1.MPS}, fmt.Errorf("no answer"))
			killed.OwnMode("GPU-b")
			if want := 3; len(killed.reported) != want { // the GPU, and two files that are not kept
				t.Errorf("reported %q, want %d reports", killed.reported, want)
			}
			next := newRun(dir, atomicfile.Writer{}, gpus...)
			for _, got := range [][]string{next.stillShared(), next.own()} {
				if !slices.Equal(got, []string{"GPU-a"}) && !slices.Equal(got, []string{"GPU-a", "GPU-b"}) {
					t.Errorf("the next run reads %v", got)
				}
			}
			if len(next.reported) > 0 {
				t.Errorf("the next run reports %q", next.reported)
			}
		})
	}
}
