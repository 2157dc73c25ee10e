package provider

import (
	"context"
	"slices"

	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/datasource/schema"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"gpufabric.io/provider/internal/cluster"
	"gpufabric.io/provider/internal/inventory"
)

type devicesModel struct {
	Driver  types.String  `tfsdk:"driver"`
	Node    types.String  `tfsdk:"node"`
	Type    types.String  `tfsdk:"type"`
	Devices []deviceModel `tfsdk:"devices"`
}

type deviceModel struct {
	Node       string            `tfsdk:"node"`
	Driver     string            `tfsdk:"driver"`
	Pool       string            `tfsdk:"pool"`
	Name       string            `tfsdk:"name"`
	Attributes map[string]string `tfsdk:"attributes"`
	Capacity   map[string]string `tfsdk:"capacity"`
	Claims     []string          `tfsdk:"claims"`
	Troubles   []string          `tfsdk:"troubles"`
}

func newDevicesDataSource() datasource.DataSource {
	return &reader[devicesModel]{name: "devices", read: readDevices, schema: schema.Schema{
		MarkdownDescription: "Devices that DRA drivers publish (ResourceSlices), with the claims that hold them.",
		Attributes: map[string]schema.Attribute{
			"driver": schema.StringAttribute{
				Optional:            true,
				Validators:          []validator.String{stringvalidator.LengthAtLeast(1)},
				MarkdownDescription: "Only devices of this DRA driver, for example `gpu.nvidia.com`.",
			},
			"node": schema.StringAttribute{Optional: true, Validators: kubernetesName(), MarkdownDescription: "Only devices of this node."},
			"type": schema.StringAttribute{
				Optional:            true,
				MarkdownDescription: "Only devices whose attribute `type` is this, for example `gpu`, `mig`, `shared` or `channel`.",
			},
			"devices": schema.ListNestedAttribute{
				Computed:            true,
				MarkdownDescription: "The devices, by node, driver and name.",
				NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
					"node":   schema.StringAttribute{Computed: true, MarkdownDescription: "Node; empty for a device that is not of one node."},
					"driver": schema.StringAttribute{Computed: true, MarkdownDescription: "DRA driver."},
					"pool":   schema.StringAttribute{Computed: true, MarkdownDescription: "Pool."},
					"name":   schema.StringAttribute{Computed: true, MarkdownDescription: "Name in the pool."},
					"attributes": schema.MapAttribute{
						ElementType:         types.StringType,
						Computed:            true,
						MarkdownDescription: "Attributes as text, by name; those of the driver's own domain without it.",
					},
					"capacity": schema.MapAttribute{
						ElementType:         types.StringType,
						Computed:            true,
						MarkdownDescription: "Capacities as Kubernetes quantities.",
					},
					"claims": schema.ListAttribute{
						ElementType:         types.StringType,
						Computed:            true,
						MarkdownDescription: "Claims that hold it or a share of it, `namespace/name`.",
					},
					"troubles": schema.ListAttribute{
						ElementType:         types.StringType,
						Computed:            true,
						MarkdownDescription: "Taints that keep new pods away, `key=value`.",
					},
				}},
			},
		},
	}}
}

func readDevices(ctx context.Context, client *cluster.Client, m *devicesModel) (diag.Diagnostics, error) {
	inv, err := inventory.Read(ctx, client.Typed, m.Driver.ValueString())
	if err != nil {
		return nil, err
	}
	m.Devices = []deviceModel{}
	for _, d := range inv.Devices {
		if (!m.Node.IsNull() && d.Node != m.Node.ValueString()) || (!m.Type.IsNull() && d.Text("type") != m.Type.ValueString()) {
			continue
		}
		device := deviceModel{
			Node:       d.Node,
			Driver:     d.Driver,
			Pool:       d.Pool,
			Name:       d.Name,
			Attributes: map[string]string{},
			Capacity:   map[string]string{},
			Claims:     holders(&d),
			Troubles:   orNone(d.Troubles()),
		}
		for name := range d.Attributes {
			device.Attributes[string(name)] = d.Text(name)
		}
		for name, c := range d.Capacity {
			device.Capacity[string(name)] = c.Value.String()
		}
		m.Devices = append(m.Devices, device)
	}
	return nil, nil
}

func holders(d *inventory.Device) []string {
	list := []string{}
	for _, c := range d.Claims {
		list = append(list, c.Namespace+"/"+c.Name)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// orNone turns a null list into an empty one; for Terraform the two differ.
func orNone[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
