package provider

import (
	"context"
	"slices"

	"github.com/hashicorp/terraform-plugin-framework-validators/mapvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/setvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	action "github.com/hashicorp/terraform-plugin-framework/action/schema"
	"github.com/hashicorp/terraform-plugin-framework/attr"
	data "github.com/hashicorp/terraform-plugin-framework/datasource/schema"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

type nodeSelectorModel struct {
	MatchLabels      types.Map `tfsdk:"match_labels"`
	MatchExpressions types.Set `tfsdk:"match_expressions"`
}

type expressionModel struct {
	Key      types.String `tfsdk:"key"`
	Operator types.String `tfsdk:"operator"`
	Values   types.Set    `tfsdk:"values"`
}

var (
	expressionType = map[string]attr.Type{
		"key":      types.StringType,
		"operator": types.StringType,
		"values":   types.SetType{ElemType: types.StringType},
	}
	nodeSelectorType = map[string]attr.Type{
		"match_labels":      types.MapType{ElemType: types.StringType},
		"match_expressions": types.SetType{ElemType: types.ObjectType{AttrTypes: expressionType}},
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
			"match_expressions": schema.SetNestedAttribute{
				Optional:            true,
				Validators:          []validator.Set{setvalidator.SizeAtLeast(1)},
				MarkdownDescription: "Further conditions on a node's labels; all must hold.",
				NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
					"key": schema.StringAttribute{Required: true, MarkdownDescription: "Label key."},
					"operator": schema.StringAttribute{Required: true, MarkdownDescription: "`In`, `NotIn`, `Exists` or `DoesNotExist`.",
						Validators: selectorOperator()},
					"values": schema.SetAttribute{
						ElementType:         types.StringType,
						Optional:            true,
						Validators:          []validator.Set{setvalidator.SizeAtLeast(1)},
						MarkdownDescription: "Values for `In` and `NotIn`.",
					},
				}},
			},
		}}
}

// nodeSelectorOfData is the selector of nodes of a data source.
func nodeSelectorOfData(what string) data.Attribute {
	return data.SingleNestedAttribute{Optional: true, MarkdownDescription: "Nodes that " + what + "; without it, all.",
		Attributes: map[string]data.Attribute{
			"match_labels": data.MapAttribute{ElementType: types.StringType, Optional: true,
				Validators:          []validator.Map{metadataMap{labels: true}, mapvalidator.SizeAtLeast(1)},
				MarkdownDescription: "Labels a node must have."},
			"match_expressions": data.SetNestedAttribute{Optional: true, Validators: []validator.Set{setvalidator.SizeAtLeast(1)},
				MarkdownDescription: "Further conditions on a node's labels; all must hold.",
				NestedObject: data.NestedAttributeObject{Attributes: map[string]data.Attribute{
					"key": data.StringAttribute{Required: true, MarkdownDescription: "Label key."},
					"operator": data.StringAttribute{Required: true, Validators: selectorOperator(),
						MarkdownDescription: "`In`, `NotIn`, `Exists` or `DoesNotExist`."},
					"values": data.SetAttribute{ElementType: types.StringType, Optional: true,
						Validators:          []validator.Set{setvalidator.SizeAtLeast(1)},
						MarkdownDescription: "Values for `In` and `NotIn`."},
				}}},
		}}
}

// nodeSelectorOfAction is the selector of nodes of an action.
func nodeSelectorOfAction(what string) action.Attribute {
	return action.SingleNestedAttribute{Optional: true, MarkdownDescription: "Nodes that " + what + "; without it, all.",
		Attributes: map[string]action.Attribute{
			"match_labels": action.MapAttribute{ElementType: types.StringType, Optional: true,
				Validators:          []validator.Map{metadataMap{labels: true}, mapvalidator.SizeAtLeast(1)},
				MarkdownDescription: "Labels a node must have."},
			"match_expressions": action.SetNestedAttribute{Optional: true, Validators: []validator.Set{setvalidator.SizeAtLeast(1)},
				MarkdownDescription: "Further conditions on a node's labels; all must hold.",
				NestedObject: action.NestedAttributeObject{Attributes: map[string]action.Attribute{
					"key": action.StringAttribute{Required: true, MarkdownDescription: "Label key."},
					"operator": action.StringAttribute{Required: true, Validators: selectorOperator(),
						MarkdownDescription: "`In`, `NotIn`, `Exists` or `DoesNotExist`."},
					"values": action.SetAttribute{ElementType: types.StringType, Optional: true,
						Validators:          []validator.Set{setvalidator.SizeAtLeast(1)},
						MarkdownDescription: "Values for `In` and `NotIn`."},
				}}},
		}}
}

func selectorOperator() []validator.String {
	return []validator.String{stringvalidator.OneOf("In", "NotIn", "Exists", "DoesNotExist")}
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
	expressions := types.SetNull(types.ObjectType{AttrTypes: expressionType})
	if len(selector.MatchExpressions) > 0 {
		list := make([]attr.Value, 0, len(selector.MatchExpressions))
		for _, e := range selector.MatchExpressions {
			values := types.SetNull(types.StringType)
			if len(e.Values) > 0 {
				values = stringSet(e.Values)
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
		expressions, more = types.SetValue(types.ObjectType{AttrTypes: expressionType}, list)
		diags.Append(more...)
	}
	return types.ObjectValueMust(nodeSelectorType, map[string]attr.Value{"match_labels": labels, "match_expressions": expressions})
}

// stringsOf returns a set's strings in their order; null and unknown are none.
func stringsOf(ctx context.Context, set types.Set, diags *diag.Diagnostics) []string {
	if set.IsNull() || set.IsUnknown() {
		return nil
	}
	var out []string
	diags.Append(set.ElementsAs(ctx, &out, false)...)
	slices.Sort(out)
	return out
}

// setOrNull returns a set as the configuration writes it: none is null, unless an empty set was configured.
func setOrNull(configured types.Set, live []string) types.Set {
	if len(live) == 0 && (configured.IsNull() || configured.IsUnknown()) {
		return types.SetNull(types.StringType)
	}
	return stringSet(live)
}

// stringSet returns a set of texts, of which a list in the cluster may have some twice.
func stringSet(texts []string) types.Set {
	return types.SetValueMust(types.StringType, stringList(slices.Compact(slices.Sorted(slices.Values(texts)))).Elements())
}
