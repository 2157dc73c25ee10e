package provider

import (
	"context"
	"fmt"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/json"

	"gpufabric.io/provider/internal/object"
)

// toMap writes an API type as the plain values that an unstructured object holds.
func toMap(v any, diags *diag.Diagnostics) map[string]any {
	var out map[string]any
	text, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil {
		diags.AddError("Cannot write the object", fmt.Sprintf("%T does not become JSON: %v. This is a mistake in the provider.", v, err))
	}
	return out
}

// fromObject reads an object into its API type; nil, with a diagnostic, where it cannot.
func fromObject[T any](obj *unstructured.Unstructured, diags *diag.Diagnostics) *T {
	read, err := object.Read[T](obj)
	if err != nil {
		diags.AddError("Cannot read the "+obj.GetKind(), err.Error()+".")
	}
	return read
}

// int64OrNull reads a number whose zero means that it is left out.
func int64OrNull(n int32) types.Int64 {
	if n == 0 {
		return types.Int64Null()
	}
	return types.Int64Value(int64(n))
}

// quantityValue keeps a quantity as it was written, while the amount is the same.
func quantityValue(written types.String, have *apiresource.Quantity) types.String {
	if have == nil {
		return types.StringNull()
	}
	if q, err := apiresource.ParseQuantity(written.ValueString()); err == nil && q.Cmp(*have) == 0 {
		return written
	}
	return types.StringValue(have.String())
}

// quantity checks that a string is a Kubernetes quantity.
type quantity struct{}

func (quantity) Description(context.Context) string {
	return "must be a Kubernetes quantity such as 10Gi"
}

func (v quantity) MarkdownDescription(ctx context.Context) string { return v.Description(ctx) }

func (quantity) ValidateString(_ context.Context, req validator.StringRequest, resp *validator.StringResponse) {
	if req.ConfigValue.IsNull() || req.ConfigValue.IsUnknown() {
		return
	}
	if _, err := apiresource.ParseQuantity(req.ConfigValue.ValueString()); err != nil {
		resp.Diagnostics.AddAttributeError(req.Path, "Invalid quantity", notAQuantity(req.Path, req.ConfigValue.ValueString()))
	}
}

func notAQuantity(at path.Path, text string) string {
	return fmt.Sprintf("%s: %q is no quantity: write a number with a unit of Ki, Mi, Gi or Ti, for example 10Gi.", at, text)
}
