package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/datasource/schema"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"gpufabric.io/provider/internal/cluster"
	"gpufabric.io/provider/internal/inventory"
)

type topologyModel struct {
	Cliques []cliqueModel `tfsdk:"cliques"`
	Groups  []groupModel  `tfsdk:"groups"`
}

type cliqueModel struct {
	ID    string   `tfsdk:"id"`
	Nodes []string `tfsdk:"nodes"`
	GPUs  int64    `tfsdk:"gpus"`
}

type groupModel struct {
	Node     string   `tfsdk:"node"`
	Switch   string   `tfsdk:"pcie_switch"`
	Root     string   `tfsdk:"pcie_root"`
	NUMANode int64    `tfsdk:"numa_node"`
	GPUs     []string `tfsdk:"gpus"`
	NICs     []string `tfsdk:"nics"`
}

func newTopologyDataSource() datasource.DataSource {
	texts := func(what string) schema.Attribute {
		return schema.ListAttribute{ElementType: types.StringType, Computed: true, MarkdownDescription: what}
	}
	return &reader[topologyModel]{name: "topology", read: readTopology, schema: schema.Schema{
		MarkdownDescription: "The topology of the fabric: which nodes share an NVLink clique, and which GPUs and NICs of a node are " +
			"under one PCIe switch.",
		Attributes: map[string]schema.Attribute{
			"cliques": schema.ListNestedAttribute{
				Computed:            true,
				MarkdownDescription: "NVLink cliques.",
				NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
					"id":    schema.StringAttribute{Computed: true, MarkdownDescription: "`ClusterUUID.CliqueID`."},
					"nodes": texts("Its nodes."),
					"gpus":  schema.Int64Attribute{Computed: true, MarkdownDescription: "How many GPUs it has, as far as the GPU driver publishes them."},
				}},
			},
			"groups": schema.ListNestedAttribute{
				Computed:            true,
				MarkdownDescription: "GPUs and NICs that are close together on a node.",
				NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
					"node":        schema.StringAttribute{Computed: true, MarkdownDescription: "Name of the node."},
					"pcie_switch": schema.StringAttribute{Computed: true, MarkdownDescription: "PCI address of the switch above them; empty without one."},
					"pcie_root":   schema.StringAttribute{Computed: true, MarkdownDescription: "PCIe root above them."},
					"numa_node":   schema.Int64Attribute{Computed: true, MarkdownDescription: "NUMA node; -1 when unknown."},
					"gpus":        texts("Device names of the GPUs."),
					"nics":        texts("Device names of the NICs."),
				}},
			},
		},
	}}
}

func readTopology(ctx context.Context, client *cluster.Client, m *topologyModel) (diag.Diagnostics, error) {
	inv, err := inventory.Read(ctx, client.Typed, "")
	if err != nil {
		return nil, err
	}
	nodes, err := inventory.Nodes(ctx, client.Typed, nil)
	if err != nil {
		return nil, err
	}
	labels := map[string]string{}
	for _, n := range nodes {
		labels[n.Name] = n.Labels[inventory.CliqueLabel]
	}
	m.Cliques, m.Groups = []cliqueModel{}, []groupModel{}
	for _, c := range inv.Cliques(labels) {
		m.Cliques = append(m.Cliques, cliqueModel(c))
	}
	for _, g := range inv.Groups() {
		m.Groups = append(m.Groups, groupModel{g.Node, g.Switch, g.Root, g.NUMANode, orNone(g.GPUs), orNone(g.NICs)})
	}
	return nil, nil
}
