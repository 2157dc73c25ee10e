package objects_test

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"gpufabric.io/fakes/profile"
	"gpufabric.io/tests/objects"
)

func load(t *testing.T, name string) *profile.Profile {
	t.Helper()
	p, err := profile.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func split(t *testing.T, o objects.Options) (nodes []*corev1.Node, published []*resourceapi.ResourceSlice) {
	t.Helper()
	if err := objects.Make(t.Context(), o, func(object runtime.Object) error {
		switch x := object.(type) {
		case *corev1.Node:
			nodes = append(nodes, x)
		case *resourceapi.ResourceSlice:
			published = append(published, x)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return nodes, published
}

func TestMakeGivesNodesAndSlicesOfEachProfile(t *testing.T) {
	for _, name := range profile.Names() {
		t.Run(name, func(t *testing.T) {
			p := load(t, name)
			nodes, published := split(t, objects.Options{Profile: p, Nodes: 2, Driver: objects.GPUFabric, Extended: true})
			count := map[string]int{}
			for _, s := range published {
				for _, d := range s.Spec.Devices {
					count[*s.Spec.NodeName+" "+s.Spec.Driver]++
					if len(d.Attributes) == 0 {
						t.Errorf("%s has no attributes", d.Name)
					}
				}
			}
			for i, n := range nodes {
				gpus, nics := len(p.Node(i).GPUs), len(p.Node(i).NICs)
				if channels := count[n.Name+" compute-domain.nvidia.com"]; (channels == 2) != (gpus > 0) {
					t.Errorf("%s: %d devices of compute domains; want a channel and a daemon on a node with GPUs", n.Name, channels)
				}
				if count[n.Name+" gpu.nvidia.com"] != gpus || (count[n.Name+" rdma.gpufabric.io"] > 0) != (nics > 0) {
					t.Errorf("%s: devices %v, where the profile has %d GPUs and %d NICs", n.Name, count, gpus, nics)
				}
				if got := n.Status.Allocatable["nvidia.com/gpu"]; got.Value() != int64(gpus) {
					t.Errorf("%s: nvidia.com/gpu is %s, want %d", n.Name, got.String(), gpus)
				}
			}
			if len(nodes) != 2 || nodes[0].Name == nodes[1].Name {
				t.Errorf("%d nodes", len(nodes))
			}
		})
	}
}

func TestMakeLabelsTheCliqueOfARack(t *testing.T) {
	nodes, _ := split(t, objects.Options{Profile: load(t, "gb200-nvl72"), Nodes: 19})
	clique := func(i int) string { return nodes[i].Labels["nvidia.com/gpu.clique"] }
	first, last, next := clique(0), clique(17), clique(18)
	if first == "" || first != last || first == next {
		t.Errorf("cliques of nodes 0, 17 and 18: %q, %q, %q", first, last, next)
	}
}

func TestMakeShapesSlicesAsNVIDIAsDriverDoes(t *testing.T) {
	_, published := split(t, objects.Options{Profile: load(t, "h100-hgx"), Nodes: 1, Driver: objects.NVIDIA})
	if len(published) != 1 || published[0].Spec.Pool.Name != *published[0].Spec.NodeName || len(published[0].Spec.Devices) != 8 {
		t.Fatalf("%+v", published)
	}
	d := published[0].Spec.Devices[0]
	var names []string
	for name := range d.Attributes {
		names = append(names, string(name))
	}
	slices.Sort(names)
	want := "addressingMode architecture brand cudaComputeCapability cudaDriverVersion driverVersion productName " +
		"resource.kubernetes.io/numaNode resource.kubernetes.io/pciBusID resource.kubernetes.io/pcieRoot type uuid"
	if got := strings.Join(names, " "); d.Name != "gpu-0" || got != want {
		t.Errorf("device %s has %s\nwant gpu-0 with %s", d.Name, got, want)
	}
}

func TestMakeRejectsContradictoryOptions(t *testing.T) {
	p := load(t, "t4")
	for name, o := range map[string]objects.Options{
		"no profile": {Nodes: 1}, "no nodes": {Profile: p}, "too many": {Profile: p, Nodes: 10001},
		"an unknown driver": {Profile: p, Nodes: 1, Driver: "amd"},
	} {
		if err := objects.Make(t.Context(), o, func(runtime.Object) error { return nil }); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
