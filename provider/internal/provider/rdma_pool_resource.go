package provider

import (
	"context"
	"fmt"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/booldefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/int64default"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringdefault"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"

	"gpufabric.io/provider/internal/object"
)

type rdmaPoolModel struct {
	objectMeta
	NodeSelector    types.Object `tfsdk:"node_selector"`
	ResourceName    types.String `tfsdk:"resource_name"`
	ResourcePrefix  types.String `tfsdk:"resource_prefix"`
	RDMAHCAMax      types.Int64  `tfsdk:"rdma_hca_max"`
	Devices         types.Set    `tfsdk:"devices"`
	Selectors       types.Object `tfsdk:"selectors"`
	Mode            types.String `tfsdk:"mode"`
	DeviceNodes     types.String `tfsdk:"device_nodes"`
	ExcludeTopology types.Bool   `tfsdk:"exclude_topology"`

	readiness
	Resource       types.String `tfsdk:"resource"`
	HealthyDevices types.Int64  `tfsdk:"healthy_devices"`
	Nodes          types.List   `tfsdk:"nodes"`
}

var poolNodeType = map[string]attr.Type{
	"name":            types.StringType,
	"devices":         types.Int64Type,
	"healthy_devices": types.Int64Type,
	"units":           types.Int64Type,
	"message":         types.StringType,
}

var rdmaPoolKind = object.Kind{
	Group:   v1alpha1.GroupName,
	Version: v1alpha1.SchemeGroupVersion().Version,
	Name:    "RDMAPool",
	Plural:  "rdmapools",
}

func newRDMAPoolResource() resource.Resource { return newObjectResource(rdmaPoolDefinition()) }

func rdmaPoolDefinition() definition[*rdmaPoolModel] {
	return definition[*rdmaPoolModel]{
		name:     "rdma_pool",
		kind:     rdmaPoolKind,
		schema:   rdmaPoolSchema,
		empty:    func() *rdmaPoolModel { return &rdmaPoolModel{} },
		validate: validateRDMAPool,
		await:    awaitCondition[*rdmaPoolModel](rdmaPoolKind),
	}
}

func rdmaPoolSchema(ctx context.Context) schema.Schema {
	attributes := metaAttributes(ctx, rdmaPoolKind)
	attributes["node_selector"] = nodeSelectorAttribute("have the pool")
	attributes["resource_name"] = schema.StringAttribute{
		Required:            true,
		MarkdownDescription: "Name of the resource without its prefix, for example `hca_shared_devices_a`. Letters, digits and `_`.",
	}
	attributes["resource_prefix"] = schema.StringAttribute{
		Optional:            true,
		Computed:            true,
		Default:             stringdefault.StaticString(v1alpha1.DefaultRDMAPrefix),
		Validators:          notEmpty(),
		MarkdownDescription: "Prefix of the resource, before a slash and the name. Default `rdma`.",
	}
	attributes["rdma_hca_max"] = schema.Int64Attribute{
		Optional: true,
		Computed: true,
		Default:  int64default.StaticInt64(0),
		MarkdownDescription: fmt.Sprintf(
			"How many units of the resource a node has, 0 to %d. A unit is a share of one HCA. Must be 0 with mode `Exclusive`.",
			v1alpha1.MaxRDMAUnits,
		),
	}
	attributes["devices"] = schema.SetAttribute{
		ElementType:         types.StringType,
		Optional:            true,
		MarkdownDescription: "Names of network interfaces. An older form of `selectors.if_names`; one of the two must be given, and not both.",
	}
	attributes["selectors"] = rdmaSelectorsAttribute()
	attributes["mode"] = schema.StringAttribute{
		Optional:            true,
		Computed:            true,
		Default:             stringdefault.StaticString(string(v1alpha1.RDMAShared)),
		Validators:          notEmpty(),
		MarkdownDescription: "`Shared`, the default, lets pods share an HCA; `Exclusive` gives whole HCAs.",
	}
	attributes["device_nodes"] = schema.StringAttribute{
		Optional:   true,
		Computed:   true,
		Default:    stringdefault.StaticString(string(v1alpha1.RDMANodesAllocated)),
		Validators: notEmpty(),
		MarkdownDescription: "`Allocated`, the default, gives a container the device nodes of its HCAs only; `All` those of every HCA of the " +
			"pool, which is what a unit is in a config.json of the RDMA device plugin.",
	}
	attributes["exclude_topology"] = schema.BoolAttribute{
		Optional:            true,
		Computed:            true,
		Default:             booldefault.StaticBool(false),
		MarkdownDescription: "Do not report the NUMA node to the kubelet. Default `false`.",
	}
	addReadiness(attributes, "the controller has processed the pool", "every selected node has a healthy device in the pool")
	attributes["resource"] = schema.StringAttribute{Computed: true, MarkdownDescription: "What pods ask for: `resource_prefix/resource_name`."}
	attributes["healthy_devices"] = schema.Int64Attribute{
		Computed:            true,
		MarkdownDescription: "How many devices of the pool can carry traffic, on all nodes.",
	}
	attributes["nodes"] = schema.ListNestedAttribute{
		Computed:            true,
		MarkdownDescription: "What each node has of the pool.",
		NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
			"name":            schema.StringAttribute{Computed: true, MarkdownDescription: "Name of the node."},
			"devices":         schema.Int64Attribute{Computed: true, MarkdownDescription: "How many devices match."},
			"healthy_devices": schema.Int64Attribute{Computed: true, MarkdownDescription: "How many of them can carry traffic."},
			"units":           schema.Int64Attribute{Computed: true, MarkdownDescription: "How many units the kubelet may allocate now."},
			"message": schema.StringAttribute{
				Computed:            true,
				MarkdownDescription: "Why there are no devices, or fewer healthy ones than devices.",
			},
		}},
	}
	return schema.Schema{
		Attributes: attributes,
		MarkdownDescription: "A pool of RDMA NICs offered under one resource name. It is the resource `RDMAPool` of " +
			"`gpufabric.io/v1alpha1` and has the fields of an entry of the RDMA device plugin's config.json, for each node selector.",
	}
}

