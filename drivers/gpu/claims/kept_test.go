package claims

import (
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

// run is one run of the driver, with its files and reports.
type run struct {
	*Preparer
	reported []string
}

func newRun(dir string, writer atomicfile.Writer, gpus ...*inventory.GPU) *run {
	r := &run{}
	r.Preparer = New(&Hardware{Node: &inventory.Node{GPUs: gpus}}, Options{
		LeftFile: filepath.Join(dir, "sharing-left.json"), ModesFile: filepath.Join(dir, "mig-modes.json"), Writer: writer,
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

func TestKeptListSetsADamagedFileAside(t *testing.T) {
	for name, text := range map[string]string{
		"cut": `{"kind":"gpufabric-mig-modes"`, "empty": "", "other": `{"a":1}`, "without a checksum": `["GPU-a"]`,
		"changed": `{"kind":"gpufabric-mig-modes","version":1,"sha256":"0","value":["GPU-a"]}`,
	} {
		for _, file := range []string{"sharing-left.json", "mig-modes.json"} {
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

func TestKeptListIsCompleteAfterAKill(t *testing.T) {
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
