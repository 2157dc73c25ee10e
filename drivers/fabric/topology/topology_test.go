package topology

import (
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	"gpufabric.io/drivers/fabric"
	"gpufabric.io/drivers/node/host"
)

func picture() *fabric.Picture {
	hold := fabric.Allocation{Claim: "tenant/claim-a", Request: "gpu", Device: "gpu-0", Pods: []string{"pod-a"}, Form: "whole",
		Memory: 80 << 30}
	return &fabric.Picture{
		Totals: fabric.Totals{Racks: 1, Nodes: 2, GPUs: 2, Free: 1, Held: 1, Ports: 1, Down: 1, Domains: 1, Forming: 1, Waiting: 2},
		Racks: []fabric.Rack{{ID: "aa", Kind: fabric.ByNVLink, Cliques: []string{"aa.1"}, Nodes: []fabric.NodeState{
			{Name: "node-0", Clique: "aa.1", Ready: true, Domains: []string{"tenant/d"}, GPUs: []fabric.GPUState{
				{Name: "gpu-0", Product: "NVIDIA H100", NUMA: 0, Root: "pci0000:00", Switch: "0000:01:00.0", PCI: "0000:03:00.0", Memory: 80 << 30,
					State: fabric.Held, Offers: []string{"whole"}, Holds: []fabric.Allocation{hold}},
				{Name: "gpu-1", Product: "NVIDIA H100", NUMA: 1, PCI: "0000:83:00.0", Memory: 80 << 30, State: fabric.Free, Offers: []string{"whole"}}},
				Ports: []fabric.PortState{{Name: "pci-0000-02-00-0-1", Device: "mlx5_0", Port: 1, Interface: "ib0", RateGbps: 400, NUMA: 0,
					PCI: "0000:02:00.0", Root: "pci0000:00", Switch: "0000:01:00.0", State: fabric.Broken,
					Taints: []fabric.Taint{{Key: "rdma.gpufabric.io/port-down", Value: "Down", Effect: "NoSchedule"}}}}},
			{Name: "node-1", Clique: "aa.1", Notes: []string{"the node is not ready: gone"}},
		}}},
		Domains: []fabric.DomainState{{Name: "tenant/d", Wanted: 2, Up: 1, Why: "waiting for node-1", Joining: []string{"node-1"}}},
		Queue: []fabric.WaitingPod{{Pod: "tenant/a", Since: 100, Cause: "cannot allocate all claims"},
			{Pod: "tenant/b", Since: 130, Cause: "cannot allocate all claims"}},
		Layouts: []fabric.LayoutState{{Node: "node-0", Decision: "gpu-0: cut for 1g.10gb: 1 wait, 0 are free",
			Cuts: []fabric.CutState{{GPU: "gpu-0", To: "1g.10gb@0", Since: 156, Why: "cut for 1g.10gb: 1 wait, 0 are free"}}},
			{Node: "node-1", Decision: "gpu-1: hidden until whole fits"}},
		Missing: []fabric.Missing{{Resource: "rdmapools.gpufabric.io", Why: "not allowed"}},
	}
}