func (m *rdmaPoolModel) api(ctx context.Context) (*v1alpha1.RDMAPoolSpec, diag.Diagnostics) {
	var diags diag.Diagnostics
	spec := &v1alpha1.RDMAPoolSpec{NodeSelector: labelSelector(ctx, m.NodeSelector, &diags), RDMAPoolConfig: v1alpha1.RDMAPoolConfig{
		ResourceName: m.ResourceName.ValueString(), ResourcePrefix: m.ResourcePrefix.ValueString(), RDMAHCAMax: int32Of(m.RDMAHCAMax),
		Devices: stringsOf(ctx, m.Devices, &diags), Selectors: rdmaSelectors(ctx, m.Selectors, &diags),
		Mode: v1alpha1.RDMAPoolMode(
			m.Mode.ValueString(),
		), DeviceNodes: v1alpha1.RDMADeviceNodes(m.DeviceNodes.ValueString()), ExcludeTopology: m.ExcludeTopology.ValueBool(),
	}}
	return spec, diags
}

// validateRDMAPool holds the configuration against the validation that the webhook and the node plugin use.
func validateRDMAPool(ctx context.Context, m *rdmaPoolModel) (field.ErrorList, diag.Diagnostics) {
	spec, diags := m.api(ctx)
	return spec.Validate(field.NewPath("spec")), diags
}

func (m *rdmaPoolModel) spec(ctx context.Context) (map[string]any, diag.Diagnostics) {
	spec, diags := m.api(ctx)
	return toMap(spec, &diags), diags
}

func (m *rdmaPoolModel) observe(ctx context.Context, obj *unstructured.Unstructured) diag.Diagnostics {
	var diags diag.Diagnostics
	pool := fromObject[v1alpha1.RDMAPool](obj, &diags)
	if pool == nil {
		return diags
	}
	s := pool.Spec
	m.NodeSelector = nodeSelectorValue(s.NodeSelector, &diags)
	m.ResourceName = types.StringValue(s.ResourceName)
	m.ResourcePrefix = types.StringValue(or(s.ResourcePrefix, v1alpha1.DefaultRDMAPrefix))
	m.RDMAHCAMax = types.Int64Value(int64(s.RDMAHCAMax))
	m.Devices = setOrNull(m.Devices, s.Devices)
	m.Selectors = rdmaSelectorsValue(ctx, m.Selectors, s.Selectors, &diags)
	m.Mode = types.StringValue(or(string(s.Mode), string(v1alpha1.RDMAShared)))
	m.DeviceNodes = types.StringValue(or(string(s.DeviceNodes), string(v1alpha1.RDMANodesAllocated)))
	m.ExcludeTopology = types.BoolValue(s.ExcludeTopology)
	m.observeConditions(pool.Generation, pool.Status.ObservedGeneration, pool.Status.Conditions)
	m.Resource = types.StringValue(s.Resource())
	m.HealthyDevices = types.Int64Value(int64(pool.Status.HealthyDevices))
	nodes := make([]attr.Value, 0, len(pool.Status.Nodes))
	for _, n := range pool.Status.Nodes {
		nodes = append(
			nodes,
			types.ObjectValueMust(
				poolNodeType,
				map[string]attr.Value{"name": types.StringValue(n.Name), "devices": types.Int64Value(int64(n.Devices)),
					"healthy_devices": types.Int64Value(
						int64(n.HealthyDevices),
					), "units": types.Int64Value(int64(n.Units)), "message": types.StringValue(n.Message)},
			),
		)
	}
	list, more := types.ListValue(types.ObjectType{AttrTypes: poolNodeType}, nodes)
	m.Nodes = list
	diags.Append(more...)
	return diags
}

// predict works out the resource's name.
func (m *rdmaPoolModel) predict() {
	m.objectMeta.predict()
	if !m.ResourceName.IsUnknown() && !m.ResourcePrefix.IsUnknown() {
		config := v1alpha1.RDMAPoolConfig{ResourceName: m.ResourceName.ValueString(), ResourcePrefix: m.ResourcePrefix.ValueString()}
		m.Resource = types.StringValue(config.Resource())
	}
}

// waiting names the nodes that lack a healthy device.
func (m *rdmaPoolModel) waiting(ctx context.Context) string {
	if !m.Accepted.ValueBool() {
		return "the gpufabric controller has not processed the pool yet; check that the chart's rdma.enabled is true"
	}
	var nodes []struct {
		Name    types.String `tfsdk:"name"`
		Devices types.Int64  `tfsdk:"devices"`
		Healthy types.Int64  `tfsdk:"healthy_devices"`
		Units   types.Int64  `tfsdk:"units"`
		Message types.String `tfsdk:"message"`
	}
	m.Nodes.ElementsAs(ctx, &nodes, false)
	words := []string{m.Message.ValueString()}
	for _, n := range nodes {
		if n.Healthy.ValueInt64() == 0 {
			words = append(
				words,
				fmt.Sprintf(
					"%s has %d of %d devices healthy (%s)",
					n.Name.ValueString(),
					n.Healthy.ValueInt64(),
					n.Devices.ValueInt64(),
					n.Message.ValueString(),
				),
			)
		}
	}
	return strings.Join(words, "; ")
}
