package provider

import (
	"fmt"
	"testing"

	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"gpufabric.io/provider/internal/apiserver"
	"gpufabric.io/provider/internal/inventory"
)

const rackClique = "69a19a31-f41c-45a5-8245-579b6bce5bdd.32766"

// publishRack makes, unless they are there, three nodes: two of one clique with two GPUs and a NIC each, one of whose GPUs is in trouble,
// and one without anything.
func publishRack(t *testing.T, s *apiserver.Server) {
	t.Helper()
	if _, err := s.Typed.CoreV1().Nodes().Get(t.Context(), "rack-0", metav1.GetOptions{}); err == nil {
		return // another part of the test was here
	}
	for i, labels := range []map[string]string{{inventory.CliqueLabel: rackClique}, {inventory.CliqueLabel: rackClique}, {"plain": "true"}} {
		node, err := s.Typed.CoreV1().Nodes().Create(
			t.Context(),
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("rack-%d", i), Labels: labels}},
			metav1.CreateOptions{},
		)
		must(t, err)
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		_, err = s.Typed.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{})
		must(t, err)
		if i == 2 {
			break
		}
		gpus := []resourcev1.Device{gpu(0), gpu(1)}
		if i == 1 {
			gpus[1].Taints = []resourcev1.DeviceTaint{{Key: "gpu.nvidia.com/xid", Value: "79", Effect: resourcev1.DeviceTaintEffectNoSchedule}}
		}
		publish(t, s, node.Name, inventory.GPUDriver, gpus...)
		rate := int64(400)
		publish(
			t,
			s,
			node.Name,
			inventory.RDMADriver,
			resourcev1.Device{Name: "mlx5-0-1", Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
				"rdmaDevice": attribute(
					"mlx5_0",
				), "linkLayer": attribute("InfiniBand"), "rateGbps": {IntValue: &rate}, "gpufabric.io/pcieSwitch": attribute("0000:01:00.0")}},
		)
	}
}

func attribute(s string) resourcev1.DeviceAttribute {
	return resourcev1.DeviceAttribute{StringValue: &s}
}

func gpu(i int) resourcev1.Device {
	return resourcev1.Device{Name: fmt.Sprintf("gpu-%d", i), Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
		"type": attribute(
			"gpu",
		), "productName": attribute("NVIDIA GB200"), "cliqueID": attribute(rackClique), "uuid": attribute(fmt.Sprintf("GPU-%d", i)),
		"gpufabric.io/pcieSwitch": attribute(fmt.Sprintf("0000:0%d:00.0", i+1))},
		Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"memory": {Value: apiresource.MustParse("189471Mi")}}}
}

func publish(t *testing.T, s *apiserver.Server, node, driver string, devices ...resourcev1.Device) {
	t.Helper()
	_, err := s.Typed.ResourceV1().ResourceSlices().Create(
		t.Context(),
		&resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{GenerateName: node + "-"},
			Spec: resourcev1.ResourceSliceSpec{
				Driver:   driver,
				NodeName: &node,
				Pool:     resourcev1.ResourcePool{Name: node + "-" + driver, ResourceSliceCount: 1},
				Devices:  devices,
			}},
		metav1.CreateOptions{},
	)
	must(t, err)
}

func testDataSources(t *testing.T, s *apiserver.Server) {
	publishRack(t, s)
	for _, c := range []struct {
		name, config string
		check        resource.TestCheckFunc
	}{
		{"nodes tell GPUs, NICs, clique and health", `data "gpufabric_nodes" "test" {}`, resource.ComposeAggregateTestCheckFunc(
			resource.TestCheckResourceAttr("data.gpufabric_nodes.test", "nodes.#", "3"),
			resource.TestCheckResourceAttr("data.gpufabric_nodes.test", "nodes.0.clique_id", rackClique),
			resource.TestCheckResourceAttr("data.gpufabric_nodes.test", "nodes.0.healthy", "true"),
			resource.TestCheckResourceAttr("data.gpufabric_nodes.test", "nodes.0.gpus.1.memory_mib", "189471"),
			resource.TestCheckResourceAttr("data.gpufabric_nodes.test", "nodes.0.nics.0.rate_gbps", "400"),
			resource.TestCheckResourceAttr("data.gpufabric_nodes.test", "nodes.1.healthy", "false"),
			resource.TestCheckResourceAttr("data.gpufabric_nodes.test", "nodes.1.gpus.1.troubles.0", "gpu.nvidia.com/xid=79"),
			resource.TestCheckResourceAttr("data.gpufabric_nodes.test", "nodes.2.gpus.#", "0"))},
		{"nodes can be chosen by label", `data "gpufabric_nodes" "test" { node_selector = { match_labels = { plain = "true" } } }`,
			resource.TestCheckResourceAttr("data.gpufabric_nodes.test", "nodes.0.name", "rack-2")},
		{"nodes can be chosen by an expression", `data "gpufabric_nodes" "test" {
				node_selector = { match_expressions = [{ key = "plain", operator = "DoesNotExist" }] }
			}`, resource.TestCheckResourceAttr("data.gpufabric_nodes.test", "nodes.0.name", "rack-0")},
		{"devices can be chosen by driver, node and type", `data "gpufabric_devices" "test" {
				driver = "gpu.nvidia.com"
				node   = "rack-0"
				type   = "gpu"
			}`, resource.ComposeAggregateTestCheckFunc(
			resource.TestCheckResourceAttr("data.gpufabric_devices.test", "devices.#", "2"),
			resource.TestCheckResourceAttr("data.gpufabric_devices.test", "devices.0.attributes.productName", "NVIDIA GB200"),
			resource.TestCheckResourceAttr("data.gpufabric_devices.test", "devices.0.capacity.memory", "189471Mi"))},
		{"the topology tells cliques and what stands under one switch", `data "gpufabric_topology" "test" {}`,
			resource.ComposeAggregateTestCheckFunc(
				resource.TestCheckResourceAttr("data.gpufabric_topology.test", "cliques.0.id", rackClique),
				resource.TestCheckResourceAttr("data.gpufabric_topology.test", "cliques.0.nodes.#", "2"),
				resource.TestCheckResourceAttr("data.gpufabric_topology.test", "cliques.0.gpus", "4"),
				resource.TestCheckResourceAttr("data.gpufabric_topology.test", "groups.0.nics.0", "mlx5-0-1"))},
		{"the capacity leaves out what is in trouble", `data "gpufabric_capacity" "test" {}`, resource.ComposeAggregateTestCheckFunc(
			resource.TestCheckResourceAttr("data.gpufabric_capacity.test", "free", "3"),
			resource.TestCheckResourceAttr("data.gpufabric_capacity.test", "nodes.1.free", "1"))},
		{"the capacity of a profile that nobody has is none", `data "gpufabric_capacity" "test" { mig_profile = "1g.10gb" }`,
			resource.TestCheckResourceAttr("data.gpufabric_capacity.test", "free", "0")},
	} {
		t.Run(c.name, func(t *testing.T) { check(t, resource.TestStep{Config: as(s) + c.config, Check: c.check}) })
	}
}