func written(t *testing.T, form string, p *fabric.Picture, nodes ...string) string {
	t.Helper()
	var out strings.Builder
	if err := formats()[form](host.Visible(&out), p, nodes, time.Unix(160, 0)); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestTopologyPrintsHoldersAndBrokenDevices(t *testing.T) {
	const want = `2 nodes in 1 rack. 2 GPUs: 1 free, 1 held. 1 port: 1 down. 1 domain: 1 not ready. 2 waiting pods.

Rack 1, NVLink fabric aa, 1 clique
  NODE    GPUS  PORTS  CLIQUE  DOMAINS   HELD BY       NOTES
  node-0  #.    x      1       tenant/d  tenant/pod-a  mlx5_0: rdma.gpufabric.io/port-down=Down:NoSchedule
  node-1  -     -      1       -         -             the node is not ready: gone

. free   + partly held   # held   ~ tainted   x broken

DOMAIN    READY  NODES  JOINING  WHY
tenant/d  no     1/2    1        waiting for node-1

NODE    MIG BY DEMAND
node-0  gpu-0 is being cut, 4s: it becomes 1g.10gb@0 (cut for 1g.10gb: 1 wait, 0 are free)
node-1  gpu-1: hidden until whole fits

WAITING  OLDEST  FOR
2 pods   1m0s    cannot allocate all claims

Not shown: rdmapools.gpufabric.io (not allowed).
`
	if got := written(t, "text", picture()); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestTopologyPrintsANodeByPCIeSwitch(t *testing.T) {
	got := written(t, "text", picture(), "node-0")
	for _, want := range []string{
		"  NUMA node 0, PCIe root pci0000:00, switch 0000:01:00.0\n    # gpu-0", "whole", "tenant/pod-a", "x mlx5_0 port 1",
		"  NUMA node 1\n    . gpu-1",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
	if strings.Contains(got, "node-1") {
		t.Errorf("the other node is shown:\n%s", got)
	}
}

func TestJSONIsThePictureOrTheNamedNodesOfIt(t *testing.T) {
	var all, one fabric.Picture
	for nodes, into := range map[string]*fabric.Picture{"": &all, "node-1": &one} {
		if err := json.Unmarshal([]byte(written(t, "json", picture(), strings.Fields(nodes)...)), into); err != nil {
			t.Fatal(err)
		}
	}
	if len(all.Racks[0].Nodes) != 2 || len(one.Racks[0].Nodes) != 1 || one.Racks[0].Nodes[0].Name != "node-1" {
		t.Errorf("all of it has %d nodes, node-1 alone %+v", len(all.Racks[0].Nodes), one.Racks[0].Nodes)
	}
}

func TestTopologyEscapesControlCharacters(t *testing.T) {
	const evil = "x\x1b[2J\u009b2J\u202e\"\\\nFORGED"
	p := picture()
	p.Racks[0].Nodes[1].Notes = []string{evil}
	p.Domains[0].Why, p.Queue[0].Cause, p.Missing[0].Why = evil, evil, evil
	p.Layouts[0].Cuts[0] = fabric.CutState{GPU: evil, To: evil, Why: evil}
	p.Layouts[1].Decision = evil
	p.Racks[0].Nodes[0].GPUs[0].Product, p.Racks[0].Nodes[0].Ports[0].Device = evil, evil
	p.Racks[0].Nodes[0].Ports[0].Taints[0].Value = evil
	p.Racks[0].Nodes[0].GPUs[1].PCI, p.Racks[0].Nodes[0].Ports[0].Switch = evil, evil
	for form := range formats() {
		for _, nodes := range [][]string{nil, {"node-0"}} {
			got := written(t, form, p, nodes...)
			for _, bad := range []string{"\x1b", "\u009b", "\u202e", "\nFORGED"} {
				if strings.Contains(got, bad) {
					t.Errorf("%s has %q:\n%q", form, bad, got)
				}
			}
			if form == "json" && !json.Valid([]byte(got)) {
				t.Errorf("no JSON: %q", got)
			}
		}
	}
}

func TestTopologySuggestsSimilarNodes(t *testing.T) {
	for name, want := range map[string]string{"node-": "near ones are node-0, node-1", "other": "it has 2"} {
		if err := known(picture(), []string{name}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}

func TestTopologyPrintsDevicesOfAPodsClaims(t *testing.T) {
	own, node, err := ofPod(picture(), "tenant/pod-a")
	if err != nil || node != "node-0" {
		t.Fatalf("node %q: %v", node, err)
	}
	const want = `<system version="1" name="node-0">
  <cpu numaid="0">
    <pci busid="0000:01:00.0" class="0x060400">
      <pci busid="0000:03:00.0" class="0x03">
        <gpu></gpu>
      </pci>
    </pci>
  </cpu>
</system>
`
	if got := written(t, "nccl", own, node); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for pod, want := range map[string]string{
		"tenant/pod": "near ones are tenant/pod-a", "other/x": `"other/x": claims of such a pod do not have`,
	} {
		if _, _, err := ofPod(picture(), pod); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", pod, err, want)
		}
	}
	bare := picture()
	err = WriteNCCL(io.Discard, &bare.Racks[0].Nodes[1])
	if err == nil || !strings.Contains(err.Error(), "node node-1: the drivers do not publish") {
		t.Error(err)
	}
}

func TestTopologyChecksFlagsFirst(t *testing.T) {
	for arguments, want := range map[string]string{
		"--output=yaml":                   `--output "yaml": allowed are text, json, dot and nccl`,
		"--output=nccl":                   "give one --node, or a --pod",
		"--output=nccl --node=a --node=b": "give one --node, or a --pod",
		"--output=nccl --node=a --pod=b":  "give one --node, or a --pod",
		"--pod=b":                         `--pod "b": only with --output=nccl`,
	} {
		command := Command(host.Host{})
		command.SetArgs(strings.Fields(arguments))
		command.SilenceUsage, command.SilenceErrors = true, true
		if err := command.Execute(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", arguments, err, want)
		}
	}
}
