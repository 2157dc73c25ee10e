package provider

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/list"
	listschema "github.com/hashicorp/terraform-plugin-framework/list/schema"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/tfsdk"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"gpufabric.io/provider/internal/cluster"
	"gpufabric.io/provider/internal/object"
	"gpufabric.io/provider/internal/release"
)

var (
	_ list.ListResourceWithConfigure = (*objectLister[*computeDomainModel])(nil)
	_ list.ListResourceWithConfigure = (*driverStackLister)(nil)
)

func (p *fabricProvider) ListResources(context.Context) []func() list.ListResource {
	return []func() list.ListResource{
		func() list.ListResource { return &driverStackLister{} },
		listerOf(computeDomainDefinition()),
		listerOf(rdmaPoolDefinition()),
		listerOf(vgpuProfileDefinition()),
		listerOf(migLayoutDefinition()),
		listerOf(secondaryNetworkDefinition()),
	}
}

// objectLister lists the objects of one kind, for `terraform query`.
type objectLister[M objectModel] struct{ objectResource[M] }

func listerOf[M objectModel](d definition[M]) func() list.ListResource {
	return func() list.ListResource { return &objectLister[M]{objectResource[M]{definition: d}} }
}

func (l *objectLister[M]) ListResourceConfigSchema(
	_ context.Context,
	_ list.ListResourceSchemaRequest,
	resp *list.ListResourceSchemaResponse,
) {
	attributes := map[string]listschema.Attribute{
		"label_selector": listschema.StringAttribute{
			Optional:            true,
			MarkdownDescription: "Only objects with these labels, as kubectl writes it: `team=a,tier!=test`.",
		},
	}
	if l.kind.Namespaced {
		attributes["namespace"] = listschema.StringAttribute{
			Optional:            true,
			MarkdownDescription: "Only objects of this namespace; without it, of all.",
		}
	}
	resp.Schema = listschema.Schema{
		Attributes:          attributes,
		MarkdownDescription: "Lists the cluster's " + l.kind.Name + " objects, for `terraform query`. Needs Terraform 1.14.",
	}
}

func (l *objectLister[M]) List(ctx context.Context, req list.ListRequest, stream *list.ListResultsStream) {
	var namespace, labels types.String
	diags := req.Config.GetAttribute(ctx, path.Root("label_selector"), &labels)
	if l.kind.Namespaced {
		diags.Append(req.Config.GetAttribute(ctx, path.Root("namespace"), &namespace)...)
	}
	client, err := l.connection.Client(ctx)
	if err != nil {
		addError(&diags, "list "+l.kind.Plural, err)
	}
	if diags.HasError() {
		stream.Results = list.ListResultsStreamDiagnostics(diags)
		return
	}
	stream.Results = func(push func(list.ListResult) bool) {
		sent := int64(0)
		err := object.NewStore(
			client,
			l.kind,
		).Each(
			ctx,
			namespace.ValueString(),
			labels.ValueString(),
			func(obj *unstructured.Unstructured) bool {
				if req.Limit > 0 && sent >= req.Limit {
					return false
				}
				sent++
				return push(l.result(ctx, req, obj))
			},
		)
		if err != nil {
			var diags diag.Diagnostics
			addError(&diags, "list "+l.kind.Plural, err)
			push(list.ListResult{Diagnostics: diags})
		}
	}
}

func (l *objectLister[M]) result(ctx context.Context, req list.ListRequest, obj *unstructured.Unstructured) list.ListResult {
	result := req.NewListResult(ctx)
	m := l.empty()
	result.Diagnostics.Append(nulls(ctx, result.Resource, m)...)
	m.observeMeta(obj)
	result.Diagnostics.Append(m.observe(ctx, obj)...)
	result.DisplayName = m.key().String()
	result.Diagnostics.Append(l.identify(ctx, result.Identity, m)...)
	if fields := l.unmanaged(ctx, m, obj); fields != "" && !result.Diagnostics.HasError() {
		result.Diagnostics.AddWarning(l.title(m)+" cannot be imported", "The resource has no attributes for "+fields+".")
	}
	var held *object.HeldError
	if _, err := l.kind.Import(obj); errors.As(err, &held) {
		result.Diagnostics.AddWarning(l.kind.Name+" of a Terraform state", fmt.Sprintf("%v. An import is refused until it is released: %s", held,
			held.Release()))
	}
	if req.IncludeResource {
		result.Diagnostics.Append(result.Resource.Set(ctx, m)...)
	}
	return result
}

