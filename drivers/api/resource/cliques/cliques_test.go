package cliques

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	first  = "69a19a31-f41c-45a5-8245-579b6bce5bdd.32766"
	second = "0b1de1f2-3c4d-4e5f-8a9b-0c1d2e3f4a5b.1"
)

// rack makes so many healthy nodes of a clique.
func rack(clique, name string, size int) []Node {
	var nodes []Node
	for i := range size {
		nodes = append(nodes, Node{Name: fmt.Sprintf("%s-%02d", name, i), Clique: clique, Rack: name})
	}
	return nodes
}

func ill(nodes []Node, why string, which ...int) []Node {
	for _, i := range which {
		nodes[i].Why = why
	}
	return nodes
}

func TestWarningNamesCliqueAndCause(t *testing.T) {
	few := append(ill(rack(first, "r3", 18), "cordoned", 7, 11), rack(second, "r4", 12)...)
	odd := rack(first, "r3", 4)
	odd[2].Rack = ""
	for _, c := range []struct {
		name   string
		nodes  []Node
		wanted int
		want   []string
	}{
		{"as many as are healthy", few, 16, nil},
		{"waits for none", ill(rack(first, "r3", 2), "cordoned", 0, 1), 0, nil},
		{"less than none", rack(first, "r3", 2), -3, nil},
		{"no node is in a clique", nil, 18, nil},
		{"a whole rack that is not whole", few, 18, []string{
			"18 nodes do not fit rack r3 (NVLink clique " + first + "), the best of 2 cliques: 16 of 18 healthy",
			"not healthy there: r3-07 (cordoned), r3-11 (cordoned)",
			"over several cliques the domain can become Ready, but only pods in the same clique share GPU memory"}},
		{"more than all together", few, 29, []string{
			"29 nodes do not fit rack r3 (NVLink clique " + first + "), the best of 2 cliques: 16 of 18 healthy",
			"not healthy there: r3-07 (cordoned), r3-11 (cordoned)",
			"the domain waits until it has 29 nodes; all cliques together have 28 healthy now"}},
		{"the larger clique is the worse one", append(ill(rack(first, "a", 4), "not Ready", 0, 1, 2), rack(second, "b", 2)...), 3, []string{
			"3 nodes do not fit rack b (NVLink clique " + second + "), the best of 2 cliques: 2 of 2 healthy",
			"over several cliques the domain can become Ready, but only pods in the same clique share GPU memory"}},
		{"none is healthy", ill(rack(first, "r3", 5), "not Ready", 0, 1, 2, 3, 4), 1, []string{
			"1 node does not fit rack r3 (NVLink clique " + first + "): 0 of 5 healthy",
			"not healthy there: r3-00 (not Ready), r3-01 (not Ready), r3-02 (not Ready), 2 more",
			"the domain waits until it has 1 node; all cliques together have 0 healthy now"}},
		{"the labels name no one rack", odd, 5, []string{
			"5 nodes do not fit NVLink clique " + first + ": 4 of 4 healthy",
			"the domain waits until it has 5 nodes; all cliques together have 4 healthy now"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			if short := Fit(c.nodes, c.wanted); short != nil {
				got = short.Warnings()
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// The API server may cut a warning of more than 256 bytes (k8s.io/apiserver, warnings). Labels have at most 63; the names of nodes
// have no such limit in practice.
func TestWarningIsNotTruncated(t *testing.T) {
	nodes := rack(strings.Repeat("c", 63), strings.Repeat("r", 63), 18)
	if line := Fit(nodes, 1_000_000).Warnings()[0]; len(line) > 256 {
		t.Errorf("%d bytes: %s", len(line), line)
	}
}

func node(name, clique string, change func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"nvidia.com/gpu.clique": clique}},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}
	if change != nil {
		change(n)
	}
	return n
}

func device(name, kind string, taints ...resourceapi.DeviceTaint) *resourceapi.Device {
	return &resourceapi.Device{Name: name, Taints: taints,
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"type": {StringValue: &kind}}}
}

func TestHealthyExcludesNodesWithACause(t *testing.T) {
	const imex, gpus = "compute-domain.nvidia.com", "gpu.nvidia.com"
	taint := func(key, value string, effect resourceapi.DeviceTaintEffect) resourceapi.DeviceTaint {
		return resourceapi.DeviceTaint{Key: key, Value: value, Effect: effect}
	}
	noSchedule, noExecute := resourceapi.DeviceTaintEffectNoSchedule, resourceapi.DeviceTaintEffectNoExecute
	channel := device("channel-0", "channel")
	for _, c := range []struct {
		name   string
		change func(*corev1.Node)
		driver string
		device *resourceapi.Device
		want   string
	}{
		{"nothing", nil, imex, channel, ""},
		{"its kubelet reports trouble", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse }, imex, channel,
			"not Ready"},
		{"its kubelet is silent", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }, imex, channel, "not Ready"},
		{"it never reported", func(n *corev1.Node) { n.Status.Conditions = nil }, imex, channel, "not Ready"},
		{"cordoned", func(n *corev1.Node) { n.Spec.Unschedulable = true }, imex, channel, "cordoned"},
		{"leaving", func(n *corev1.Node) { n.DeletionTimestamp = &metav1.Time{} }, imex, channel, "it is being deleted"},
		{"an administrator's taint", func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "nvidia.com/gpu", Effect: corev1.TaintEffectNoSchedule}}
		}, imex, channel, ""},
		{"its fabric is in trouble", nil, imex, device("channel-0", "channel", taint(imex+"/fabric", "DriverTooOld", noSchedule)),
			"DriverTooOld"},
		{"a taint without a value", nil, imex, device("channel-0", "channel", taint("example.com/away", "", noExecute)), "example.com/away"},
		{"only the daemon is there", nil, imex, device("daemon-0", "daemon"), "publishes no IMEX channel"},
		{"a device without a type", nil, imex, &resourceapi.Device{Name: "channel-0"}, "publishes no IMEX channel"},
		{"a GPU with a fault", nil, gpus, device("gpu-2", "gpu", taint(gpus+"/xid", "79", noSchedule)), "gpu-2: xid 79"},
		{"a GPU that is lost", nil, gpus, device("gpu-2", "gpu", taint(gpus+"/lost", "", noExecute)), "gpu-2: lost"},
		{"a GPU with a fault that keeps nobody away", nil, gpus,
			device("gpu-2", "gpu", taint(gpus+"/ecc", "", resourceapi.DeviceTaintEffectNone)), ""},
		{"a GPU that a device plugin has", nil, gpus, device("gpu-2", "gpu", taint("gpufabric.io/device-plugin", "x", noSchedule)), ""},
		{"a device of another driver", nil, "dra.example.com", device("x", "channel", taint("a", "b", noSchedule)), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s Survey
			s.AddNode(node("a", first, c.change))
			s.AddNode(node("b", first, nil))
			s.AddNode(node("c", "", nil)) // in no clique
			s.AddDevice("b", imex, channel)
			s.AddDevice("gone", imex, channel)
			if c.driver != imex {
				s.AddDevice("a", imex, channel)
			}
			s.AddDevice("a", c.driver, c.device)
			want := []Node{{Name: "a", Clique: first, Why: c.want}, {Name: "b", Clique: first}}
			if diff := cmp.Diff(want, s.Nodes()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestHealthyIgnoresChannelsWhenNonePublishes(t *testing.T) {
	var s Survey
	s.AddNode(node("a", first, nil))
	if nodes := s.Nodes(); len(nodes) != 1 || nodes[0].Why != "" {
		t.Errorf("%+v", nodes)
	}
	var none Survey
	none.AddDevice("a", "gpu.nvidia.com", device("gpu-0", "gpu"))
	if nodes := none.Nodes(); len(nodes) != 0 {
		t.Errorf("%+v", nodes)
	}
}

func TestRackIsNamedByTheFirstLabel(t *testing.T) {
	labels := map[string]string{"network.topology.nvidia.com/leaf": "leaf", "network.topology.nvidia.com/accelerator": "nvl"}
	if rack := RackOf(labels); rack != "nvl" {
		t.Errorf("rack %q", rack)
	}
	since := map[string]string{"fabric.topograph.run/tier-0": "leaf", "accelerator.topograph.run/domain": "nvl"}
	if rack := RackOf(since); rack != "nvl" {
		t.Errorf("rack %q by the labels of Topograph 1.0", rack)
	}
	labels["topology.kubernetes.io/rack"] = "r3"
	if rack := RackOf(labels); rack != "r3" {
		t.Errorf("rack %q", rack)
	}
}
