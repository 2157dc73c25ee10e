package provider

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-framework/types/basetypes"

	"gpufabric.io/provider/internal/cluster"
)

// objectAsOptions leaves unknown and null attributes to the framework's own types, which hold both.
var objectAsOptions = basetypes.ObjectAsOptions{}

func listHasUnknown(l types.List) bool { return anyUnknown(l.Elements()) }

func objectHasUnknown(o types.Object) bool {
	if o.IsUnknown() {
		return true
	}
	for _, v := range o.Attributes() {
		if hasUnknown(v) {
			return true
		}
	}
	return false
}

func anyUnknown(values []attr.Value) bool {
	for _, v := range values {
		if hasUnknown(v) {
			return true
		}
	}
	return false
}

func hasUnknown(v attr.Value) bool {
	switch t := v.(type) {
	case types.List:
		return t.IsUnknown() || anyUnknown(t.Elements())
	case types.Set:
		return t.IsUnknown() || anyUnknown(t.Elements())
	case types.Object:
		return objectHasUnknown(t)
	case types.Map:
		if t.IsUnknown() {
			return true
		}
		for _, item := range t.Elements() {
			if hasUnknown(item) {
				return true
			}
		}
		return false
	}
	return v.IsUnknown()
}

// addError adds the diagnostic of an error met while doing something.
func addError(diags *diag.Diagnostics, doing string, err error) {
	summary, detail := explain(doing, err)
	diags.AddError(summary, detail)
}

// addSettingError adds the diagnostic of a mistake in the provider block, at its attribute where there is one.
func addSettingError(diags *diag.Diagnostics, err error) {
	setting := &cluster.SettingError{}
	if errors.As(err, &setting) && setting.Attribute != "" {
		diags.AddAttributeError(path.Root(setting.Attribute), "Invalid provider configuration", setting.Detail)
		return
	}
	diags.AddError("Invalid provider configuration", err.Error())
}

func stringMap(ctx context.Context, m types.Map, diags *diag.Diagnostics) map[string]string {
	if m.IsNull() || m.IsUnknown() {
		return nil
	}
	out := map[string]string{}
	diags.Append(m.ElementsAs(ctx, &out, false)...)
	return out
}

func mapOf(m map[string]string) types.Map {
	elements := make(map[string]attr.Value, len(m))
	for k, v := range m {
		elements[k] = types.StringValue(v)
	}
	return types.MapValueMust(types.StringType, elements)
}

func stringList(list []string) types.List {
	elements := make([]attr.Value, len(list))
	for i, s := range list {
		elements[i] = types.StringValue(s)
	}
	return types.ListValueMust(types.StringType, elements)
}

// sortedSet returns the different numbers of a list in their order.
func sortedSet(numbers []int32) []int32 {
	return slices.Compact(slices.Sorted(slices.Values(numbers)))
}

func capital(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// int32Of returns a number, cut to the range of the API; validation reports one that does not fit.
func int32Of(n types.Int64) int32 { return clamped(n.ValueInt64()) }

func clamped(n int64) int32 { return int32(min(max(n, math.MinInt32), math.MaxInt32)) }

// int32sOf is int32Of for the elements of a set.
func int32sOf(ctx context.Context, set types.Set, diags *diag.Diagnostics) []int32 {
	var wide []int64
	diags.Append(set.ElementsAs(ctx, &wide, false)...)
	numbers := make([]int32, 0, len(wide))
	for _, n := range wide {
		numbers = append(numbers, clamped(n))
	}
	return numbers
}

func or(value, otherwise string) string {
	if value == "" {
		return otherwise
	}
	return value
}
