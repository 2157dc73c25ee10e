package provider

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework-validators/mapvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/setvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"

	"gpufabric.io/provider/internal/inventory"
	"gpufabric.io/provider/internal/object"
)

type migLayoutModel struct {
	objectMeta
	NodeSelector types.Object `tfsdk:"node_selector"`
	Layout       types.String `tfsdk:"layout"`
	Layouts      types.Map    `tfsdk:"layouts"`

	readiness
	Nodes types.List `tfsdk:"nodes"`
}

type layoutModel struct {
	GPUs types.List `tfsdk:"gpus"`
}

type layoutGPUsModel struct {
	DeviceFilter types.Set `tfsdk:"device_filter"`
	Devices      types.Set `tfsdk:"devices"`
	MIGDevices   types.Map `tfsdk:"mig_devices"`
}

var (
	layoutGPUsType = types.ObjectType{
		AttrTypes: map[string]attr.Type{
			"device_filter": types.SetType{ElemType: types.StringType},
			"devices":       types.SetType{ElemType: types.Int64Type},
			"mig_devices":   types.MapType{ElemType: types.Int64Type},
		},
	}
	layoutType     = types.ObjectType{AttrTypes: map[string]attr.Type{"gpus": types.ListType{ElemType: layoutGPUsType}}}
	layoutNodeType = types.ObjectType{
		AttrTypes: map[string]attr.Type{"name": types.StringType, "state": types.StringType, "message": types.StringType},
	}
	migLayoutKind = object.Kind{
		Group:   v1alpha1.GroupName,
		Version: v1alpha1.SchemeGroupVersion().Version,
		Name:    "MIGLayout",
		Plural:  "miglayouts",
	}
	migPartedFormat = "v1"
)

func newMIGLayoutResource() resource.Resource { return newObjectResource(migLayoutDefinition()) }

func migLayoutDefinition() definition[*migLayoutModel] {
	return definition[*migLayoutModel]{
		name:      "mig_layout",
		kind:      migLayoutKind,
		schema:    migLayoutSchema,
		empty:     func() *migLayoutModel { return &migLayoutModel{} },
		validate:  validateMIGLayout,
		attribute: migLayoutAttribute,
		advise:    adviseMIGLayout,
		await:     awaitCondition[*migLayoutModel](migLayoutKind),
	}
}

func migLayoutSchema(ctx context.Context) schema.Schema {
	attributes := metaAttributes(ctx, migLayoutKind)
	attributes["node_selector"] = nodeSelectorAttribute("get the layout")
	attributes["layout"] = schema.StringAttribute{
		Required:            true,
		Validators:          []validator.String{stringvalidator.LengthAtLeast(1)},
		MarkdownDescription: "Name of the entry of `layouts` that the nodes get.",
	}
	attributes["layouts"] = schema.MapNestedAttribute{Required: true, Validators: []validator.Map{mapvalidator.SizeAtLeast(1)},
		MarkdownDescription: "Layouts by name. Function `mig_parted` reads them from a configuration file of mig-parted. A MIGLayout with " +
			"`auto` or `gpus` has none; the resource neither makes nor imports such.",
		NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
			"gpus": schema.ListNestedAttribute{
				Required:            true,
				MarkdownDescription: "How the GPUs of a node are cut. At most one entry may apply to each GPU; a GPU without one stays as it is.",
				NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
					"device_filter": schema.SetAttribute{
						ElementType:         types.StringType,
						Optional:            true,
						Validators:          []validator.Set{setvalidator.SizeAtLeast(1)},
						MarkdownDescription: "Only GPUs with one of these PCI device and vendor ids, for example `0x20B010DE`.",
					},
					"devices": schema.SetAttribute{
						ElementType:         types.Int64Type,
						Optional:            true,
						MarkdownDescription: "Indices of the GPUs; without them, all.",
					},
					"mig_devices": schema.MapAttribute{ElementType: types.Int64Type, Optional: true,
						MarkdownDescription: "How many instances of which profile, for example `{\"1g.5gb\" = 2, \"3g.20gb\" = 1}`. Without it MIG mode " +
							"is off; an empty map leaves it on, with no instance."},
				}},
			},
		}}}
	addReadiness(attributes, "the controller has processed the layout", "every selected node has the layout")
	attributes["nodes"] = schema.ListNestedAttribute{
		Computed:            true,
		MarkdownDescription: "State of the layout on each node.",
		NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
			"name":  schema.StringAttribute{Computed: true, MarkdownDescription: "Name of the node."},
			"state": schema.StringAttribute{Computed: true, MarkdownDescription: "`Applied`, `Waiting` or `Failed`."},
			"message": schema.StringAttribute{
				Computed:            true,
				MarkdownDescription: "What runs on a GPU that has to change, or why the node cannot have the layout.",
			},
		}},
	}
	return schema.Schema{
		Attributes: attributes,
		MarkdownDescription: "A static MIG layout for the GPUs of some nodes. It is the resource `MIGLayout` of `gpufabric.io/v1alpha1`, " +
			"applied node by node and only to GPUs on which nothing runs. " +
			"A plan warns which nodes a change repartitions and which claims hold their GPUs.",
	}
}

