package provider

import (
	"context"
	"fmt"

	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/datasource/schema"
	"github.com/hashicorp/terraform-plugin-framework/path"
	managed "github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/tfsdk"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpufabric.io/provider/internal/cluster"
	"gpufabric.io/provider/internal/object"
)

// objectData is the data source of a kind that has a resource: one object by its name, whichever client made it. It has the attributes
// of the resource, but for those that report how Terraform manages the object.
type objectData[M objectModel] struct {
	definition[M]
	connection *cluster.Connection
}

var (
	_ datasource.DataSourceWithConfigure = (*objectData[*computeDomainModel])(nil)

	// managing are the attributes of a resource that its data source lacks.
	managing = map[string]bool{"force_conflicts": true, "timeouts": true, "wait_for": true}
)

func objectDataOf[M objectModel](d definition[M]) func() datasource.DataSource {
	return func() datasource.DataSource { return &objectData[M]{definition: d} }
}

func (d *objectData[M]) Metadata(_ context.Context, req datasource.MetadataRequest, resp *datasource.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_" + d.name
}

func (d *objectData[M]) Schema(ctx context.Context, _ datasource.SchemaRequest, resp *datasource.SchemaResponse) {
	attributes := map[string]schema.Attribute{}
	for name, a := range d.schema(ctx).Attributes {
		if !managing[name] {
			attributes[name] = shown(a)
		}
	}
	text := func(required bool, what string) schema.Attribute {
		return schema.StringAttribute{Required: required, Optional: !required, MarkdownDescription: what}
	}
	attributes["name"] = text(true, "Name of the "+d.kind.Name+".")
	if d.kind.Namespaced {
		attributes["namespace"] = text(false, "Namespace of the "+d.kind.Name+". Default `default`.")
	}
	for name, what := range map[string]string{"labels": "Labels", "annotations": "Annotations"} {
		attributes[name] = schema.MapAttribute{ElementType: types.StringType, Computed: true,
			MarkdownDescription: what + " of the object, whichever client set them."}
	}
	resp.Schema = schema.Schema{Attributes: attributes, MarkdownDescription: "One " + d.kind.Name + " of the cluster, by its name, " +
		"whichever client made it: for a configuration that uses what another one declares. It is an error where there is none."}
}

// shown is an attribute of a resource as its data source has it.
func shown(a managed.Attribute) schema.Attribute {
	nested := func(attributes map[string]managed.Attribute) map[string]schema.Attribute {
		out := map[string]schema.Attribute{}
		for name, a := range attributes {
			out[name] = shown(a)
		}
		return out
	}
	what := a.GetMarkdownDescription()
	switch a := a.(type) {
	case managed.BoolAttribute:
		return schema.BoolAttribute{Computed: true, MarkdownDescription: what}
	case managed.Int64Attribute:
		return schema.Int64Attribute{Computed: true, MarkdownDescription: what}
	case managed.ListAttribute:
		return schema.ListAttribute{Computed: true, ElementType: a.ElementType, MarkdownDescription: what}
	case managed.SetAttribute:
		return schema.SetAttribute{Computed: true, ElementType: a.ElementType, MarkdownDescription: what}
	case managed.MapAttribute:
		return schema.MapAttribute{Computed: true, ElementType: a.ElementType, MarkdownDescription: what}
	case managed.SingleNestedAttribute:
		return schema.SingleNestedAttribute{Computed: true, Attributes: nested(a.Attributes), MarkdownDescription: what}
	case managed.ListNestedAttribute:
		return schema.ListNestedAttribute{Computed: true, MarkdownDescription: what,
			NestedObject: schema.NestedAttributeObject{Attributes: nested(a.NestedObject.Attributes)}}
	case managed.SetNestedAttribute:
		return schema.SetNestedAttribute{Computed: true, MarkdownDescription: what,
			NestedObject: schema.NestedAttributeObject{Attributes: nested(a.NestedObject.Attributes)}}
	case managed.MapNestedAttribute:
		return schema.MapNestedAttribute{Computed: true, MarkdownDescription: what,
			NestedObject: schema.NestedAttributeObject{Attributes: nested(a.NestedObject.Attributes)}}
	}
	return schema.StringAttribute{Computed: true, MarkdownDescription: what}
}

func (d *objectData[M]) Configure(_ context.Context, req datasource.ConfigureRequest, resp *datasource.ConfigureResponse) {
	d.connection = connectionFrom(req.ProviderData, &resp.Diagnostics)
}

// Read fills the resource's model, and copies the attributes of the data source from it.
func (d *objectData[M]) Read(ctx context.Context, req datasource.ReadRequest, resp *datasource.ReadResponse) {
	var name, namespace types.String
	resp.Diagnostics.Append(req.Config.GetAttribute(ctx, path.Root("name"), &name)...)
	key := object.Key{Name: name.ValueString()}
	if d.kind.Namespaced {
		resp.Diagnostics.Append(req.Config.GetAttribute(ctx, path.Root("namespace"), &namespace)...)
		key.Namespace = or(namespace.ValueString(), metav1.NamespaceDefault)
	}
	if resp.Diagnostics.HasError() {
		return
	}
	doing := "read " + d.kind.Name + " " + key.String()
	client, err := d.connection.Client(ctx)
	if err != nil {
		addError(&resp.Diagnostics, doing, err)
		return
	}
	obj, err := object.NewStore(client, d.kind).Get(ctx, key)
	if err != nil {
		addError(&resp.Diagnostics, doing, err)
		return
	}
	if obj == nil {
		resp.Diagnostics.AddAttributeError(path.Root("name"), d.kind.Name+" not found", fmt.Sprintf("There is no %s %s in the cluster. Check "+
			"the name; where another configuration makes it, apply that one first.", d.kind.Name, key))
		return
	}
	m := d.empty()
	full := tfsdk.Resource{Schema: d.schema(ctx)}
	resp.Diagnostics.Append(nulls(ctx, &full, m)...)
	if foreign, ok := any(m).(interface{ readAnyForm() }); ok {
		foreign.readAnyForm()
	}
	m.observeMeta(obj)
	m.meta().Labels, m.meta().Annotations = mapOf(obj.GetLabels()), mapOf(obj.GetAnnotations())
	resp.Diagnostics.Append(m.observe(ctx, obj)...)
	state := tfsdk.State{Schema: full.Schema}
	resp.Diagnostics.Append(state.Set(ctx, m)...)
	if resp.Diagnostics.HasError() {
		return
	}
	values := map[string]tftypes.Value{}
	if err := state.Raw.As(&values); err != nil {
		resp.Diagnostics.AddError("Cannot write the data source", fmt.Sprintf("%v. This is a mistake in the provider.", err))
		return
	}
	for name := range managing {
		delete(values, name)
	}
	if d.kind.Namespaced && namespace.IsNull() { // a configured attribute keeps its null
		values["namespace"] = tftypes.NewValue(tftypes.String, nil)
	}
	resp.State.Raw = tftypes.NewValue(resp.State.Schema.Type().TerraformType(ctx), values)
}
