package provider

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringdefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"gpufabric.io/provider/internal/cluster"
	"gpufabric.io/provider/internal/object"
)

// objectMeta is the common part of every resource for a custom object: embedded in its model.
type objectMeta struct {
	ID             types.String   `tfsdk:"id"`
	Name           types.String   `tfsdk:"name"`
	Labels         types.Map      `tfsdk:"labels"`
	Annotations    types.Map      `tfsdk:"annotations"`
	ForceConflicts types.Bool     `tfsdk:"force_conflicts"`
	UID            types.String   `tfsdk:"uid"`
	Timeouts       timeouts.Value `tfsdk:"timeouts"`
}

// namespacedMeta adds the namespace.
type namespacedMeta struct {
	objectMeta
	Namespace types.String `tfsdk:"namespace"`
}

// metaAttributes returns the schema of objectMeta, to which a resource adds its own.
func metaAttributes(ctx context.Context, kind object.Kind) map[string]schema.Attribute {
	forever := []planmodifier.String{stringplanmodifier.UseStateForUnknown()}
	replace := []planmodifier.String{stringplanmodifier.RequiresReplace()}
	id := "`name`"
	if kind.Namespaced {
		id = "`namespace/name`"
	}
	attributes := map[string]schema.Attribute{
		"id": schema.StringAttribute{Computed: true, PlanModifiers: forever, MarkdownDescription: "Import id: " + id + "."},
		"name": schema.StringAttribute{
			Required:            true,
			PlanModifiers:       replace,
			Validators:          kubernetesName(),
			MarkdownDescription: "Name of the " + kind.Name + ". Another name makes another object.",
		},
		"labels": schema.MapAttribute{ElementType: types.StringType, Optional: true, Validators: []validator.Map{metadataMap{labels: true}},
			MarkdownDescription: "Labels to set. Labels that others set are left alone."},
		"annotations": schema.MapAttribute{ElementType: types.StringType, Optional: true, Validators: []validator.Map{metadataMap{}},
			MarkdownDescription: "Annotations to set. Annotations that others set are left alone."},
		"force_conflicts": schema.BoolAttribute{Optional: true,
			MarkdownDescription: "Take over fields that another field manager owns. Without it, an apply that meets such a field fails and names " +
				"the owner."},
		"uid":      schema.StringAttribute{Computed: true, PlanModifiers: forever, MarkdownDescription: "UID the API server gave the object."},
		"timeouts": timeoutsAttribute(ctx),
	}
	if kind.Namespaced {
		attributes["namespace"] = schema.StringAttribute{
			Optional:            true,
			Computed:            true,
			Default:             stringdefault.StaticString(metav1.NamespaceDefault),
			PlanModifiers:       replace,
			Validators:          kubernetesLabel(),
			MarkdownDescription: "Namespace of the " + kind.Name + ", which must exist. Default `default`.",
		}
	}
	return attributes
}

func (m *objectMeta) meta() *objectMeta { return m }

// predict works out the id.
func (m *objectMeta) predict() {
	if m.ID.IsUnknown() && !m.Name.IsUnknown() {
		m.ID = types.StringValue(m.Name.ValueString())
	}
}

func (m *namespacedMeta) predict() {
	if m.ID.IsUnknown() && !m.Name.IsUnknown() && !m.Namespace.IsUnknown() {
		m.ID = types.StringValue(m.key().String())
	}
}

func (m *objectMeta) key() object.Key { return object.Key{Name: m.Name.ValueString()} }

func (m *namespacedMeta) key() object.Key {
	return object.Key{Namespace: m.Namespace.ValueString(), Name: m.Name.ValueString()}
}

func (m *namespacedMeta) observeMeta(obj *unstructured.Unstructured) {
	m.objectMeta.observeMeta(obj)
	m.Namespace = types.StringValue(obj.GetNamespace())
}

// fill writes labels and annotations into the object to apply.
func (m *objectMeta) fill(ctx context.Context, obj *unstructured.Unstructured) diag.Diagnostics {
	var diags diag.Diagnostics
	if labels := stringMap(ctx, m.Labels, &diags); len(labels) > 0 {
		obj.SetLabels(labels)
	}
	if annotations := stringMap(ctx, m.Annotations, &diags); len(annotations) > 0 {
		obj.SetAnnotations(annotations)
	}
	return diags
}

