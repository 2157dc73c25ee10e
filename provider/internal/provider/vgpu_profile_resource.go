package provider

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"

	"gpufabric.io/provider/internal/inventory"
	"gpufabric.io/provider/internal/object"
)

type vgpuProfileModel struct {
	objectMeta
	Mode         types.String `tfsdk:"mode"`
	Memory       types.String `tfsdk:"memory"`
	Cores        types.Int64  `tfsdk:"cores"`
	Split        types.Int64  `tfsdk:"split"`
	NodeSelector types.Object `tfsdk:"node_selector"`
	ProductNames types.Set    `tfsdk:"product_names"`
	Policy       types.String `tfsdk:"policy"`
	Namespaces   types.Set    `tfsdk:"namespaces"`

	readiness
	DeviceClass          types.String `tfsdk:"device_class"`
	ExtendedResourceName types.String `tfsdk:"extended_resource_name"`
	Fits                 types.Int64  `tfsdk:"fits"`
	Nodes                types.List   `tfsdk:"nodes"`
}

var profileNodeType = types.ObjectType{
	AttrTypes: map[string]attr.Type{"name": types.StringType, "gpus": types.Int64Type, "fits": types.Int64Type},
}

var vgpuProfileKind = object.Kind{
	Group:   v1alpha1.GroupName,
	Version: v1alpha1.SchemeGroupVersion().Version,
	Name:    "VGPUProfile",
	Plural:  "vgpuprofiles",
}

func newVGPUProfileResource() resource.Resource { return newObjectResource(vgpuProfileDefinition()) }

func vgpuProfileDefinition() definition[*vgpuProfileModel] {
	return definition[*vgpuProfileModel]{
		name:     "vgpu_profile",
		kind:     vgpuProfileKind,
		schema:   vgpuProfileSchema,
		empty:    func() *vgpuProfileModel { return &vgpuProfileModel{} },
		validate: validateVGPUProfile,
		advise:   adviseVGPUProfile,
		await:    awaitCondition[*vgpuProfileModel](vgpuProfileKind),
	}
}

func vgpuProfileSchema(ctx context.Context) schema.Schema {
	attributes := metaAttributes(ctx, vgpuProfileKind)
	attributes["mode"] = schema.StringAttribute{
		Required: true,
		MarkdownDescription: "`Software` shares a GPU by memory and cores, `MIG` takes the smallest MIG device that is large enough, " +
			"`Exclusive` a whole GPU.",
	}
	attributes["memory"] = schema.StringAttribute{
		Optional:   true,
		Validators: []validator.String{quantity{}},
		MarkdownDescription: "Memory of a slice, for example `10Gi`. Required with `Software`; with the other modes the least that a device " +
			"must have.",
	}
	attributes["cores"] = schema.Int64Attribute{
		Optional:            true,
		MarkdownDescription: "Cores of a slice in percent of a GPU, 1 to 100. Not with `Exclusive`.",
	}
	attributes["split"] = schema.Int64Attribute{
		Optional:            true,
		MarkdownDescription: "How many slices a GPU is cut into at most, 1 to 100. Only with `Software`.",
	}
	attributes["node_selector"] = nodeSelectorAttribute("the slices are on")
	attributes["product_names"] = schema.SetAttribute{
		ElementType:         types.StringType,
		Optional:            true,
		MarkdownDescription: "Only GPUs with one of these product names, for example `NVIDIA L40S`.",
	}
	attributes["policy"] = schema.StringAttribute{
		Optional:   true,
		Validators: notEmpty(),
		MarkdownDescription: "`Binpack` fills one GPU before the next, `Spread` puts slices where the fewest are, over nodes and over a " +
			"node's GPUs, for pods of gpufabric-scheduler. The cluster's own scheduler takes the first GPU that fits.",
	}
	attributes["namespaces"] = schema.SetAttribute{
		ElementType:         types.StringType,
		Optional:            true,
		MarkdownDescription: "Namespaces that get a ResourceClaimTemplate of the profile's name.",
	}
	addReadiness(
		attributes,
		"the controller has processed the profile",
		"its DeviceClass and templates exist and at least one slice fits somewhere",
	)
	attributes["device_class"] = schema.StringAttribute{Computed: true,
		MarkdownDescription: "Name of the DeviceClass that the controller creates: the profile's."}
	attributes["extended_resource_name"] = schema.StringAttribute{
		Computed:            true,
		MarkdownDescription: "What a pod asks for in a single line of its resource limits.",
	}
	attributes["fits"] = schema.Int64Attribute{Computed: true, MarkdownDescription: "How many slices fit on empty GPUs of all selected nodes."}
	attributes["nodes"] = schema.ListNestedAttribute{Computed: true, MarkdownDescription: "How many fit on each node.",
		NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
			"name": schema.StringAttribute{Computed: true, MarkdownDescription: "Name of the node."},
			"gpus": schema.Int64Attribute{Computed: true, MarkdownDescription: "Its GPUs that the profile selects."},
			"fits": schema.Int64Attribute{Computed: true, MarkdownDescription: "How many slices fit on them when they are empty."},
		}}}
	return schema.Schema{
		Attributes: attributes,
		MarkdownDescription: "A kind of GPU slice that pods ask for by name. It is the resource `VGPUProfile` of `gpufabric.io/v1alpha1`. " +
			"Where the cluster answers at plan time, a slice larger than every GPU it could be on is refused.",
	}
}

