package fabric

import (
	"testing"

	"gpufabric.io/fakes/profile"
)

func TestRacksRepeatASmallProfile(t *testing.T) {
	for name, test := range map[string]struct {
		profile string
		nodes   int
		want    string
	}{
		"part of a rack": {"gb200-nvl72", 4, "4 nodes of gb200-nvl72, part of a rack of 18"},
		"a rack":         {"gb200-nvl72", 18, "18 nodes of gb200-nvl72, a rack"},
		"whole racks": {"gb200-nvl72", 36,
			"36 nodes of gb200-nvl72, whose rack has 18: it is repeated, 2 NVLink cliques in all"},
		"a rack and some": {"gb200-nvl72", 20,
			"20 nodes of gb200-nvl72, whose rack has 18: it is repeated, 2 NVLink cliques in all, the last of 2 nodes"},
		"machines that are no rack":     {"h100-hgx", 3, "3 nodes of h100-hgx, none of which shares NVLink with another"},
		"machines that have no GPU too": {"rdma-only", 2, "2 nodes of rdma-only, none of which shares NVLink with another"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Racks(test.profile, test.nodes)
			if err != nil || got != test.want {
				t.Errorf("got %q, %v; want %q", got, err, test.want)
			}
		})
	}
	if said, err := Racks("gb300", 1); err == nil {
		t.Errorf("a profile that there is not gives %q; want an error", said)
	}
}

func TestRacksThatRepeatAreOtherCliques(t *testing.T) {
	p, err := profile.Load("gb200-nvl72")
	if err != nil {
		t.Fatal(err)
	}
	first, same, second := p.Node(0), p.Node(17), p.Node(18)
	if first.ClusterUUID != same.ClusterUUID || first.ClusterUUID == second.ClusterUUID {
		t.Errorf("nodes 0, 17 and 18 are in the NVLink domains %v, %v and %v; want the first two in one, the third in another", first.ClusterUUID,
			same.ClusterUUID, second.ClusterUUID)
	}
	if first.MachineID == second.MachineID || first.GPUs[0].UUID == second.GPUs[0].UUID || first.Hostname == second.Hostname {
		t.Errorf("node 18 has an identity of node 0's: %s, %s, %s", second.MachineID, second.GPUs[0].UUID, second.Hostname)
	}
}