func (m *migLayoutModel) api(ctx context.Context) (*v1alpha1.MIGLayoutSpec, diag.Diagnostics) {
	var diags diag.Diagnostics
	spec := &v1alpha1.MIGLayoutSpec{NodeSelector: labelSelector(ctx, m.NodeSelector, &diags), Layout: m.Layout.ValueString(),
		Config: v1alpha1.MIGPartedConfig{Version: migPartedFormat, Layouts: map[string][]v1alpha1.MIGPartedEntry{}}}
	layouts := map[string]layoutModel{}
	diags.Append(m.Layouts.ElementsAs(ctx, &layouts, false)...)
	for name, layout := range layouts {
		var entries []layoutGPUsModel
		diags.Append(layout.GPUs.ElementsAs(ctx, &entries, false)...)
		spec.Config.Layouts[name] = []v1alpha1.MIGPartedEntry{}
		for _, e := range entries {
			entry := v1alpha1.MIGPartedEntry{
				DeviceFilter: stringsOf(ctx, e.DeviceFilter, &diags),
				Devices:      v1alpha1.AllOrIndices{All: e.Devices.IsNull()},
				MIGEnabled:   !e.MIGDevices.IsNull(),
			}
			if !e.Devices.IsNull() {
				entry.Devices.Indices = int32sOf(ctx, e.Devices, &diags)
				slices.Sort(entry.Devices.Indices)
			}
			if !e.MIGDevices.IsNull() {
				counts := map[string]int64{}
				diags.Append(e.MIGDevices.ElementsAs(ctx, &counts, false)...)
				entry.MIGDevices = map[string]int32{}
				for profile, count := range counts {
					entry.MIGDevices[profile] = clamped(count)
				}
			}
			spec.Config.Layouts[name] = append(spec.Config.Layouts[name], entry)
		}
	}
	return spec, diags
}

func validateMIGLayout(ctx context.Context, m *migLayoutModel) (field.ErrorList, diag.Diagnostics) {
	spec, diags := m.api(ctx)
	return spec.Validate(field.NewPath("spec")), diags
}

// migLayoutAttribute finds config.mig-configs[x][0].devices in the schema, where it is layouts["x"].gpus[0].devices.
func migLayoutAttribute(fieldPath string) path.Path {
	steps := fieldSteps(fieldPath)
	if len(steps) < 2 || steps[0].text != "config" {
		return attributePath(fieldPath)
	}
	at := path.Root("layouts")
	for i, s := range steps[2:] {
		if i == 1 {
			at = at.AtName("gpus")
		}
		if i > 1 && s.place() {
			break // devices and device_filter are sets
		}
		if i == 0 || (i > 0 && steps[1+i].text == "mig-devices") {
			at = at.AtMapKey(s.text)
		} else {
			at = s.append(at)
		}
	}
	return at
}

func (m *migLayoutModel) spec(ctx context.Context) (map[string]any, diag.Diagnostics) {
	spec, diags := m.api(ctx)
	return toMap(spec, &diags), diags
}

func (m *migLayoutModel) observe(ctx context.Context, obj *unstructured.Unstructured) diag.Diagnostics {
	var diags diag.Diagnostics
	layout := fromObject[v1alpha1.MIGLayout](obj, &diags)
	if layout == nil {
		return diags
	}
	m.NodeSelector = nodeSelectorValue(layout.Spec.NodeSelector, &diags)
	m.Layout = textOrNull(layout.Spec.Layout)
	m.Layouts = layoutsValue(ctx, layout.Spec.Config, &diags)
	m.observeConditions(layout.Generation, layout.Status.ObservedGeneration, layout.Status.Conditions)
	nodes := make([]attr.Value, 0, len(layout.Status.Nodes))
	for _, n := range layout.Status.Nodes {
		nodes = append(
			nodes,
			types.ObjectValueMust(
				layoutNodeType.AttrTypes,
				map[string]attr.Value{
					"name":    types.StringValue(n.Name),
					"state":   types.StringValue(string(n.State)),
					"message": types.StringValue(n.Message),
				},
			),
		)
	}
	list, more := types.ListValue(layoutNodeType, nodes)
	m.Nodes = list
	diags.Append(more...)
	return diags
}

