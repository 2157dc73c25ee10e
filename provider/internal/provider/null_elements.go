package provider

import (
	"fmt"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
)

// nullElements returns an error for each null in a list, set or map of a configuration: Kubernetes has no such element, and Terraform
// makes one of a variable without a value.
func nullElements(config tftypes.Value) diag.Diagnostics {
	var diags diag.Diagnostics
	err := tftypes.Walk(config, func(at *tftypes.AttributePath, v tftypes.Value) (bool, error) {
		steps := at.Steps()
		if len(steps) == 0 || !v.IsKnown() || !v.IsNull() {
			return true, nil
		}
		if _, attribute := steps[len(steps)-1].(tftypes.AttributeName); attribute {
			return true, nil // an attribute that is left out
		}
		where := frameworkPath(steps)
		diags.AddAttributeError(where, "Null element", fmt.Sprintf(
			"%s is null: leave the element out, for example with a condition in a for expression: { for k, v in ... : k => v if v != null }.",
			where))
		return true, nil
	})
	if err != nil {
		diags.AddError("Cannot read the configuration", fmt.Sprintf("%v. This is a mistake in the provider.", err))
	}
	return diags
}

// frameworkPath converts the steps of a path; an element of a set is shown as its set.
func frameworkPath(steps []tftypes.AttributePathStep) path.Path {
	at := path.Empty()
	for _, step := range steps {
		switch s := step.(type) {
		case tftypes.AttributeName:
			at = at.AtName(string(s))
		case tftypes.ElementKeyInt:
			at = at.AtListIndex(int(s))
		case tftypes.ElementKeyString:
			at = at.AtMapKey(string(s))
		}
	}
	return at
}
