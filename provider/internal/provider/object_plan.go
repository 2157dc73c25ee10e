package provider

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/tfsdk"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
)

// ModifyPlan plans computable attributes, keeps unchanged ones, warns about pods that a change disturbs, and plans to continue a
// wait that timed out.
func (r *objectResource[M]) ModifyPlan(ctx context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	if req.Plan.Raw.IsNull() {
		return
	}
	// Values that were unknown when the configuration was validated are known now.
	if resp.Diagnostics.Append(nullElements(req.Config.Raw)...); resp.Diagnostics.HasError() {
		return
	}
	var state M
	plan := r.empty()
	resp.Diagnostics.Append(req.Plan.Get(ctx, plan)...)
	if !req.State.Raw.IsNull() {
		state = r.empty()
		resp.Diagnostics.Append(req.State.Get(ctx, state)...)
	}
	if resp.Diagnostics.HasError() {
		return
	}
	if !req.Plan.Raw.Equal(req.State.Raw) && req.Config.Raw.IsFullyKnown() {
		resp.Diagnostics.Append(r.advice(ctx, state, plan)...)
	}
	plan.predict()
	resp.Diagnostics.Append(resp.Plan.Set(ctx, plan)...)
	if req.State.Raw.IsNull() || resp.Diagnostics.HasError() {
		return
	}
	mark, diags := req.Private.GetKey(ctx, unfinishedKey)
	resp.Diagnostics.Append(diags...)
	resp.Diagnostics.Append(r.planStatus(ctx, req.State, &resp.Plan, string(mark) == "true")...)
}

// planStatus plans the computed attributes of an object in the state. The controllers report anew about a changed spec, and a wait
// may see a change; otherwise they stay.
func (r *objectResource[M]) planStatus(ctx context.Context, state tfsdk.State, plan *tfsdk.Plan, unfinished bool) diag.Diagnostics {
	var diags diag.Diagnostics
	var before, after map[string]tftypes.Value
	if err := errors.Join(state.Raw.As(&before), plan.Raw.As(&after)); err != nil {
		diags.AddError("Cannot read the plan", fmt.Sprintf("%v. This is a mistake in the provider.", err))
		return diags
	}
	attributes := r.schema(ctx).Attributes
	sameSpec, changed := true, unfinished
	for name, a := range attributes {
		if isStatus(a) || after[name].Equal(before[name]) {
			continue
		}
		changed = true
		sameSpec = sameSpec && besideSpec[name]
	}
	if !changed {
		return diags
	}
	for name, a := range attributes {
		if isStatus(a) && sameSpec && !after[name].IsKnown() {
			after[name] = before[name]
		}
	}
	kept := tfsdk.State{Schema: state.Schema, Raw: tftypes.NewValue(plan.Raw.Type(), after)}
	m := r.empty()
	diags.Append(kept.Get(ctx, m)...)
	if sameSpec && !m.settled() {
		for name, a := range attributes {
			if isStatus(a) && !lasting[name] {
				after[name] = tftypes.NewValue(after[name].Type(), tftypes.UnknownValue)
			}
		}
	}
	plan.Raw = tftypes.NewValue(plan.Raw.Type(), after)
	return diags
}

var (
	// besideSpec are the attributes that change nothing of an object's spec.
	besideSpec = map[string]bool{"labels": true, "annotations": true, "force_conflicts": true, "timeouts": true, "wait_for": true}
	// lasting are the computed attributes that an object keeps as long as it exists.
	lasting = map[string]bool{"id": true, "uid": true, "resource": true, "device_class": true, "extended_resource_name": true, "config": true}
)

// isStatus reports whether only the provider sets an attribute.
func isStatus(a schema.Attribute) bool { return a.IsComputed() && !a.IsOptional() }
