package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"gpufabric.io/provider/internal/release"
)

// ModifyPlan reads the chart from disk and plans what it will make of the release: an upgrade where chart or values differ from the
// last refresh, a repair where objects drifted, a new wait where the last one timed out. For an upgrade it warns what is disturbed.
// For both an install and an upgrade it warns what would not work, if the cluster answers.
func (r *driverStackResource) ModifyPlan(ctx context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	if req.Plan.Raw.IsNull() {
		return
	}
	var plan driverStackModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	resp.Diagnostics.Append(req.Config.GetAttribute(ctx, path.Root("values_wo"), &plan.SecretValues)...)
	if resp.Diagnostics.HasError() {
		return
	}
	hidden := plan.redaction(ctx)
	ctx = hidden.log(ctx)
	defer func() { hidden.purge(&resp.Diagnostics) }()
	spec, known := plan.wanted(ctx, &resp.Diagnostics)
	if resp.Diagnostics.HasError() {
		return
	}
	if known {
		plan.ChartVersion, plan.AppVersion, plan.ChartDigest = types.StringValue(
			spec.Chart.Version,
		), types.StringValue(
			spec.Chart.AppVersion,
		), types.StringValue(
			spec.Chart.Digest,
		)
		plan.EffectiveValues = mapOf(without(release.Flatten(spec.Values), spec.Secret))
	} else {
		plan.ChartVersion, plan.AppVersion, plan.ChartDigest = types.StringUnknown(), types.StringUnknown(), types.StringUnknown()
		plan.EffectiveValues = types.MapUnknown(types.StringType)
	}
	plan.SecretValues = types.ListNull(types.StringType)
	plan.Drift = stringList(nil)
	if req.State.Raw.IsNull() {
		plan.forgetRelease()
		if known {
			resp.Diagnostics.Append(plan.planPreflight(ctx, r.connection, spec)...)
		}
		resp.Diagnostics.Append(resp.Plan.Set(ctx, plan)...)
		return
	}
	var state driverStackModel
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	if resp.Diagnostics.HasError() {
		return
	}
	if plan.sameRelease(&state) {
		plan.Revision, plan.Status, plan.Ready, plan.Waiting = state.Revision, state.Status, state.Ready, state.Waiting
		if plan.WaitFor.ValueString() == waitRollout && !state.Ready.ValueBool() {
			plan.Ready, plan.Waiting = types.BoolUnknown(), types.ListUnknown(types.StringType)
		}
	} else {
		plan.forgetRelease()
		if known {
			resp.Diagnostics.Append(plan.planPreflight(ctx, r.connection, spec)...)
		}
		if known && len(resp.RequiresReplace) == 0 {
			resp.Diagnostics.Append(adviseUpgrade(ctx, r.connection, spec)...)
		}
	}
	resp.Diagnostics.Append(resp.Plan.Set(ctx, plan)...)
}

// sameRelease reports whether the release needs no upgrade.
func (m *driverStackModel) sameRelease(state *driverStackModel) bool {
	return m.Name.Equal(state.Name) && m.Namespace.Equal(state.Namespace) && m.ChartDigest.Equal(state.ChartDigest) &&
		m.EffectiveValues.Equal(
			state.EffectiveValues,
		) && m.SecretVersion.Equal(state.SecretVersion) && state.Status.ValueString() == "deployed" && len(state.Drift.Elements()) == 0
}

func (m *driverStackModel) forgetRelease() {
	m.Revision, m.Status = types.Int64Unknown(), types.StringUnknown()
	m.Ready, m.Waiting = types.BoolUnknown(), types.ListUnknown(types.StringType)
}

// setDefaults sets after an import what the cluster does not know: settings of the resource itself.
func (m *driverStackModel) setDefaults() {
	if m.CreateNamespace.IsNull() {
		m.CreateNamespace = types.BoolValue(true)
	}
	if m.RemoveCRDs.IsNull() {
		m.RemoveCRDs = types.BoolValue(true)
	}
	if m.WaitFor.IsNull() {
		m.WaitFor = types.StringValue(waitRollout)
	}
}
