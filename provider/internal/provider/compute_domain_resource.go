package provider

import (
	"context"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework-validators/int64validator"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/int64default"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/int64planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringdefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"gpufabric.io/drivers/api/resource/cliques"
	"gpufabric.io/drivers/api/resource/v1beta1"

	"gpufabric.io/provider/internal/cluster"
	"gpufabric.io/provider/internal/domain"
	"gpufabric.io/provider/internal/inventory"
	"gpufabric.io/provider/internal/object"
)

var (
	_ resource.ResourceWithConfigure   = (*objectResource[*computeDomainModel])(nil)
	_ resource.ResourceWithImportState = (*objectResource[*computeDomainModel])(nil)
	_ resource.ResourceWithModifyPlan  = (*objectResource[*computeDomainModel])(nil)
	_ resource.ResourceWithIdentity    = (*objectResource[*computeDomainModel])(nil)
	_ resource.ResourceWithMoveState   = (*objectResource[*computeDomainModel])(nil)
)

type computeDomainModel struct {
	namespacedMeta
	NumNodes types.Int64  `tfsdk:"num_nodes"`
	Channel  types.Object `tfsdk:"channel"`

	readiness
	Nodes types.List `tfsdk:"nodes"`

	missing string // missing parts of the domain, as last observed
}

type channelModel struct {
	Template       types.String `tfsdk:"resource_claim_template"`
	AllocationMode types.String `tfsdk:"allocation_mode"`
}

var (
	channelType = map[string]attr.Type{"resource_claim_template": types.StringType, "allocation_mode": types.StringType}
	nodeType    = map[string]attr.Type{
		"name":       types.StringType,
		"ip_address": types.StringType,
		"clique_id":  types.StringType,
		"index":      types.Int64Type,
		"status":     types.StringType,
	}
)

var computeDomainKind = domain.Kind

func newComputeDomainResource() resource.Resource {
	return newObjectResource(computeDomainDefinition())
}

func computeDomainDefinition() definition[*computeDomainModel] {
	return definition[*computeDomainModel]{
		name:      "compute_domain",
		kind:      computeDomainKind,
		schema:    computeDomainSchema,
		empty:     func() *computeDomainModel { return &computeDomainModel{} },
		validate:  validateComputeDomain,
		attribute: computeDomainAttribute,
		advise:    adviseComputeDomain,
		await:     awaitComputeDomain,
	}
}

func computeDomainSchema(ctx context.Context) schema.Schema {
	replace := []planmodifier.String{stringplanmodifier.RequiresReplace()}
	attributes := metaAttributes(ctx, computeDomainKind)
	attributes["num_nodes"] = schema.Int64Attribute{
		Optional:      true,
		Computed:      true,
		Default:       int64default.StaticInt64(0),
		Validators:    []validator.Int64{int64validator.AtLeast(0)},
		PlanModifiers: []planmodifier.Int64{int64planmodifier.RequiresReplace()},
		MarkdownDescription: "How many nodes the domain waits for before it is Ready and lets its workload start. 0, the default, waits for " +
			"none: pods start as their own node is ready. The plan warns where no NVLink clique has so many healthy nodes. " +
			"The API does not allow a change, so a change replaces the domain.",
	}
	attributes["channel"] = schema.SingleNestedAttribute{Required: true, MarkdownDescription: "The IMEX channel that the domain's pods get.",
		Attributes: map[string]schema.Attribute{
			"resource_claim_template": schema.StringAttribute{Required: true, PlanModifiers: replace, Validators: kubernetesName(),
				MarkdownDescription: "Name of the ResourceClaimTemplate that the controller creates in the domain's namespace and that pods name. A " +
					"change replaces the domain."},
			"allocation_mode": schema.StringAttribute{
				Optional:      true,
				Computed:      true,
				Default:       stringdefault.StaticString("Single"),
				PlanModifiers: replace,
				Validators:    []validator.String{stringvalidator.OneOf("Single", "All")},
				MarkdownDescription: "`Single`, the default, gives a pod the channel of its domain; `All` gives it every channel of its node. " +
					"A change replaces the domain.",
			},
		}}
	addReadiness(
		attributes,
		"the controller has processed the domain and its claim template is there, so that pods can be created",
		"the domain is Ready. A domain with `num_nodes` = N > 0 becomes so only when pods that use it have brought N nodes in: wait for it "+
			"only where those pods do not depend on this resource",
	)
	attributes["ready"] = schema.BoolAttribute{Computed: true, MarkdownDescription: "Whether the domain is Ready."}
	attributes["nodes"] = schema.ListNestedAttribute{
		Computed:            true,
		MarkdownDescription: "Nodes in the domain.",
		NestedObject: schema.NestedAttributeObject{
			Attributes: map[string]schema.Attribute{
				"name":       schema.StringAttribute{Computed: true, MarkdownDescription: "Name of the node."},
				"ip_address": schema.StringAttribute{Computed: true, MarkdownDescription: "Address of its IMEX daemon."},
				"clique_id":  schema.StringAttribute{Computed: true, MarkdownDescription: "NVLink clique of its GPUs, `ClusterUUID.CliqueID`."},
				"index":      schema.Int64Attribute{Computed: true, MarkdownDescription: "Its index in the domain."},
				"status":     schema.StringAttribute{Computed: true, MarkdownDescription: "`Ready` or `NotReady`."},
			}},
	}
	return schema.Schema{
		Attributes: attributes,
		MarkdownDescription: "A compute domain: nodes of one NVLink clique whose pods may share GPU memory through IMEX. " +
			"It is the resource `ComputeDomain` of `resource.nvidia.com/v1beta1`, kept by server-side apply.",
	}
}