// layoutsValue writes mig-parted's layouts in the schema's form.
func layoutsValue(ctx context.Context, config v1alpha1.MIGPartedConfig, diags *diag.Diagnostics) types.Map {
	if config.Layouts == nil { // the MIGLayout is of another form
		return types.MapNull(layoutType)
	}
	layouts := map[string]layoutModel{}
	for name, entries := range config.Layouts {
		gpus := make([]layoutGPUsModel, 0, len(entries))
		for _, e := range entries {
			g := layoutGPUsModel{
				DeviceFilter: setOrNull(types.SetNull(types.StringType), e.DeviceFilter),
				Devices:      types.SetNull(types.Int64Type),
				MIGDevices:   types.MapNull(types.Int64Type),
			}
			if !e.Devices.All {
				set, more := types.SetValueFrom(ctx, types.Int64Type, sortedSet(e.Devices.Indices))
				g.Devices = set
				diags.Append(more...)
			}
			if e.MIGEnabled {
				devices := e.MIGDevices
				if devices == nil {
					devices = map[string]int32{}
				}
				value, more := types.MapValueFrom(ctx, types.Int64Type, devices)
				g.MIGDevices = value
				diags.Append(more...)
			}
			gpus = append(gpus, g)
		}
		list, more := types.ListValueFrom(ctx, layoutGPUsType, gpus)
		diags.Append(more...)
		layouts[name] = layoutModel{list}
	}
	value, more := types.MapValueFrom(ctx, layoutType, layouts)
	diags.Append(more...)
	return value
}

// waiting names the nodes without the layout and their reasons.
func (m *migLayoutModel) waiting(ctx context.Context) string {
	if !m.Accepted.ValueBool() {
		return "the gpufabric controller has not processed the layout yet; check that the chart's gpus.enabled is true"
	}
	var nodes []struct {
		Name    string `tfsdk:"name"`
		State   string `tfsdk:"state"`
		Message string `tfsdk:"message"`
	}
	m.Nodes.ElementsAs(ctx, &nodes, false)
	words := []string{}
	if text := m.Message.ValueString(); text != "" {
		words = append(words, text)
	}
	for _, n := range nodes {
		if n.State != string(v1alpha1.MIGLayoutApplied) {
			words = append(words, fmt.Sprintf("%s is %s: %s", n.Name, strings.ToLower(n.State), n.Message))
		}
	}
	return strings.Join(words, "; ")
}

// adviseMIGLayout shows the effects: the nodes that are repartitioned, and the claims that prevent it.
func adviseMIGLayout(ctx context.Context, now *inventory.Snapshot, state, plan *migLayoutModel) diag.Diagnostics {
	var diags diag.Diagnostics
	if state != nil && state.Layout.Equal(plan.Layout) && state.Layouts.Equal(plan.Layouts) && state.NodeSelector.Equal(plan.NodeSelector) {
		return nil
	}
	selector := labelSelector(ctx, plan.NodeSelector, &diags)
	held := map[string][]string{}
	for _, d := range now.Devices {
		if d.Driver != inventory.GPUDriver || !now.Selects(selector, d.Node) {
			continue
		}
		for _, c := range d.Claims {
			held[d.Node] = append(held[d.Node], c.Namespace+"/"+c.Name)
		}
		if _, known := held[d.Node]; !known {
			held[d.Node] = nil
		}
	}
	if len(held) == 0 {
		return diags
	}
	var free, busy []string
	for node, claims := range held {
		if slices.Sort(claims); len(claims) == 0 {
			free = append(free, node)
		} else {
			busy = append(busy, fmt.Sprintf("%s (held by claims %s)", node, strings.Join(slices.Compact(claims), ", ")))
		}
	}
	slices.Sort(free)
	slices.Sort(busy)
	text := fmt.Sprintf("The GPUs of %d nodes are repartitioned to layout %q.", len(held), plan.Layout.ValueString())
	if len(free) > 0 {
		text += fmt.Sprintf("\nAt once, since nothing runs there: %s.", strings.Join(free, ", "))
	}
	if len(busy) > 0 {
		text += fmt.Sprintf("\nOnly when their pods have ended: %s.", strings.Join(busy, "; "))
	}
	diags.AddWarning("Nodes will be repartitioned", text)
	return diags
}
