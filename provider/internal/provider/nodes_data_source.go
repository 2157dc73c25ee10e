package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/datasource/schema"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/types"
	corev1 "k8s.io/api/core/v1"

	"gpufabric.io/provider/internal/cluster"
	"gpufabric.io/provider/internal/inventory"
)

type nodesModel struct {
	NodeSelector types.Object `tfsdk:"node_selector"`
	Nodes        []nodeModel  `tfsdk:"nodes"`
}

type nodeModel struct {
	Name    string     `tfsdk:"name"`
	Clique  string     `tfsdk:"clique_id"`
	Ready   bool       `tfsdk:"ready"`
	Healthy bool       `tfsdk:"healthy"`
	GPUs    []gpuModel `tfsdk:"gpus"`
	NICs    []nicModel `tfsdk:"nics"`
}

type gpuModel struct {
	Name      string   `tfsdk:"name"`
	UUID      string   `tfsdk:"uuid"`
	Product   string   `tfsdk:"product"`
	MemoryMiB int64    `tfsdk:"memory_mib"`
	PCIBusID  string   `tfsdk:"pci_bus_id"`
	Claims    []string `tfsdk:"claims"`
	Troubles  []string `tfsdk:"troubles"`
}

type nicModel struct {
	Name      string   `tfsdk:"name"`
	Device    string   `tfsdk:"rdma_device"`
	Interface string   `tfsdk:"if_name"`
	LinkLayer string   `tfsdk:"link_layer"`
	RateGbps  int64    `tfsdk:"rate_gbps"`
	Pool      string   `tfsdk:"pool"`
	Claims    []string `tfsdk:"claims"`
	Troubles  []string `tfsdk:"troubles"`
}

func newNodesDataSource() datasource.DataSource {
	text := func(what string) schema.Attribute {
		return schema.StringAttribute{Computed: true, MarkdownDescription: what}
	}
	number := func(what string) schema.Attribute {
		return schema.Int64Attribute{Computed: true, MarkdownDescription: what}
	}
	texts := func(what string) schema.Attribute {
		return schema.ListAttribute{ElementType: types.StringType, Computed: true, MarkdownDescription: what}
	}
	return &reader[nodesModel]{name: "nodes", read: readNodes, schema: schema.Schema{
		MarkdownDescription: "Nodes and their part of the fabric: GPUs, RDMA NICs, NVLink clique and health, as the drivers publish them.",
		Attributes: map[string]schema.Attribute{
			"node_selector": nodeSelectorOfData("are listed"),
			"nodes": schema.ListNestedAttribute{
				Computed:            true,
				MarkdownDescription: "The nodes, by name.",
				NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
					"name": text("Name of the node."),
					"clique_id": text(
						"NVLink clique, `ClusterUUID.CliqueID`; empty for a node without fabric. Function `parse_clique_id` parses it.",
					),
					"ready": schema.BoolAttribute{Computed: true, MarkdownDescription: "Whether the node is Ready in Kubernetes."},
					"healthy": schema.BoolAttribute{
						Computed:            true,
						MarkdownDescription: "Whether the node is ready and none of its GPUs and NICs is in trouble.",
					},
					"gpus": schema.ListNestedAttribute{
						Computed:            true,
						MarkdownDescription: "GPUs.",
						NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
							"name": text(
								"Device name.",
							), "uuid": text("UUID."), "product": text("Product name."), "memory_mib": number("Memory in MiB."),
							"pci_bus_id": text("PCI address."),
							"claims":     texts("Claims that hold it whole, `namespace/name`."),
							"troubles":   texts("Taints that keep new pods away, `key=value`."),
						}},
					},
					"nics": schema.ListNestedAttribute{
						Computed:            true,
						MarkdownDescription: "RDMA NICs, one entry a port.",
						NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
							"name": text(
								"Device name.",
							), "rdma_device": text("RDMA device, for example " +
								"`mlx5_0`."), "if_name": text("Network interface."), "link_layer": text("`InfiniBand` or `Ethernet`."),
							"rate_gbps": number("Rate in Gb/s."), "pool": text("Resource of the pool that has it; empty when none has."),
							"claims": texts(
								"Claims that hold it or a share of it, `namespace/name`.",
							), "troubles": texts("Taints that keep new pods away, `key=value`."),
						}},
					},
				}},
			},
		},
	}}
}

func readNodes(ctx context.Context, client *cluster.Client, m *nodesModel) (diag.Diagnostics, error) {
	var diags diag.Diagnostics
	nodes, err := inventory.Nodes(ctx, client.Typed, labelSelector(ctx, m.NodeSelector, &diags))
	if err != nil {
		return diags, err
	}
	inv, err := inventory.Read(ctx, client.Typed, "")
	if err != nil {
		return diags, err
	}
	byNode := map[string][]inventory.Device{}
	for _, d := range inv.Devices {
		byNode[d.Node] = append(byNode[d.Node], d)
	}
	m.Nodes = []nodeModel{}
	for i := range nodes {
		m.Nodes = append(m.Nodes, describeNode(&nodes[i], byNode[nodes[i].Name]))
	}
	return diags, nil
}

func describeNode(node *corev1.Node, devices []inventory.Device) nodeModel {
	n := nodeModel{Name: node.Name, Clique: node.Labels[inventory.CliqueLabel], GPUs: []gpuModel{}, NICs: []nicModel{}}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			n.Ready = c.Status == corev1.ConditionTrue
		}
	}
	n.Healthy = n.Ready
	for i := range devices {
		d := &devices[i]
		troubles := orNone(d.Troubles())
		switch {
		case d.Driver == inventory.GPUDriver && d.Text("type") == "gpu":
			memory := d.Capacity["memory"]
			n.GPUs = append(
				n.GPUs,
				gpuModel{Name: d.Name, UUID: d.Text("uuid"), Product: d.Text("productName"), MemoryMiB: memory.Value.Value() >> 20,
					PCIBusID: d.Text("resource.kubernetes.io/pciBusID"), Claims: holders(d), Troubles: troubles},
			)
		case d.Driver == inventory.RDMADriver:
			n.NICs = append(n.NICs, nicModel{Name: d.Name, Device: d.Text("rdmaDevice"), Interface: d.Text("ifName"), LinkLayer: d.Text("linkLayer"),
				RateGbps: max(d.Number("rateGbps"), 0), Pool: d.Text("pool"), Claims: holders(d), Troubles: troubles})
		default:
			continue
		}
		n.Healthy = n.Healthy && len(troubles) == 0
	}
	return n
}
