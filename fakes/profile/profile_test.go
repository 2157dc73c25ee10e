package profile_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpufabric.io/fakes/profile"
)

func load(t testing.TB, name string) *profile.Profile {
	t.Helper()
	p, err := profile.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestProfilesAreValidAndNamedAsTheirFiles(t *testing.T) {
	want := []string{"a10", "a100-40", "a100-80-hgx", "a30-4", "b200-hgx", "b300-hgx", "gb10-spark", "gb200-nvl72", "gb300-nvl72", "gh200",
		"h100-hgx", "h200-hgx", "h200-nvl", "l40s-8", "rdma-only", "rtx-pro-6000-8", "sriov", "switchdev", "t4", "t4-edge", "vr-nvl72"}
	if diff := cmp.Diff(want, profile.Names()); diff != "" {
		t.Errorf("profiles (-want +got):\n%s", diff)
	}
	for _, name := range profile.Names() {
		if p := load(t, name); p.Name != name {
			t.Errorf("%s.yaml names itself %s", name, p.Name)
		}
	}
}

func TestOriginsListEveryValueOfEveryShippedProfile(t *testing.T) {
	for _, name := range profile.Names() {
		for _, v := range load(t, name).Origins() {
			if v.Origin == "" {
				t.Errorf("%s: %s has no origin", name, v.Path)
			}
		}
	}
}

func TestGPUsOfOneBoardShareASerialNumber(t *testing.T) {
	n := load(t, "gb200-nvl72").Node(3)
	serials := []string{n.GPUs[0].Serial, n.GPUs[1].Serial, n.GPUs[2].Serial, n.GPUs[3].Serial}
	if serials[0] != serials[1] || serials[2] != serials[3] || serials[0] == serials[2] {
		t.Errorf("serial numbers %v", serials)
	}
	if other := load(t, "gb200-nvl72").Node(4).GPUs[0].Serial; other == serials[0] {
		t.Errorf("two nodes have the serial number %s", other)
	}
}

func TestBayCountsTraysInARack(t *testing.T) {
	p := load(t, "gb300-nvl72")
	first, last, next := p.Node(0).GPUs[0].Platform, p.Node(17).GPUs[0].Platform, p.Node(18).GPUs[0].Platform
	if first.Tray != 0 || last.Tray != 17 || next.Tray != 0 || last.Slot != 27 ||
		first.Chassis != last.Chassis || first.Chassis == next.Chassis {
		t.Errorf("first %+v, last %+v, first of the next rack %+v", first, last, next)
	}
}

func TestGB200IsTheRecordedTray(t *testing.T) {
	n := load(t, "gb200-nvl72").Node(0)
	var got []string
	for _, g := range n.GPUs {
		got = append(got, g.PCI)
	}
	if diff := cmp.Diff([]string{"0008:01:00.0", "0009:01:00.0", "0018:01:00.0", "0019:01:00.0"}, got); diff != "" {
		t.Errorf("GPUs:\n%s", diff)
	}
	got = nil
	for _, nic := range n.NICs {
		got = append(got, strings.Join([]string{nic.Device, nic.PCI, nic.Netdev, nic.Bond, nic.Details().HCAType}, " "))
	}
	want := []string{"mlx5_0 0000:03:00.0 ibp3s0  MT4129", "mlx5_1 0002:03:00.0 ibP2p3s0  MT4129",
		"mlx5_2 0006:03:00.0 enP6p3s0f0np0  MT41692",
		"mlx5_3 0006:03:00.1 enP6p3s0f1np1 bond0 MT41692", "mlx5_4 0010:03:00.0 ibP16p3s0  MT4129", "mlx5_5 0012:03:00.0 ibP18p3s0  MT4129",
		"mlx5_6 0016:03:00.0 enP22p3s0f0np0  MT41692", "mlx5_7 0016:03:00.1 enP22p3s0f1np1 bond0 MT41692"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("NICs:\n%s", diff)
	}
}

func TestEighteenNodesShareAClique(t *testing.T) {
	p := load(t, "gb200-nvl72")
	for index, want := range map[int]string{0: "69a19a31-f41c-45a5-8245-579b6bce5bdd", 17: "69a19a31-f41c-45a5-8245-579b6bce5bdd"} {
		if got := p.Node(index).ClusterUUID; got != want {
			t.Errorf("node %d: %s", index, got)
		}
	}
	second := p.Node(18).ClusterUUID
	if second == p.Node(0).ClusterUUID || second != p.Node(35).ClusterUUID || second == p.Node(36).ClusterUUID {
		t.Errorf("racks: %s, %s, %s", second, p.Node(35).ClusterUUID, p.Node(36).ClusterUUID)
	}
}

func TestProfilesHaveDistinctIdentifiers(t *testing.T) {
	for _, name := range profile.Names() {
		p := load(t, name)
		seen := map[any]string{}
		once := func(id any, who string) {
			if other, ok := seen[id]; ok {
				t.Errorf("%s: %v is %s and %s", name, id, other, who)
			}
			seen[id] = who
		}
		for i := range 1008 {
			n := p.Node(i)
			once(n.Hostname, n.Hostname)
			for _, g := range n.GPUs {
				once(g.UUID, n.Hostname)
				once(g.PDI, n.Hostname)
			}
			for _, nic := range n.NICs {
				once(nic.NodeGUID, n.Hostname)
				once(nic.MAC, n.Hostname)
			}
		}
		if diff := cmp.Diff(p.Node(7), p.Node(7)); diff != "" {
			t.Errorf("%s: a node is not the same twice:\n%s", name, diff)
		}
	}
}

// edit changes one line of a shipped profile.
func edit(t *testing.T, name, old, replacement string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("../profiles", name+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(data), old) {
		t.Fatalf("%s has no %q", name, old)
	}
	return []byte(strings.Replace(string(data), old, replacement, 1))
}

func TestMistakesAreNamedWithLineAndKey(t *testing.T) {
	for name, c := range map[string]struct{ old, replacement, want string }{
		"an unknown key": {"  numa:\n", "  nuna: []\n  numa:\n",
			"t4.yaml:12: host.nuna: unknown key; allowed here: architecture, hostname, vendor, product, numa"},
		"an unknown key in a list": {"numa: 0, model: ConnectX-5", "nmua: 0, model: ConnectX-5", "t4.yaml:47: nics[0].nmua: unknown key"},
		"a word for a number":      {"memoryMiB: 15360", "memoryMiB: lots", `gpus.model.memoryMiB: is "lots"; a whole number is wanted`},
		"a fraction":               {"memoryMiB: 15360", "memoryMiB: 15360.5", `is "15360.5"; a whole number is wanted`},
		"bytes for MiB": {"memoryMiB: 15360", "memoryMiB: 16106127360",
			"memoryMiB: is 16106127360; at most 67108864 is allowed"},
		"more clock than NVML has":  {"graphicsMHz: ", "graphicsMHz: 99999999", "graphicsMHz: is 99999999"},
		"an interface elsewhere":    {"netdev: ", "netdev: ../../../../etc/", `nics[0].netdev: is "../../../../etc/`},
		"two lines of a GPU's name": {"    name: Tesla T4\n", "    name: \"Tesla\\nT4\"\n", `gpus.model.name: is "Tesla\nT4"`},
		"a very long name": {"    name: Tesla T4\n", "    name: " + strings.Repeat("T", 1000) + "\n",
			`T" and 920 bytes more; it must match`},
		"a limit below its default":   {"defaultWatts: ", "defaultWatts: 99", "none may be above the next"},
		"a missing key":               {"    name: Tesla T4\n", "", "gpus.model.name: is missing"},
		"a value that is not allowed": {"architecture: turing", "architecture: tuning", "allowed: turing, ampere, ada, hopper, blackwell"},
		"a bad PCI address":           {`pci: "0000:12:00.0"`, `pci: "12:00.0"`, "gpus.devices[0].pci"},
		"two devices in one place": {`pci: "0000:86:00.0"`, `pci: "0000:12:00.0"`,
			"gpus.devices[1].pci: 0000:12:00.0 is taken by gpus.devices[0]"},
		"a NUMA node that is not there": {`"0000:d8:00.0", bridges: ["0000:d7:00.0"], numa: 1`,
			`"0000:d8:00.0", bridges: ["0000:d7:00.0"], numa: 7`, "gpus.devices[3].numa: NUMA node 7 is not in host.numa"},
		"a key twice":                    {"    brand: nvidia\n", "    brand: nvidia\n    brand: tesla\n", "gpus.model.brand: occurs twice"},
		"a CPU that NVML cannot tell of": {`cpus: "0-19,40-59"`, `cpus: "0-19,1024"`, "gpus.devices[0].cpus: 1024 is beyond 1023"},
		"more reserved than there is":    {"reservedMiB: 433", "reservedMiB: 15361", "gpus.model.reservedMiB: is 15361; the GPU has 15360"},
		"a virtual function's name taken": {"{device: mlx5_0, ", "{sriov: {total: 8, enabled: 1}, device: mlx5_4, ",
			"nics[0].sriov.enabled: virtual function 0 is mlx5_4, which occurs twice"},
		"a virtual function's place taken": {"port: 0}\n  - {device: mlx5_1, ",
			"port: 0, sriov: {total: 8, enabled: 2}}\n  - {sriov: {total: 8, enabled: 1}, device: mlx5_1, ",
			"nics[1].sriov.enabled: virtual function 0 has 0000:37:00.3, which is taken by nics[0]"},
		"a bridge in another domain":     {`bridges: ["0000:11:00.0"]`, `bridges: ["0001:11:00.0"]`, "another PCI domain"},
		"a fabric without GPUs' NVLinks": {"driver: {version", "fabric: {clusterUUID: nonsense}\ndriver: {version", "fabric.clusterUUID"},
		"an origin of an unknown key":    {"  captured: [gpus.model,", "  captured: [gpus.modell,", `"gpus.modell" is no key of a profile`},
		"an origin twice":                {"  invented: [driver,", "  invented: [gpus.model,", `"gpus.model" is listed in origin.captured too`},
		"no YAML":                        {"name: t4-edge", "name: [", "(file)"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := profile.Parse("t4.yaml", edit(t, "t4-edge", c.old, c.replacement))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v\nwant %s", err, c.want)
			}
		})
	}
}