func (m *vgpuProfileModel) api(ctx context.Context) (*v1alpha1.VGPUProfileSpec, diag.Diagnostics) {
	var diags diag.Diagnostics
	spec := &v1alpha1.VGPUProfileSpec{
		Mode:         v1alpha1.VGPUMode(m.Mode.ValueString()),
		Cores:        int32Of(m.Cores),
		Split:        int32Of(m.Split),
		NodeSelector: labelSelector(ctx, m.NodeSelector, &diags),
		ProductNames: stringsOf(
			ctx,
			m.ProductNames,
			&diags,
		),
		Policy:     v1alpha1.VGPUPolicy(m.Policy.ValueString()),
		Namespaces: stringsOf(ctx, m.Namespaces, &diags),
	}
	if !m.Memory.IsNull() {
		memory, err := apiresource.ParseQuantity(m.Memory.ValueString())
		if err != nil {
			diags.AddAttributeError(path.Root("memory"), "Invalid quantity", notAQuantity(path.Root("memory"), m.Memory.ValueString()))
		}
		spec.Memory = &memory
	}
	return spec, diags
}

func validateVGPUProfile(ctx context.Context, m *vgpuProfileModel) (field.ErrorList, diag.Diagnostics) {
	spec, diags := m.api(ctx)
	errs := spec.Validate(field.NewPath("spec"))
	for _, problem := range validation.IsQualifiedName(v1alpha1.GroupName + "/" + m.Name.ValueString()) {
		errs = append(errs, field.Invalid(field.NewPath("name"), m.Name.ValueString(), "the extended resource is named after it: "+problem))
	}
	// The API treats 0 as omitted; a configuration that contains it means something else.
	for _, n := range []struct {
		name  string
		value types.Int64
	}{{"cores", m.Cores}, {"split", m.Split}} {
		if !n.value.IsNull() && n.value.ValueInt64() == 0 {
			errs = append(errs, field.Invalid(field.NewPath("spec", n.name), 0, "must be between 1 and 100, or left out"))
		}
	}
	return errs, diags
}

func (m *vgpuProfileModel) spec(ctx context.Context) (map[string]any, diag.Diagnostics) {
	spec, diags := m.api(ctx)
	return toMap(spec, &diags), diags
}

func (m *vgpuProfileModel) observe(_ context.Context, obj *unstructured.Unstructured) diag.Diagnostics {
	var diags diag.Diagnostics
	profile := fromObject[v1alpha1.VGPUProfile](obj, &diags)
	if profile == nil {
		return diags
	}
	s := profile.Spec
	m.Mode = types.StringValue(string(s.Mode))
	m.Memory = quantityValue(m.Memory, s.Memory)
	m.Cores, m.Split = int64OrNull(s.Cores), int64OrNull(s.Split)
	m.NodeSelector = nodeSelectorValue(s.NodeSelector, &diags)
	m.ProductNames, m.Namespaces = setOrNull(m.ProductNames, s.ProductNames), setOrNull(m.Namespaces, s.Namespaces)
	m.Policy = types.StringNull()
	if s.Policy != "" {
		m.Policy = types.StringValue(string(s.Policy))
	}
	m.observeConditions(profile.Generation, profile.Status.ObservedGeneration, profile.Status.Conditions)
	m.predict()
	m.Fits = types.Int64Value(int64(profile.Status.Fits))
	fits := make([]attr.Value, 0, len(profile.Status.Nodes))
	for _, n := range profile.Status.Nodes {
		fits = append(fits, types.ObjectValueMust(profileNodeType.AttrTypes, map[string]attr.Value{"name": types.StringValue(n.Name),
			"gpus": types.Int64Value(int64(n.GPUs)), "fits": types.Int64Value(int64(n.Fits))}))
	}
	nodes, more := types.ListValue(profileNodeType, fits)
	m.Nodes = nodes
	diags.Append(more...)
	return diags
}

// predict works out the names that the controller gives to the profile's DeviceClass and extended resource.
func (m *vgpuProfileModel) predict() {
	m.objectMeta.predict()
	if !m.Name.IsUnknown() {
		m.DeviceClass = types.StringValue(m.Name.ValueString())
		m.ExtendedResourceName = types.StringValue(v1alpha1.GroupName + "/" + m.Name.ValueString())
	}
}

func (m *vgpuProfileModel) waiting(context.Context) string {
	if !m.Accepted.ValueBool() {
		return "the gpufabric controller has not processed the profile yet; check that the chart's gpus.enabled is true"
	}
	return m.Message.ValueString()
}

// adviseVGPUProfile refuses a slice that is larger than every GPU it could be on.
func adviseVGPUProfile(ctx context.Context, now *inventory.Snapshot, _, plan *vgpuProfileModel) diag.Diagnostics {
	spec, diags := plan.api(ctx)
	if spec.Memory == nil {
		return diags
	}
	largest, found := inventory.Device{}, false
	for _, d := range now.Devices {
		if d.Driver != inventory.GPUDriver || d.Text("type") != "gpu" || !now.Selects(spec.NodeSelector, d.Node) {
			continue
		}
		if len(spec.ProductNames) > 0 && !slices.Contains(spec.ProductNames, d.Text("productName")) {
			continue
		}
		if memory, most := d.Capacity["memory"], largest.Capacity["memory"]; !found || memory.Value.Cmp(most.Value) > 0 {
			largest, found = d, true
		}
	}
	if memory := largest.Capacity["memory"]; found && memory.Value.Cmp(*spec.Memory) < 0 {
		diags.AddAttributeError(
			path.Root("memory"),
			"Slice larger than every GPU",
			fmt.Sprintf("memory = %q is more than any GPU of the selected nodes has: the largest is %s (%s) of node %s with %s.",
				plan.Memory.ValueString(), largest.Name, strings.TrimSpace(largest.Text("productName")), largest.Node, memory.Value.String()),
		)
	}
	return diags
}