// testObjectData reads what resources manage by the data source of the same kind.
func testObjectData(t *testing.T, s *apiserver.Server) {
	made := configOfLives(s, "shown")
	var shown string
	var checks []resource.TestCheckFunc
	for _, l := range lives {
		shown += fmt.Sprintf("data \"gpufabric_%s\" \"test\" {\n  name = \"shown\"\n}\n", l.name)
		data := "data." + l.address()
		checks = append(checks, resource.TestCheckResourceAttrPair(data, "uid", l.address(), "uid"),
			resource.TestCheckResourceAttrPair(data, "id", l.address(), "id"),
			resource.TestCheckResourceAttr(data, "labels.team", "a"), resource.TestCheckNoResourceAttr(data, "wait_for"))
	}
	checks = append(checks,
		resource.TestCheckResourceAttr("data.gpufabric_compute_domain.test", "channel.resource_claim_template", "life"),
		resource.TestCheckResourceAttr("data.gpufabric_rdma_pool.test", "resource_name", "a"),
		resource.TestCheckResourceAttr("data.gpufabric_rdma_pool.test", "ready", "true"),
		resource.TestCheckResourceAttr("data.gpufabric_vgpu_profile.test", "mode", "Exclusive"),
		resource.TestCheckResourceAttr("data.gpufabric_mig_layout.test", "layout", "off"),
		resource.TestCheckResourceAttr("data.gpufabric_secondary_network.test", "master", "ib0"))
	t.Run("is that of the resource", func(t *testing.T) {
		check(t, resource.TestStep{Config: made},
			resource.TestStep{Config: made + shown, Check: resource.ComposeAggregateTestCheckFunc(checks...)})
	})
	t.Run("of what is not there is an error that names it", func(t *testing.T) {
		for _, l := range lives {
			check(t, resource.TestStep{Config: as(s) + fmt.Sprintf("data \"gpufabric_%s\" \"test\" {\n  name = \"none\"\n}\n", l.name),
				ExpectError: words("There is no " + l.kind.Name)})
		}
	})
	t.Run("shows a network that no resource can manage", func(t *testing.T) {
		const chain = `{"cniVersion":"0.3.1","plugins":[{"type":"macvlan"},{"type":"tuning"}]}`
		networks := s.Dynamic.Resource(networkKind.GVR()).Namespace("default")
		_, err := networks.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{"apiVersion": "k8s.cni.cncf.io/v1",
			"kind": "NetworkAttachmentDefinition", "metadata": map[string]any{"name": "chain"}, "spec": map[string]any{"config": chain}}},
			metav1.CreateOptions{})
		must(t, err)
		defer func() { must(t, networks.Delete(t.Context(), "chain", metav1.DeleteOptions{})) }()
		check(t, resource.TestStep{Config: as(s) + "data \"gpufabric_secondary_network\" \"test\" {\n  name = \"chain\"\n}\n",
			Check: resource.ComposeAggregateTestCheckFunc(resource.TestCheckResourceAttr("data.gpufabric_secondary_network.test", "config", chain),
				resource.TestCheckNoResourceAttr("data.gpufabric_secondary_network.test", "type"))})
	})
}

// testStackData reads a driver stack as a second configuration does.
func testStackData(t *testing.T, s *apiserver.Server) {
	const data = "data.gpufabric_driver_stack.test"
	shown := "data \"gpufabric_driver_stack\" \"test\" {\n  name = \"second\"\n  namespace = \"second-system\"\n}\n"
	check(t, resource.TestStep{Config: as(s) + shown, ExpectError: words("There is no Helm release second-system/second")},
		resource.TestStep{Config: stack(s, "second", "")}, resource.TestStep{Config: stack(s, "second", "") + shown,
			Check: resource.ComposeAggregateTestCheckFunc(resource.TestCheckResourceAttr(data, "ready", "true"),
				resource.TestCheckResourceAttr(data, "chart_version", "1.0.0"), resource.TestCheckResourceAttr(data, "waiting_for.#", "0"),
				resource.TestCheckResourceAttrPair(data, "chart_digest", stackAddress, "chart_digest"))})
}
