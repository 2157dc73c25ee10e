package provider

import (
	"context"
	"math"
	"slices"

	"github.com/hashicorp/terraform-plugin-framework-validators/int64validator"
	"github.com/hashicorp/terraform-plugin-framework-validators/setvalidator"
	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
)

type rdmaSelectorsModel struct {
	Vendors      types.Set   `tfsdk:"vendors"`
	DeviceIDs    types.Set   `tfsdk:"device_ids"`
	Drivers      types.Set   `tfsdk:"drivers"`
	IfNames      types.Set   `tfsdk:"if_names"`
	LinkTypes    types.Set   `tfsdk:"link_types"`
	PCIAddresses types.Set   `tfsdk:"pci_addresses"`
	ACPIIndexes  types.Set   `tfsdk:"acpi_indexes"`
	PFNames      types.Set   `tfsdk:"pf_names"`
	RootDevices  types.Set   `tfsdk:"root_devices"`
	PKeys        types.Set   `tfsdk:"p_keys"`
	LinkLayers   types.Set   `tfsdk:"link_layers"`
	NUMANodes    types.Set   `tfsdk:"numa_nodes"`
	MinRateGbps  types.Int64 `tfsdk:"min_rate_gbps"`
	IsRDMA       types.Bool  `tfsdk:"is_rdma"`
}

// lists names the selectors that are sets of strings, with where they stand in the model and in the API.
func (m *rdmaSelectorsModel) lists(s *v1alpha1.RDMASelectors) []struct {
	name  string
	value *types.Set
	api   *[]string
	what  string
} {
	return []struct {
		name  string
		value *types.Set
		api   *[]string
		what  string
	}{
		{"vendors", &m.Vendors, &s.Vendors, "PCI vendor ids, four hexadecimal digits, for example `15b3`"},
		{"device_ids", &m.DeviceIDs, &s.DeviceIDs, "PCI device ids, for example `1021`"},
		{"drivers", &m.Drivers, &s.Drivers, "Kernel drivers, for example `mlx5_core`"},
		{"if_names", &m.IfNames, &s.IfNames, "Names of network interfaces"},
		{"link_types", &m.LinkTypes, &s.LinkTypes, "Types of the network interface, `ether` or `infiniband`"},
		{"pci_addresses", &m.PCIAddresses, &s.PCIAddresses, "Addresses of PCI functions, for example `0000:3b:00.0`"},
		{
			"acpi_indexes",
			&m.ACPIIndexes,
			&s.ACPIIndexes,
			"Numbers that the firmware gives to onboard devices (a function's `acpi_index`), for example `101`",
		},
		{
			"pf_names",
			&m.PFNames,
			&s.PFNames,
			"Network interfaces of physical functions, each with an optional range of virtual functions, for example `ens2f0#0,2-7`",
		},
		{"root_devices", &m.RootDevices, &s.RootDevices, "PCI addresses of physical functions, with ranges as in `pf_names`"},
		{"p_keys", &m.PKeys, &s.PKeys, "InfiniBand partition keys, `0x0001` to `0xffff`"},
		{"link_layers", &m.LinkLayers, &s.LinkLayers, "Link layers of a port, `InfiniBand` or `Ethernet`"},
	}
}

func rdmaSelectorsAttribute() schema.Attribute {
	attributes := map[string]schema.Attribute{
		"numa_nodes": schema.SetAttribute{ElementType: types.Int64Type, Optional: true, MarkdownDescription: "NUMA nodes.",
			Validators: []validator.Set{setvalidator.ValueInt64sAre(int64validator.Between(0, math.MaxInt32))}},
		"min_rate_gbps": schema.Int64Attribute{Optional: true, MarkdownDescription: "Minimum rate of a port, in Gb/s.",
			Validators: []validator.Int64{int64validator.Between(0, math.MaxInt32)}},
		"is_rdma": schema.BoolAttribute{
			Optional: true,
			MarkdownDescription: "Devices that have RDMA. A pool has no others, so `true` selects every device that the other selectors " +
				"select, and `false` is the same as leaving it out.",
		},
	}
	for _, l := range (&rdmaSelectorsModel{}).lists(&v1alpha1.RDMASelectors{}) {
		attributes[l.name] = schema.SetAttribute{ElementType: types.StringType, Optional: true, MarkdownDescription: l.what + "."}
	}
	return schema.SingleNestedAttribute{Optional: true, Attributes: attributes,
		MarkdownDescription: "Which devices the pool has: a device must match every selector given, and matches one by matching any of its " +
			"values. Function `rdma_selector` reads them from a config.json."}
}

func rdmaSelectorsType() map[string]attr.Type {
	attributes := map[string]attr.Type{
		"numa_nodes":    types.SetType{ElemType: types.Int64Type},
		"min_rate_gbps": types.Int64Type,
		"is_rdma":       types.BoolType,
	}
	for _, l := range (&rdmaSelectorsModel{}).lists(&v1alpha1.RDMASelectors{}) {
		attributes[l.name] = types.SetType{ElemType: types.StringType}
	}
	return attributes
}

// rdmaSelectors converts to the API's form; null is nil.
func rdmaSelectors(ctx context.Context, from types.Object, diags *diag.Diagnostics) *v1alpha1.RDMASelectors {
	if from.IsNull() || from.IsUnknown() {
		return nil
	}
	var m rdmaSelectorsModel
	diags.Append(from.As(ctx, &m, objectAsOptions)...)
	s := &v1alpha1.RDMASelectors{MinRateGbps: int32Of(m.MinRateGbps), IsRDMA: m.IsRDMA.ValueBool()}
	for _, l := range m.lists(s) {
		*l.api = stringsOf(ctx, *l.value, diags)
	}
	if !m.NUMANodes.IsNull() {
		s.NUMANodes = int32sOf(ctx, m.NUMANodes, diags)
		slices.Sort(s.NUMANodes)
	}
	return s
}

// rdmaSelectorsValue converts from the API's form, keeping what the configuration wrote as an empty set.
func rdmaSelectorsValue(ctx context.Context, configured types.Object, s *v1alpha1.RDMASelectors, diags *diag.Diagnostics) types.Object {
	if s == nil {
		return types.ObjectNull(rdmaSelectorsType())
	}
	var m rdmaSelectorsModel
	if configured.IsNull() || configured.IsUnknown() {
		m = rdmaSelectorsModel{}
	} else {
		diags.Append(configured.As(ctx, &m, objectAsOptions)...)
	}
	for _, l := range m.lists(s) {
		*l.value = setOrNull(*l.value, *l.api)
	}
	if len(s.NUMANodes) > 0 || m.NUMANodes.IsNull() {
		m.NUMANodes = types.SetNull(types.Int64Type)
		if len(s.NUMANodes) > 0 {
			list, more := types.SetValueFrom(ctx, types.Int64Type, sortedSet(s.NUMANodes))
			diags.Append(more...)
			m.NUMANodes = list
		}
	}
	if s.MinRateGbps != 0 || m.MinRateGbps.IsNull() {
		m.MinRateGbps = types.Int64Null()
		if s.MinRateGbps != 0 {
			m.MinRateGbps = types.Int64Value(int64(s.MinRateGbps))
		}
	}
	if s.IsRDMA || m.IsRDMA.IsNull() || m.IsRDMA.ValueBool() {
		m.IsRDMA = types.BoolNull()
		if s.IsRDMA {
			m.IsRDMA = types.BoolValue(true)
		}
	}
	value, more := types.ObjectValueFrom(ctx, rdmaSelectorsType(), m)
	diags.Append(more...)
	return value
}
