package provider

import (
	"context"
	"maps"
	"slices"

	"github.com/hashicorp/terraform-plugin-framework-validators/int64validator"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/datasource/schema"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"
	resourcev1 "k8s.io/api/resource/v1"

	"gpufabric.io/provider/internal/cluster"
	"gpufabric.io/provider/internal/inventory"
)

type capacityModel struct {
	MIGProfile types.String `tfsdk:"mig_profile"`
	MemoryMiB  types.Int64  `tfsdk:"memory_mib"`
	Cores      types.Int64  `tfsdk:"cores"`
	Free       types.Int64  `tfsdk:"free"`
	Nodes      []freeModel  `tfsdk:"nodes"`
}

type freeModel struct {
	Name string `tfsdk:"name"`
	Free int64  `tfsdk:"free"`
}

func newCapacityDataSource() datasource.DataSource {
	whole := path.MatchRoot("memory_mib")
	return &reader[capacityModel]{name: "capacity", read: readCapacity, schema: schema.Schema{
		MarkdownDescription: "How many claims of one form would fit now, beside what is allocated: whole GPUs (no argument), MIG instances of " +
			"a profile (`mig_profile`), or shares of a size (`memory_mib` and `cores`). " +
			"It counts as the scheduler does, over the counters of each GPU; devices in trouble do not count.",
		Attributes: map[string]schema.Attribute{
			"mig_profile": schema.StringAttribute{
				Optional:            true,
				Validators:          []validator.String{migProfile{}, stringvalidator.ConflictsWith(whole, path.MatchRoot("cores"))},
				MarkdownDescription: "MIG profile, for example `1g.10gb`.",
			},
			"memory_mib": schema.Int64Attribute{
				Optional:            true,
				Validators:          []validator.Int64{int64validator.AtLeast(1)},
				MarkdownDescription: "Memory of a share in MiB.",
			},
			"cores": schema.Int64Attribute{
				Optional:            true,
				Validators:          []validator.Int64{int64validator.Between(1, 100), int64validator.AlsoRequires(whole)},
				MarkdownDescription: "Cores of a share in percent of a GPU.",
			},
			"free": schema.Int64Attribute{Computed: true, MarkdownDescription: "How many fit in the cluster."},
			"nodes": schema.ListNestedAttribute{
				Computed:            true,
				MarkdownDescription: "How many fit on each node that has such devices, by name.",
				NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
					"name": schema.StringAttribute{Computed: true, MarkdownDescription: "Name of the node."},
					"free": schema.Int64Attribute{Computed: true, MarkdownDescription: "How many fit on it."},
				}},
			},
		},
	}}
}

func readCapacity(ctx context.Context, client *cluster.Client, m *capacityModel) (diag.Diagnostics, error) {
	inv, err := inventory.Read(ctx, client.Typed, inventory.GPUDriver)
	if err != nil {
		return nil, err
	}
	request := inventory.Request{Driver: inventory.GPUDriver, Type: "gpu"}
	switch {
	case !m.MIGProfile.IsNull():
		request.Type, request.Profile = "mig", m.MIGProfile.ValueString()
	case !m.MemoryMiB.IsNull():
		request.Type, request.Capacity = "shared", map[resourcev1.QualifiedName]int64{
			"memory": m.MemoryMiB.ValueInt64() << 20,
			"cores":  m.Cores.ValueInt64(),
		}
	}
	free := inv.Free(request)
	total := int64(0)
	m.Nodes = []freeModel{}
	for _, name := range slices.Sorted(maps.Keys(free)) {
		total += free[name]
		m.Nodes = append(m.Nodes, freeModel{name, free[name]})
	}
	m.Free = types.Int64Value(total)
	return nil, nil
}
