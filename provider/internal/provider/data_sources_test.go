package provider

import (
	"fmt"
	"testing"

	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
		{"nodes can be chosen by label", `data "gpufabric_nodes" "test" { match_labels = { plain = "true" } }`,
			resource.TestCheckResourceAttr("data.gpufabric_nodes.test", "nodes.0.name", "rack-2")},
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
			resource.TestCheckResourceAttr("data.gpufabric_capacity.test", "nodes.rack-1", "1"))},
		{"the capacity of a profile that nobody has is none", `data "gpufabric_capacity" "test" { mig_profile = "1g.10gb" }`,
			resource.TestCheckResourceAttr("data.gpufabric_capacity.test", "free", "0")},
	} {
		t.Run(c.name, func(t *testing.T) { check(t, resource.TestStep{Config: as(s) + c.config, Check: c.check}) })
	}
}
