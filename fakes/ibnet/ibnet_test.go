package ibnet_test

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"gpufabric.io/fakes/ibnet"
	"gpufabric.io/fakes/profile"
)

func load(t *testing.T, name string) *profile.Profile {
	t.Helper()
	p, err := profile.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func write(t *testing.T, o ibnet.Options) string {
	t.Helper()
	var out strings.Builder
	if err := ibnet.Write(&out, o); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// end is one end of a cable.
type end struct {
	device string
	port   string
}

// cables reads the records: the device at the other end of each port, the number of devices by kind, and the LID of each device.
func cables(t *testing.T, text string) (to map[end]end, kinds map[string]int, lids map[string]string) {
	t.Helper()
	to, kinds, lids = map[end]end{}, map[string]int{}, map[string]string{}
	device := regexp.MustCompile(`^(Switch|Ca)\t(\d+) "([SH]-[0-9a-f]{16})"\t\t# "([^"]+)"`)
	cable := regexp.MustCompile(`^\[(\d+)\](?:\([0-9a-f]+\) )?\t"([SH]-[0-9a-f]{16})"\[(\d+)\](?:\([0-9a-f]+\) )?\t\t# .*lid (\d+) 4x[A-Z]DR$`)
	current, ports := "", 0
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if match := device.FindStringSubmatch(line); match != nil {
			current = match[3]
			ports, _ = strconv.Atoi(match[2]) // digits alone
			kinds[match[1]+" "+strings.TrimRight(match[4], "0123456789")]++
			continue
		}
		if !strings.HasPrefix(line, "[") {
			continue
		}
		match := cable.FindStringSubmatch(line)
		if match == nil {
			t.Fatalf("line %q is not as ibnetdiscover prints it", line)
		}
		from := end{current, match[1]}
		if before, twice := to[from]; twice {
			t.Errorf("port %v has cables to %v and %s", from, before, match[2])
		}
		if number, err := strconv.Atoi(match[1]); err != nil || number < 1 || number > ports {
			t.Errorf("%s has no port %s", current, match[1])
		}
		to[from] = end{match[2], match[3]}
		if before, known := lids[match[2]]; known && before != match[4] {
			t.Errorf("%s has LIDs %s and %s", match[2], before, match[4])
		}
		lids[match[2]] = match[4]
	}
	return to, kinds, lids
}

func TestNetworkHasBothEndsOfEachCable(t *testing.T) {
	for _, c := range []struct {
		profile                     string
		nodes, ports                int
		leaves, spines, cores, hcas int
	}{
		{"gb200-nvl72", 18, 0, 4, 32, 0, 72},
		{"gb200-nvl72", 33, 64, 8, 32, 0, 132},
		{"h100-hgx", 4, 8, 8, 4, 0, 32},
		{"gb200-nvl72", 144, 144, 8, 72, 0, 576},
		{"gb300-nvl72", 18, 0, 4, 72, 0, 72},
		{"gb200-nvl72", 1008, 64, 128, 128, 64, 4032},
		{"h100-hgx", 16, 8, 32, 32, 16, 128},
		{"gb200-nvl72", 36, 12, 24, 36, 18, 144},
	} {
		t.Run(fmt.Sprint(c.profile, " ", c.nodes), func(t *testing.T) {
			text := write(t, ibnet.Options{Profile: load(t, c.profile), Nodes: c.nodes, Ports: c.ports})
			to, kinds, lids := cables(t, text)
			if kinds["Switch leaf-"] != c.leaves || kinds["Switch spine-"] != c.spines || kinds["Switch core-"] != c.cores {
				t.Errorf("%v, want %d leaves, %d spines and %d cores", kinds, c.leaves, c.spines, c.cores)
			}
			hcas, taken := 0, map[string]string{}
			for from, at := range to {
				if to[at] != from {
					t.Errorf("%v leads to %v, which leads to %v", from, at, to[at])
				}
				if strings.HasPrefix(from.device, "H-") {
					hcas++
				}
			}
			for device, lid := range lids {
				if other, twice := taken[lid]; twice {
					t.Errorf("%s and %s have LID %s", device, other, lid)
				}
				taken[lid] = device
			}
			if hcas != c.hcas {
				t.Errorf("%d HCAs, want %d", hcas, c.hcas)
			}
		})
	}
}

func TestNetworkOfOneLeafHasNoSpine(t *testing.T) {
	p := *load(t, "h100-hgx")
	p.NICs = p.NICs[:1]
	_, kinds, _ := cables(t, write(t, ibnet.Options{Profile: &p, Nodes: 2, Ports: 64}))
	if kinds["Switch leaf-"] != 1 || kinds["Switch spine-"] != 0 {
		t.Errorf("devices %v", kinds)
	}
}

func TestNetworkCallsNodesByTheNamesGiven(t *testing.T) {
	text := write(t, ibnet.Options{Profile: load(t, "h100-hgx"), Nodes: 2, Names: []string{"worker-1", "worker-2"}, Ports: 64})
	for _, name := range []string{`# "worker-1 mlx5_0"`, `# "worker-2 mlx5_0"`} {
		if !strings.Contains(text, name) {
			t.Errorf("no %s", name)
		}
	}
}

func TestNetworkIsRefused(t *testing.T) {
	racks := load(t, "gb200-nvl72")
	for _, c := range []struct {
		name, message string
		options       ibnet.Options
	}{
		{"no nodes", "0 nodes", ibnet.Options{Profile: racks, Ports: 64}},
		{"an odd switch", "63 ports", ibnet.Options{Profile: racks, Nodes: 1, Ports: 63}},
		{"a switch of a negative number of ports", "-2 ports", ibnet.Options{Profile: racks, Nodes: 1, Ports: -2}},
		{"names of other nodes", "1 names for 2 nodes", ibnet.Options{Profile: racks, Nodes: 2, Names: []string{"a"}, Ports: 64}},
		{"four levels of switches", "more ports (144)", ibnet.Options{Profile: racks, Nodes: 1008, Ports: 8}},
		{"a name twice", `"a"`, ibnet.Options{Profile: racks, Nodes: 2, Names: []string{"a", "a"}, Ports: 64}},
		{"a name that ends its quotes", "letters, digits", ibnet.Options{Profile: racks, Nodes: 1, Names: []string{"a\" x \"\n"}, Ports: 64}},
		{"more nodes than LIDs", "nodes at most", ibnet.Options{Profile: racks, Nodes: 100_000_000, Ports: 64}},
		{"no InfiniBand", "no InfiniBand port", ibnet.Options{Profile: load(t, "t4-edge"), Nodes: 2, Ports: 64}},
	} {
		var out strings.Builder
		if err := ibnet.Write(&out, c.options); err == nil || !strings.Contains(err.Error(), c.message) {
			t.Errorf("%s: %v, want %q", c.name, err, c.message)
		}
		if out.Len() > 0 {
			t.Errorf("%s: something is written all the same", c.name)
		}
	}
}