func (m *computeDomainModel) api(ctx context.Context) (*v1beta1.ComputeDomainSpec, diag.Diagnostics) {
	var channel channelModel
	diags := m.Channel.As(ctx, &channel, objectAsOptions)
	return &v1beta1.ComputeDomainSpec{NumNodes: int(m.NumNodes.ValueInt64()), Channel: v1beta1.ComputeDomainChannelSpec{
		ResourceClaimTemplate: v1beta1.ComputeDomainResourceClaimTemplate{Name: channel.Template.ValueString()},
		AllocationMode:        v1beta1.AllocationMode(channel.AllocationMode.ValueString()),
	}}, diags
}

// validateComputeDomain checks the configuration by the rules of the CustomResourceDefinition.
func validateComputeDomain(ctx context.Context, m *computeDomainModel) (field.ErrorList, diag.Diagnostics) {
	spec, diags := m.api(ctx)
	return spec.Validate(field.NewPath("spec")), diags
}

// computeDomainAttribute is attributePath but for the template's name, which is an attribute of its own.
func computeDomainAttribute(fieldPath string) path.Path {
	if fieldPath == "spec.channel.resourceClaimTemplate.name" {
		return path.Root("channel").AtName("resource_claim_template")
	}
	return attributePath(fieldPath)
}

func (m *computeDomainModel) spec(ctx context.Context) (map[string]any, diag.Diagnostics) {
	spec, diags := m.api(ctx)
	return toMap(spec, &diags), diags
}

func (m *computeDomainModel) observe(_ context.Context, obj *unstructured.Unstructured) diag.Diagnostics {
	var diags diag.Diagnostics
	d := fromObject[v1beta1.ComputeDomain](obj, &diags)
	if d == nil {
		return diags
	}
	m.NumNodes = types.Int64Value(int64(d.Spec.NumNodes))
	mode := or(string(d.Spec.Channel.AllocationMode), string(v1beta1.AllocationModeSingle)) // for servers whose CRD does not write the default
	m.Channel = types.ObjectValueMust(channelType, map[string]attr.Value{
		"resource_claim_template": types.StringValue(d.Spec.Channel.ResourceClaimTemplate.Name), "allocation_mode": types.StringValue(mode)})
	state := domain.Of(d)
	m.WaitFor = types.StringValue(or(m.WaitFor.ValueString(), waitAccepted)) // none after an import
	m.Accepted, m.Ready, m.Message = types.BoolValue(state.Accepted), types.BoolValue(state.Ready), types.StringValue(state.Message)
	m.missing = state.Missing()
	nodes := make([]attr.Value, 0, len(state.Nodes))
	for _, n := range state.Nodes {
		nodes = append(
			nodes,
			types.ObjectValueMust(nodeType, map[string]attr.Value{"name": types.StringValue(n.Name), "ip_address": types.StringValue(n.Address),
				"clique_id": types.StringValue(n.Clique), "index": types.Int64Value(n.Index), "status": types.StringValue(n.Status)}),
		)
	}
	list, more := types.ListValue(types.ObjectType{AttrTypes: nodeType}, nodes)
	m.Nodes = list
	diags.Append(more...)
	return diags
}

func (m *computeDomainModel) waiting(context.Context) string { return m.missing }

// adviseComputeDomain warns of a new domain for which no clique has enough healthy nodes now. It skips an existing domain, which has its
// nodes already.
func adviseComputeDomain(_ context.Context, now *inventory.Snapshot, state, plan *computeDomainModel) diag.Diagnostics {
	var diags diag.Diagnostics
	if state != nil && state.NumNodes.Equal(plan.NumNodes) && state.Channel.Equal(plan.Channel) {
		return diags
	}
	if short := cliques.Fit(now.Cliques, int(plan.NumNodes.ValueInt64())); short != nil {
		diags.AddAttributeWarning(path.Root("num_nodes"), "The domain does not fit an NVLink clique now", sentences(short.Warnings()))
	}
	return diags
}

// sentences makes text of lines that begin small and have no full stop.
func sentences(lines []string) string {
	out := make([]string, 0, len(lines))
	for _, line := range lines {
		out = append(out, strings.ToUpper(line[:1])+line[1:]+".")
	}
	return strings.Join(out, " ")
}

// awaitComputeDomain waits for the domain as for every object, then for the template that its pods name.
func awaitComputeDomain(
	ctx context.Context,
	client *cluster.Client,
	m *computeDomainModel,
	obj *unstructured.Unstructured,
) (*unstructured.Unstructured, string, error) {
	last, waiting, err := awaitCondition[*computeDomainModel](computeDomainKind)(ctx, client, m, obj)
	if err != nil || m.WaitFor.ValueString() == waitNone {
		return last, waiting, err
	}
	spec, _ := m.api(ctx) // its diagnostics were reported with the object as applied
	template := object.Key{Namespace: m.key().Namespace, Name: spec.Channel.ResourceClaimTemplate.Name}
	_, err = object.NewStore(client, domain.ClaimTemplateKind).Await(ctx, template, nil, func(obj *unstructured.Unstructured) (bool, error) {
		return obj != nil, nil
	})
	return last, "the controller has not created the ResourceClaimTemplate " + template.String(), err
}