// observeMeta copies the labels and annotations that Terraform owns. An entry that another manager changed is no longer owned, and so
// appears as a difference.
func (m *objectMeta) observeMeta(obj *unstructured.Unstructured) {
	m.ID = types.StringValue(object.Key{Namespace: obj.GetNamespace(), Name: obj.GetName()}.String())
	m.Name = types.StringValue(obj.GetName())
	m.UID = types.StringValue(string(obj.GetUID()))
	owned := ownedMetadata(obj)
	m.Labels = keep(m.Labels, obj.GetLabels(), owned.Labels)
	m.Annotations = keep(m.Annotations, obj.GetAnnotations(), owned.Annotations)
}

// keep returns the owned entries of all; none is null, unless an empty map was configured.
func keep(configured types.Map, all map[string]string, owned map[string]json.RawMessage) types.Map {
	kept := map[string]string{}
	for field := range owned {
		if key, ok := strings.CutPrefix(field, "f:"); ok && !object.IsOwn(key) {
			kept[key] = all[key]
		}
	}
	if len(kept) == 0 && (configured.IsNull() || len(configured.Elements()) > 0) {
		return types.MapNull(types.StringType)
	}
	return mapOf(kept)
}

type ownedFields struct {
	Labels      map[string]json.RawMessage `json:"f:labels"`
	Annotations map[string]json.RawMessage `json:"f:annotations"`
}

// ownedMetadata reads the fields of metadata that our field manager applied.
func ownedMetadata(obj *unstructured.Unstructured) ownedFields {
	for _, entry := range obj.GetManagedFields() {
		if entry.Manager != object.FieldManager || entry.Operation != metav1.ManagedFieldsOperationApply || entry.FieldsV1 == nil {
			continue
		}
		var fields struct {
			Metadata ownedFields `json:"f:metadata"`
		}
		if err := json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields); err == nil {
			return fields.Metadata
		}
	}
	return ownedFields{}
}

// providerData is the result of the provider's Configure for resources.
type providerData struct {
	connection *cluster.Connection
	origin     *object.Origin
}

func originFrom(data any) *object.Origin {
	c, _ := data.(*providerData) // connectionFrom reports another type
	if c == nil {
		return nil
	}
	return c.origin
}

// connectionFrom returns the connection that the provider's Configure left; nil data means that it has not run yet.
func connectionFrom(data any, diags *diag.Diagnostics) *cluster.Connection {
	if data == nil {
		return nil
	}
	if c, ok := data.(*providerData); ok {
		return c.connection
	}
	connection, ok := data.(*cluster.Connection)
	if !ok {
		diags.AddError("Provider data of an unexpected type", fmt.Sprintf("Got %T. This is a mistake in the provider.", data))
	}
	return connection
}

// importKey sets name, namespace and id from an import id or an identity.
func importKey(ctx context.Context, namespaced bool, kind string, req resource.ImportStateRequest, resp *resource.ImportStateResponse) {
	var key object.Key
	switch {
	case req.ID != "":
		parts := strings.Split(req.ID, "/")
		wanted := 1
		if namespaced {
			wanted = 2
		}
		if len(parts) != wanted || strings.Contains("/"+req.ID+"/", "//") {
			form := "NAME, for example \"rack-1\""
			if namespaced {
				form = "NAMESPACE/NAME, for example \"default/rack-1\""
			}
			resp.Diagnostics.AddError("Invalid import id", fmt.Sprintf("%q is no id of a %s: write %s.", req.ID, kind, form))
			return
		}
		key.Name = parts[len(parts)-1]
		if namespaced {
			key.Namespace = parts[0]
		}
	case req.Identity != nil:
		resp.Diagnostics.Append(req.Identity.GetAttribute(ctx, path.Root("name"), &key.Name)...)
		if namespaced {
			resp.Diagnostics.Append(req.Identity.GetAttribute(ctx, path.Root("namespace"), &key.Namespace)...)
		}
	}
	resp.Diagnostics.Append(resp.State.SetAttribute(ctx, path.Root("id"), key.String())...)
	resp.Diagnostics.Append(resp.State.SetAttribute(ctx, path.Root("name"), key.Name)...)
	if namespaced {
		resp.Diagnostics.Append(resp.State.SetAttribute(ctx, path.Root("namespace"), key.Namespace)...)
	}
}
