package record_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gpufabric.io/fakes/internal/memdir"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/record"
	"gpufabric.io/fakes/smi"
	"gpufabric.io/fakes/tree"
)

func TestMain(m *testing.M) { os.Exit(memdir.Run(m)) }

// machine renders a node and reads it as if it were real. No machine with a GPU was available, so these are the fixtures.
func machine(t *testing.T, name string) (record.Machine, *profile.Profile) {
	t.Helper()
	p, err := profile.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	return machineOf(t, p)
}

func machineOf(t *testing.T, p *profile.Profile) (record.Machine, *profile.Profile) {
	t.Helper()
	root := t.TempDir()
	if err := tree.Render(t.Context(), tree.Options{Profile: p, Node: 5, Root: root, PlainDevices: true}); err != nil {
		t.Fatal(err)
	}
	m := record.Machine{Name: "recorded", Sysfs: filepath.Join(root, "sys")}
	if p.GPUs != nil {
		m.SMI = smiOutput(t, root, "-q", "-x")
		m.ComputeCapability = string(smiOutput(t, root, "--query-gpu=compute_cap", "--format=csv,noheader"))
	}
	if p.IMEX != nil {
		m.IMEXVersion = p.IMEX.Version
	}
	return m, p
}

func smiOutput(t *testing.T, root string, args ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	c := smi.Command{Root: root, Stdout: &out, Now: time.Now()}
	if err := c.Run(args); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// expected are differences that a recording cannot avoid: defaults that a profile omits, and values that neither nvidia-smi nor sysfs
// report.
func expected(d record.Difference) bool {
	for _, suffix := range []string{".memoryNodes", "host.numa", "host.architecture",
		"topology.acrossHostBridges", ".idleWatts", ".idleCelsius", ".present"} {
		if strings.HasSuffix(d.Path, suffix) {
			return true
		}
	}
	return false
}

func TestRecordingOfAFakeIsItsProfile(t *testing.T) {
	for _, name := range profile.Names() {
		t.Run(name, func(t *testing.T) {
			m, want := machine(t, name)
			got, err := record.Profile(m)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range record.Compare(got, want) {
				if !expected(d) {
					t.Error(d)
				}
			}
			// The recording has no identity of the cluster, only its existence: nodes without one are in no compute domain.
			const none = "00000000-0000-0000-0000-000000000000"
			if want.Fabric != nil && (got.Fabric.ClusterUUID == none) != (want.Fabric.ClusterUUID == none) {
				t.Errorf("the cluster is %s, where the profile has %s", got.Fabric.ClusterUUID, want.Fabric.ClusterUUID)
			}
			data, err := profile.Format(got)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := profile.Parse("recorded.yaml", data); err != nil {
				t.Errorf("the recording is no valid profile: %v", err)
			}
		})
	}
}

func TestRecordingDoesNotIdentifyTheMachine(t *testing.T) {
	m, p := machine(t, "gb200-nvl72")
	got, err := record.Profile(m)
	if err != nil {
		t.Fatal(err)
	}
	data, err := profile.Format(got)
	if err != nil {
		t.Fatal(err)
	}
	n := p.Node(5)
	secrets := []string{n.ClusterUUID, n.Hostname, n.MachineID}
	for _, g := range n.GPUs {
		secrets = append(secrets, g.UUID, strings.TrimPrefix(g.UUID, "GPU-"), g.Serial)
	}
	for _, nic := range n.NICs {
		secrets = append(secrets, nic.Serial)
	}
	for _, s := range secrets {
		if strings.Contains(string(data), s) {
			t.Errorf("it holds %s", s)
		}
	}
}

func TestCompareNamesDifferences(t *testing.T) {
	m, p := machine(t, "l40s-8")
	m.SMI = bytes.Replace(m.SMI, []byte("46068 MiB"), []byte("49140 MiB"), 1)
	got, err := record.Profile(m)
	if err != nil {
		t.Fatal(err)
	}
	var found bool
	for _, d := range record.Compare(got, p) {
		found = found || d.String() == "gpus.model.memoryMiB: real 49140, fake 46068"
	}
	if !found {
		t.Errorf("%v", record.Compare(got, p))
	}
}

func TestProfileRefusesOutputOfNoGPUOfTheMachine(t *testing.T) {
	m, _ := machine(t, "h100-hgx")
	other, _ := machine(t, "t4")
	for _, c := range []struct{ name, smi, message string }{
		{"text", "NVIDIA-SMI has failed", "</nvidia_smi_log>, is needed"},
		{"half of the output", string(m.SMI[:len(m.SMI)/2]), "</nvidia_smi_log>, is needed"},
		{"another program's XML", "<rocm-smi><gpu id=\"0\"></gpu></rocm-smi>", "expected element type <nvidia_smi_log>"},
		{"two reports", string(m.SMI) + string(other.SMI), "follow the end of the first report"},
		{"UTF-16", "\xff\xfe<\x00", "iconv -f UTF-16 -t UTF-8"},
		{"no GPU", "<nvidia_smi_log><driver_version>580.95.05</driver_version></nvidia_smi_log>", "has no GPU"},
		{"another machine's", string(other.SMI), "is not in " + m.Sysfs},
	} {
		wrong := m
		wrong.SMI = []byte(c.smi)
		if p, err := record.Profile(wrong); err == nil || !strings.Contains(err.Error(), c.message) {
			t.Errorf("%s: %v, %v; want %q", c.name, p, err, c.message)
		}
	}
}

// A machine of a known model may have its NVSwitches elsewhere.
func TestProfileReadsPlacesOfNVSwitches(t *testing.T) {
	p, err := profile.Load("h100-hgx")
	if err != nil {
		t.Fatal(err)
	}
	p.GPUs.NVLink.Switches = []string{"0000:f1:00.0", "0000:f2:00.0"}
	m, _ := machineOf(t, p)
	got, err := record.Profile(m)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got.GPUs.NVLink.Switches, p.GPUs.NVLink.Switches) {
		t.Errorf("switches at %v, want %v", got.GPUs.NVLink.Switches, p.GPUs.NVLink.Switches)
	}
}

// Drivers before 535 have one power reading, under another name.
func TestProfileReadsPowerOfOldDrivers(t *testing.T) {
	m, p := machine(t, "a100-40")
	m.SMI = bytes.ReplaceAll(m.SMI, []byte("gpu_power_readings>"), []byte("power_readings>"))
	got, err := record.Profile(m)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := got.GPUs.Model.Power, p.GPUs.Model.Power; got.MaxWatts != want.MaxWatts || got.DefaultWatts != want.DefaultWatts {
		t.Errorf("power %+v, want %+v", got, want)
	}
}

func TestCompareNamesAnotherDriver(t *testing.T) {
	m, p := machine(t, "h100-hgx")
	m.SMI = bytes.ReplaceAll(m.SMI, []byte(p.Driver.Version), []byte("999.10"))
	got, err := record.Profile(m)
	if err != nil {
		t.Fatal(err)
	}
	want := "driver.version: real 999.10, fake " + p.Driver.Version
	if found := record.Compare(got, p); !slices.ContainsFunc(found, func(d record.Difference) bool { return d.String() == want }) {
		t.Errorf("%v, want %q", found, want)
	}
}
