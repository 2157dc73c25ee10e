package provider

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/types"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpufabric.io/drivers/api/resource/cliques"

	"gpufabric.io/provider/internal/apiserver"
	"gpufabric.io/provider/internal/inventory"
)

const plannedClique = "7c1f7a52-92f2-4a55-a1c5-0d6b0f3f6a11.3"

// serveRack puts a rack of 18 nodes into the cluster, each with its channel and a GPU: one node is cordoned, another has lost a GPU.
func serveRack(t *testing.T, s *apiserver.Server) {
	t.Helper()
	nodes, slices := s.Typed.CoreV1().Nodes(), s.Typed.ResourceV1().ResourceSlices()
	for i := range 18 {
		name := fmt.Sprintf("planned-%02d", i)
		t.Cleanup(func() {
			for _, driver := range []string{inventory.ComputeDomainDriver, inventory.GPUDriver} {
				must(t, slices.Delete(context.Background(), name+"-"+driver, metav1.DeleteOptions{}))
			}
			must(t, nodes.Delete(context.Background(), name, metav1.DeleteOptions{}))
		})
		node, err := nodes.Create(t.Context(), &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name,
				Labels: map[string]string{inventory.CliqueLabel: plannedClique, "topology.kubernetes.io/rack": "3"}},
			Spec: corev1.NodeSpec{Unschedulable: i == 7},
		}, metav1.CreateOptions{})
		must(t, err)
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		_, err = nodes.UpdateStatus(t.Context(), node, metav1.UpdateOptions{})
		must(t, err)
		var lost []resourcev1.DeviceTaint
		if i == 11 {
			lost = []resourcev1.DeviceTaint{{Key: inventory.GPUDriver + "/xid", Value: "79", Effect: resourcev1.DeviceTaintEffectNoSchedule}}
		}
		for driver, device := range map[string]resourcev1.Device{
			inventory.ComputeDomainDriver: published("channel-0", "channel", nil), inventory.GPUDriver: published("gpu-2", "gpu", lost),
		} {
			_, err = slices.Create(t.Context(), &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name + "-" + driver},
				Spec: resourcev1.ResourceSliceSpec{Driver: driver, NodeName: &name,
					Pool:    resourcev1.ResourcePool{Name: name + "-" + driver, Generation: 1, ResourceSliceCount: 1},
					Devices: []resourcev1.Device{device}}}, metav1.CreateOptions{})
			must(t, err)
		}
	}
}

func published(name, kind string, taints []resourcev1.DeviceTaint) resourcev1.Device {
	return resourcev1.Device{Name: name, Taints: taints,
		Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"type": {StringValue: &kind}}}
}

// testPlannedDomains plans domains on a rack of 18 nodes of which 16 are healthy.
func testPlannedDomains(t *testing.T, s *apiserver.Server) {
	serveRack(t, s)
	const title = "does not fit an NVLink clique"
	plan := func(t *testing.T, provider string, nodes int) string {
		t.Helper()
		changes, warnings := newCore(t).planText(provider + fmt.Sprintf("resource \"gpufabric_compute_domain\" \"a\" {\n"+
			"  name = \"a\"\n  num_nodes = %d\n  channel = { resource_claim_template = \"a\" }\n}\n", nodes))
		if changes[0].action != "create" {
			t.Errorf("planned: %s", changes[0].action)
		}
		return warnings
	}
	t.Run("a domain larger than what is healthy is warned of, with nodes and reasons", func(t *testing.T) {
		out := plan(t, as(s), 18)
		// On a busy machine the plan may run out of time for its look at the cluster, and then does not warn.
		for end := time.Now().Add(5 * time.Minute); !strings.Contains(out, title) && time.Now().Before(end); {
			out = plan(t, as(s), 18)
		}
		contains(t, out, "The domain "+title+" now", "18 nodes do not fit rack 3 (NVLink clique "+plannedClique+")",
			": 16 of 18 healthy.", "Not healthy there: planned-07 (cordoned), planned-11 (gpu-2: xid 79).")
	})
	t.Run("one that fits is not", func(t *testing.T) {
		if out := plan(t, as(s), 16); strings.Contains(out, title) {
			t.Error(out)
		}
	})
	t.Run("who may not list nodes is told nothing, and plans", func(t *testing.T) {
		viewer := fmt.Sprintf("terraform {\n  required_providers {\n    gpufabric = { source = \"hashicorp/gpufabric\" }\n  }\n}\n"+
			"provider \"gpufabric\" {\n  host = %q\n  cluster_ca_certificate = %q\n  token = %q\n}\n", s.URL, s.CA, apiserver.ViewerToken)
		if out := plan(t, viewer, 18); strings.Contains(out, title) {
			t.Error(out)
		}
	})
}

func TestComputeDomainIsAdvisedBeforeCreate(t *testing.T) {
	domain := func(nodes int64, template string) *computeDomainModel {
		return &computeDomainModel{NumNodes: types.Int64Value(nodes), Channel: types.ObjectValueMust(channelType, map[string]attr.Value{
			"resource_claim_template": types.StringValue(template), "allocation_mode": types.StringValue("Single")})}
	}
	two := []cliques.Node{{Name: "a", Clique: plannedClique}, {Name: "b", Clique: plannedClique, Why: "cordoned"}}
	const text = "2 nodes do not fit NVLink clique " + plannedClique + ": 1 of 2 healthy. Not healthy there: b (cordoned). " +
		"The domain waits until it has 2 nodes; all cliques together have 1 healthy now."
	unknown := domain(0, "t")
	unknown.NumNodes = types.Int64Unknown()
	for _, c := range []struct {
		name        string
		nodes       []cliques.Node
		state, plan *computeDomainModel
		want        []string
	}{
		{"a new one that does not fit", two, nil, domain(2, "t"), []string{text}},
		{"a new one that fits", two, nil, domain(1, "t"), nil},
		{"no node is in a clique", nil, nil, domain(2, "t"), nil},
		{"a number that is not known yet", two, nil, unknown, nil},
		{"one that stands", two, domain(2, "t"), domain(2, "t"), nil},
		{"one that grows", two, domain(1, "t"), domain(2, "t"), []string{text}},
		{"one that is replaced", two, domain(2, "t"), domain(2, "other"), []string{text}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var said []string
			diags := adviseComputeDomain(t.Context(), &inventory.Snapshot{Cliques: c.nodes}, c.state, c.plan)
			for _, d := range diags {
				said = append(said, d.Detail())
			}
			if diff := cmp.Diff(c.want, said); diff != "" || diags.HasError() {
				t.Error(diff)
			}
		})
	}
}
