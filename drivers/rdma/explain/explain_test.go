package explain_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpufabric.io/drivers/node/host"
	"gpufabric.io/drivers/rdma/config"
	"gpufabric.io/drivers/rdma/explain"
	"gpufabric.io/drivers/rdma/inventory"
	"gpufabric.io/drivers/rdma/pool"
)

// run runs the command on a node of one InfiniBand HCA with a dead port, one RoCE HCA and a network card without RDMA, with a config.json.
func run(t *testing.T, config string, args ...string) (string, error) {
	t.Helper()
	tree := hardware(t)
	file := filepath.Join(t.TempDir(), "config.json")
	if config != "" {
		if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return command(t, host.Host{}, append([]string{"--sysfs-root", tree.Sys, "--config", file}, args...)...)
}

// command runs the command on a host without an API server, unless one is given.
func command(t *testing.T, h host.Host, args ...string) (string, error) {
	t.Helper()
	var out, errs bytes.Buffer
	h.Stdout, h.Stderr = &out, &errs
	h.Getenv = func(string) string { return "" }
	command := explain.Command(h)
	command.SilenceUsage, command.SilenceErrors = true, true
	command.SetArgs(args)
	err := command.ExecuteContext(t.Context())
	if h.RESTConfig == nil && err == nil && !strings.Contains(strings.Join(args, " "), "--manifest") &&
		!strings.Contains(errs.String(), "RDMAPools are left out") {
		t.Errorf("nothing says that RDMAPools were left out: %q", errs.String())
	}
	return out.String(), err
}

const two = `{"configList": [
	{"resourceName": "hca_shared_devices_a", "rdmaHcaMax": 1000,
		"selectors": {"vendors": ["15b3"], "deviceIDs": ["1021"], "ifNames": ["ibp3s0"]}},
	{"resourceName": "roce", "rdmaHcaMax": 10, "selectors": {"linkTypes": ["ether"]}}]}`

func TestExplainListsEveryDevice(t *testing.T) {
	got, err := run(t, two)
	if err != nil {
		t.Fatal(err)
	}
	want := `
DEVICE        PCI           PORTS                                                                                            ` +
		`POOL                       ANSWER
mlx5_0        0000:3b:00.0  1: InfiniBand 400 Gb/s [ibp3s0] (the port's state is DOWN (physical state Polling))              ` +
		`rdma/hca_shared_devices_a  taken
                                                                                                                             ` +
		`rdma/roce                  refused by selectors.linkTypes: its link type infiniband is not among [ether]
mlx5_1        0000:5e:00.0  1: Ethernet 400 Gb/s [ens2f0]                                                                    ` +
		`rdma/hca_shared_devices_a  refused by selectors.deviceIDs: its device ID 101d is not among [1021]
                                                                                                                             ` +
		`rdma/roce                  taken
0000:11:00.0  0000:11:00.0  -                                                                                                ` +
		`-                          skipped: no RDMA device: the driver i40e made none (is the module irdma loaded?)
`
	squeeze := func(s string) []string {
		var lines []string
		for _, line := range strings.Split(strings.TrimSpace(s), "\n") {
			lines = append(lines, strings.Join(strings.Fields(line), " "))
		}
		return lines
	}
	if diff := cmp.Diff(squeeze(want), squeeze(got)); diff != "" {
		t.Error(diff)
	}
}

func TestExplainWritesJSON(t *testing.T) {
	out, err := run(t, two, "--json")
	if err != nil {
		t.Fatal(err)
	}
	var answer explain.Answer
	if err := json.Unmarshal([]byte(out), &answer); err != nil {
		t.Fatal(err)
	}
	got := answer.Devices
	if len(answer.Pools) != 2 || answer.Pools[1].Source != "config.json configList[1]" || answer.Pools[1].Devices[0] != "mlx5_1" ||
		len(got) != 3 || got[0].Pools[0] != "rdma/hca_shared_devices_a" || got[0].Ports[0].Trouble == "" || got[1].Ports[0].Trouble != "" ||
		got[2].Skipped == "" {
		t.Errorf("got %s", out)
	}
}

func TestExplainNamesAMissingFile(t *testing.T) {
	tree := hardware(t)
	var out, errs bytes.Buffer
	command := explain.Command(host.Host{Stdout: &out, Stderr: &errs, Getenv: func(string) string { return "" }})
	command.SetArgs([]string{"--sysfs-root", tree.Sys, "--config", "/not/there.json", "--rdma-pools=false"})
	if err := command.ExecuteContext(t.Context()); err != nil || !strings.Contains(errs.String(), "no file /not/there.json") ||
		!strings.Contains(out.String(), "mlx5_1") {
		t.Errorf("%v\n%s\n%s", err, errs.String(), out.String())
	}
}

func TestExplainWithoutAndWithBadConfiguration(t *testing.T) {
	out, err := run(t, "")
	if err != nil || !strings.Contains(out, "and no RDMAPool is served here") || !strings.Contains(out, "mlx5_1") {
		t.Errorf("without a file: %v\n%s", err, out)
	}
	_, err = run(t, `{"configList": [{"resourceName": "a b"}]}`)
	if err == nil || !strings.Contains(err.Error(), "configList[0].resourceName") ||
		!strings.Contains(err.Error(), "configList[0].selectors") {
		t.Errorf("with two mistakes: %v", err)
	}
}

func TestExplainReportsClosedUnitsInExclusiveMode(t *testing.T) {
	tree := hardware(t)
	found, err := inventory.Discover(t.Context(), inventory.Roots{Sysfs: tree.Sys})
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := config.Parse([]byte(two))
	if err != nil {
		t.Fatal(err)
	}
	for _, exclusively := range []bool{false, true} {
		answer := explain.Explain(parsed, &pool.Listing{}, found, explain.Node{Sysfs: tree.Sys, Exclusive: exclusively})
		for _, p := range answer.Pools {
			if closed := strings.Contains(p.Closed, "are in exclusive mode"); closed != exclusively {
				t.Errorf("exclusive mode %v: %s is closed: %q", exclusively, p.Resource, p.Closed)
			}
		}
		var out strings.Builder
		if err := answer.Write(&out, "config.json"); err != nil || strings.Contains(out.String(),
			"(rdma/roce): the node's RDMA devices are in exclusive mode") != exclusively {
			t.Errorf("exclusive mode %v: %v\n%s", exclusively, err, out.String())
		}
	}
}

func TestExplainShowsTheEntriesBesideOneWithMistakes(t *testing.T) {
	out, err := run(t, `{"configList": [{"resourceName": "a b"}, {"resourceName": "roce", "rdmaHcaMax": 10, "selectors": {"linkTypes": `+
		`["ether"]}}]}`)
	if err != nil || !strings.Contains(out, "rdma/roce") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestExplainNamesAPoolWhenItHasNoUnits(t *testing.T) {
	for config, want := range map[string]bool{
		`{"resourceName": "roce", "selectors": {"linkTypes": ["ether"]}}`:                       true,
		`{"resourceName": "roce", "rdmaHcaMax": 1, "selectors": {"linkTypes": ["ether"]}}`:      false,
		`{"resourceName": "roce", "rdmaHcaMax": 0, "selectors": {"linkTypes": ["nothing"]}}`:    false,
		`{"resourceName": "roce", "rdmaHcaMax": 0, "selectors": {"vendors": ["15b3", "1d0f"]}}`: true,
	} {
		out, err := run(t, `{"configList": [`+config+`]}`)
		if err == nil && strings.Contains(out, "(rdma/roce): the pool has no units: set rdmaHcaMax") != want {
			t.Errorf("%s: %v\n%s", config, err, out)
		}
	}
}