func TestValidateReportsAllMistakes(t *testing.T) {
	data := edit(t, "t4-edge", "memoryMiB: 15360", "memoryMiB: lots\n    colour: green")
	data = []byte(strings.Replace(string(data), "link: Ethernet", "link: Carrier Pigeon", 1))
	_, err := profile.Parse("t4.yaml", data)
	if got := profile.Problems(err); len(got) != 3 {
		t.Errorf("%d problems: %v", len(got), err)
	}
}

func TestLoadListsProfilesForUnknownName(t *testing.T) {
	_, err := profile.Load("gb300")
	if err == nil || !strings.Contains(err.Error(), "gb200-nvl72") {
		t.Error(err)
	}
}

func TestListsAreReadAsSysfsWritesThem(t *testing.T) {
	got, err := profile.ParseList("0,2-4,9")
	if diff := cmp.Diff([]int{0, 2, 3, 4, 9}, got); diff != "" || err != nil {
		t.Error(err, diff)
	}
	for _, bad := range []string{"a", "3-1", "-1", "0-99999", "1,,2"} {
		if _, err := profile.ParseList(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func FuzzParseDoesNotCrash(f *testing.F) {
	for _, name := range profile.Names() {
		data, err := os.ReadFile(filepath.Join("../profiles", name+".yaml"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(_ *testing.T, data []byte) {
		p, err := profile.Parse("fuzz.yaml", data)
		if err == nil {
			p.Node(3)
		}
	})
}

func TestSchemaIsThatOfTheTypes(t *testing.T) {
	want, err := profile.Schema()
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../profiles/schema.json")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want)+"\n", string(got)); diff != "" {
		t.Errorf("run make -C fakes schema (-types +committed):\n%s", diff)
	}
}
