package computedomains

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/domain"
	"gpufabric.io/tests/simcluster/fixture"
)

func TestFormationReportsAddressCliqueAndIndex(t *testing.T) {
	n := shared.Namespace(t)
	const size = 3
	n.Domain("d", size)
	for i := range size {
		n.Pod(fmt.Sprintf("member-%d", i), "d-channel", cluster.NodeName(i))
	}
	d := n.AwaitDomain("d", domain.ReadyOn(size))
	indices := map[int64]bool{}
	for _, node := range d.Nodes {
		if address, err := netip.ParseAddr(node.Address); err != nil || !address.IsLoopback() {
			t.Errorf("%s has address %q; want its daemon pod's", node.Name, node.Address)
		}
		if label := nodeLabel(t, node.Name, "nvidia.com/gpu.clique"); node.Clique == "" || node.Clique != label {
			t.Errorf("%s is of clique %q in the domain and labelled %q", node.Name, node.Clique, label)
		}
		if node.Index < 0 || node.Index >= size || indices[node.Index] {
			t.Errorf("%s has index %d, which is taken or not below %d", node.Name, node.Index, size)
		}
		indices[node.Index] = true
	}
	for i := range size {
		n.AwaitPod(fmt.Sprintf("member-%d", i), fixture.Running)
	}
}

func TestFormationGivesAPodOnlyItsChannel(t *testing.T) {
	n := shared.Namespace(t)
	n.Domain("d", 1)
	n.Pod("member", "d-channel", "")
	n.AwaitPod("member", fixture.Running)
	var devices []string
	for _, container := range n.Received("member") {
		for _, device := range container.Devices {
			mode := "no mode"
			if device.FileMode != nil {
				mode = fmt.Sprintf("%04o", device.FileMode.Perm())
			}
			devices = append(devices, fmt.Sprintf("%s %s minor %d %s", device.Type, device.Path, device.Minor, mode))
			if device.Major == 0 {
				t.Errorf("%s has no major number", device.Path)
			}
		}
	}
	if want := []string{"c /dev/nvidia-caps-imex-channels/channel0 minor 0 0666"}; !slices.Equal(devices, want) {
		t.Errorf("received %v; want %v", devices, want)
	}
}

func TestFormationOfTwoDomains(t *testing.T) {
	n := shared.Namespace(t)
	const size = 4
	for d := range 2 {
		name := fmt.Sprintf("d%d", d)
		n.Domain(name, size)
		for i := range size {
			n.Pod(fmt.Sprintf("%s-%d", name, i), name+"-channel", cluster.NodeName(d*size+i))
		}
	}
	seen := map[string]string{}
	for _, name := range []string{"d0", "d1"} {
		for _, node := range n.AwaitDomain(name, domain.ReadyOn(size)).Nodes {
			if other, taken := seen[node.Name]; taken {
				t.Errorf("%s is in %s and in %s", node.Name, other, name)
			}
			seen[node.Name] = name
		}
	}
}

func TestDomainFormsOverWholeRack(t *testing.T) {
	n := shared.Namespace(t)
	n.Domain("rack", nodes)
	for i := range nodes {
		n.Pod(fmt.Sprintf("rank-%d", i), "rack-channel", cluster.NodeName(i))
	}
	d := n.AwaitDomain("rack", domain.ReadyOn(nodes))
	var indices []int64
	for _, node := range d.Nodes {
		indices = append(indices, node.Index)
	}
	slices.Sort(indices)
	for i, index := range indices {
		if int64(i) != index {
			t.Fatalf("indices %v; want 0 to %d, each once", indices, nodes-1)
		}
	}
}

func TestFormationIsReadyAtOnceWithoutANumber(t *testing.T) {
	n := shared.Namespace(t)
	n.Domain("d", 0)
	n.AwaitDomain("d", func(d domain.Domain) bool { return d.Status == domain.Ready })
	n.Pod("member", "d-channel", "")
	n.AwaitPod("member", fixture.Running)
}

func TestFormationReportsTheNumberOfMissingNodes(t *testing.T) {
	n := shared.Namespace(t)
	n.Domain("d", 3)
	n.Pod("member", "d-channel", "")
	d := n.AwaitDomain("d", func(d domain.Domain) bool { return d.Ready == 1 })
	if d.Status == domain.Ready {
		t.Errorf("it is Ready with one node of three")
	}
	said := fmt.Sprint(d.Conditions)
	if !strings.Contains(said, "1 of 3") && !strings.Contains(said, "1/3") {
		t.Errorf("its conditions do not say that 1 of 3 nodes is there: %s", said)
	}
}

func nodeLabel(t *testing.T, node, label string) string {
	t.Helper()
	var object *corev1.Node
	for _, n := range shared.Nodes(t) {
		if n.Name == node {
			object = &n
			break
		}
	}
	if object == nil {
		t.Fatalf("there is no node %s", node)
	}
	return object.Labels[label]
}
