package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework-validators/listvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/mapvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

type nodeSelectorModel struct {
	MatchLabels      types.Map  `tfsdk:"match_labels"`
	MatchExpressions types.List `tfsdk:"match_expressions"`
}

type expressionModel struct {
	Key      types.String `tfsdk:"key"`
	Operator types.String `tfsdk:"operator"`
	Values   types.List   `tfsdk:"values"`
}

var (
	expressionType = map[string]attr.Type{
		"key":      types.StringType,
		"operator": types.StringType,
		"values":   types.ListType{ElemType: types.StringType},
	}
	nodeSelectorType = map[string]attr.Type{
		"match_labels":      types.MapType{ElemType: types.StringType},
		"match_expressions": types.ListType{ElemType: types.ObjectType{AttrTypes: expressionType}},
	}
)

// nodeSelectorAttribute is the selector of nodes that several resources share.
func nodeSelectorAttribute(what string) schema.Attribute {
	return schema.SingleNestedAttribute{Optional: true, MarkdownDescription: "Nodes that " + what + "; without it, all.",
		Attributes: map[string]schema.Attribute{
			"match_labels": schema.MapAttribute{
				ElementType:         types.StringType,
				Optional:            true,
				Validators:          []validator.Map{metadataMap{labels: true}, mapvalidator.SizeAtLeast(1)},
				MarkdownDescription: "Labels a node must have.",
			},
			"match_expressions": schema.ListNestedAttribute{
				Optional:            true,
				Validators:          []validator.List{listvalidator.SizeAtLeast(1)},
				MarkdownDescription: "Further conditions on a node's labels; all must hold.",
				NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
					"key": schema.StringAttribute{Required: true, MarkdownDescription: "Label key."},
					"operator": schema.StringAttribute{Required: true, MarkdownDescription: "`In`, `NotIn`, `Exists` or `DoesNotExist`.",
						Validators: []validator.String{stringvalidator.OneOf("In", "NotIn", "Exists", "DoesNotExist")}},
					"values": schema.ListAttribute{
						ElementType:         types.StringType,
						Optional:            true,
						Validators:          []validator.List{listvalidator.SizeAtLeast(1)},
						MarkdownDescription: "Values for `In` and `NotIn`.",
					},
				}},
			},
		}}
}

// labelSelector converts to the API's form; null is nil.
func labelSelector(ctx context.Context, from types.Object, diags *diag.Diagnostics) *metav1.LabelSelector {
	if from.IsNull() || from.IsUnknown() {
		return nil
	}
	var m nodeSelectorModel
	diags.Append(from.As(ctx, &m, objectAsOptions)...)
	selector := &metav1.LabelSelector{MatchLabels: stringMap(ctx, m.MatchLabels, diags)}
	var expressions []expressionModel
	if !m.MatchExpressions.IsNull() {
		diags.Append(m.MatchExpressions.ElementsAs(ctx, &expressions, false)...)
	}
	for _, e := range expressions {
		selector.MatchExpressions = append(selector.MatchExpressions, metav1.LabelSelectorRequirement{
			Key: e.Key.ValueString(), Operator: metav1.LabelSelectorOperator(e.Operator.ValueString()), Values: stringsOf(ctx, e.Values, diags)})
	}
	return selector
}

// nodeSelectorValue converts from the API's form.
func nodeSelectorValue(selector *metav1.LabelSelector, diags *diag.Diagnostics) types.Object {
	if selector == nil {
		return types.ObjectNull(nodeSelectorType)
	}
	labels := types.MapNull(types.StringType)
	if len(selector.MatchLabels) > 0 {
		labels = mapOf(selector.MatchLabels)
	}
	expressions := types.ListNull(types.ObjectType{AttrTypes: expressionType})
	if len(selector.MatchExpressions) > 0 {
		list := make([]attr.Value, 0, len(selector.MatchExpressions))
		for _, e := range selector.MatchExpressions {
			values := types.ListNull(types.StringType)
			if len(e.Values) > 0 {
				values = stringList(e.Values)
			}
			list = append(
				list,
				types.ObjectValueMust(
					expressionType,
					map[string]attr.Value{"key": types.StringValue(e.Key), "operator": types.StringValue(string(e.Operator)), "values": values},
				),
			)
		}
		var more diag.Diagnostics
		expressions, more = types.ListValue(types.ObjectType{AttrTypes: expressionType}, list)
		diags.Append(more...)
	}
	return types.ObjectValueMust(nodeSelectorType, map[string]attr.Value{"match_labels": labels, "match_expressions": expressions})
}

// stringsOf returns a list's strings; null and unknown are none.
func stringsOf(ctx context.Context, list types.List, diags *diag.Diagnostics) []string {
	if list.IsNull() || list.IsUnknown() {
		return nil
	}
	var out []string
	diags.Append(list.ElementsAs(ctx, &out, false)...)
	return out
}

// listOrNull returns a list as the configuration writes it: none is null, unless an empty list was configured.
func listOrNull(configured types.List, live []string) types.List {
	if len(live) == 0 && (configured.IsNull() || configured.IsUnknown()) {
		return types.ListNull(types.StringType)
	}
	return stringList(live)
}