// nulls fills a model with the typed nulls of its schema, so that attributes that the cluster does not store (time-outs) can be written.
func nulls(ctx context.Context, r *tfsdk.Resource, into any) diag.Diagnostics {
	objectType, ok := r.Schema.Type().TerraformType(ctx).(tftypes.Object)
	if !ok {
		return nil // a schema is always an object
	}
	values := map[string]tftypes.Value{}
	for name, kind := range objectType.AttributeTypes {
		values[name] = tftypes.NewValue(kind, nil)
	}
	empty := tfsdk.Resource{Schema: r.Schema, Raw: tftypes.NewValue(objectType, values)}
	return empty.Get(ctx, into)
}

// driverStackLister lists Helm releases of the chart gpufabric.
type driverStackLister struct{ driverStackResource }

func (l *driverStackLister) ListResourceConfigSchema(
	_ context.Context,
	_ list.ListResourceSchemaRequest,
	resp *list.ListResourceSchemaResponse,
) {
	resp.Schema = listschema.Schema{
		MarkdownDescription: "Lists Helm releases of the chart gpufabric, for `terraform query`. Needs Terraform 1.14.",
		Attributes: map[string]listschema.Attribute{
			"namespace": listschema.StringAttribute{Optional: true, MarkdownDescription: "Only releases of this namespace; without it, of all."},
			"chart":     listschema.StringAttribute{Optional: true, MarkdownDescription: "Name of the chart, where it is not `gpufabric`."},
		},
	}
}

func (l *driverStackLister) List(ctx context.Context, req list.ListRequest, stream *list.ListResultsStream) {
	var namespace, chart types.String
	diags := req.Config.GetAttribute(ctx, path.Root("namespace"), &namespace)
	diags.Append(req.Config.GetAttribute(ctx, path.Root("chart"), &chart)...)
	client, err := l.connection.Client(ctx)
	var releases []*release.Release
	if err == nil {
		releases, err = release.NewManager(client, namespace.ValueString()).OfChart(ctx, or(chart.ValueString(), "gpufabric"))
	}
	if err != nil {
		addError(&diags, "list driver stacks", err)
	}
	if diags.HasError() {
		stream.Results = list.ListResultsStreamDiagnostics(diags)
		return
	}
	stream.Results = func(push func(list.ListResult) bool) {
		for i, r := range releases {
			if (req.Limit > 0 && int64(i) >= req.Limit) || !push(l.result(ctx, req, client, r)) {
				return
			}
		}
	}
}

func (l *driverStackLister) result(ctx context.Context, req list.ListRequest, client *cluster.Client, r *release.Release) list.ListResult {
	result := req.NewListResult(ctx)
	result.DisplayName = r.Namespace + "/" + r.Name
	var m driverStackModel
	result.Diagnostics.Append(nulls(ctx, result.Resource, &m)...)
	m.observe(r, nil, []byte(object.NewOwner())) // a list has no private state: its fingerprints are compared with none
	m.setDefaults()
	result.Diagnostics.Append(m.recall(r)...)
	result.Diagnostics.Append(m.identify(ctx, result.Identity)...)
	var held *release.HeldError
	if _, err := r.Import(); errors.As(err, &held) {
		result.Diagnostics.AddWarning("Release of a Terraform state", fmt.Sprintf("%v. An import is refused until it is released: %s", held,
			held.Command()))
	}
	if !req.IncludeResource {
		return result
	}
	state, err := release.NewManager(client, r.Namespace).Rollout(ctx, r)
	if err != nil {
		addError(&result.Diagnostics, "look at driver stack "+result.DisplayName, err)
	}
	m.observeRollout(state)
	m.Drift = stringList(nil)
	result.Diagnostics.Append(result.Resource.Set(ctx, &m)...)
	return result
}
