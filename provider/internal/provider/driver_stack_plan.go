package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/types"
	helm "helm.sh/helm/v3/pkg/release"

	"gpufabric.io/provider/internal/release"
)

// ModifyPlan reads the chart from disk and plans the release's objects: an upgrade where chart or values differ from the
// last refresh, a repair where objects drifted, a new wait where the last one timed out. For an upgrade it warns about disturbed pods.
// For both an install and an upgrade it warns about problems of the cluster, if the cluster answers.
func (r *driverStackResource) ModifyPlan(ctx context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	if req.Plan.Raw.IsNull() {
		return
	}
	if resp.Diagnostics.Append(nullElements(req.Config.Raw)...); resp.Diagnostics.HasError() {
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
	plan.ChartVersion, plan.AppVersion, plan.ChartDigest = types.StringUnknown(), types.StringUnknown(), types.StringUnknown()
	if c := spec.Chart; c != nil {
		plan.ChartVersion, plan.AppVersion, plan.ChartDigest = types.StringValue(c.Version), types.StringValue(c.AppVersion),
			types.StringValue(c.Digest)
	}
	plan.EffectiveValues = types.MapUnknown(types.StringType) // at a creation too: the salt is made with the release
	if known && !req.State.Raw.IsNull() {
		salt, diags := saltIn(ctx, resp.Private)
		resp.Diagnostics.Append(diags...)
		plan.EffectiveValues = mapOf(fingerprints(without(release.Flatten(spec.Values), spec.Secret), salt))
	}
	plan.SecretValues = types.ListNull(types.StringType)
	plan.Drift = stringList(nil)
	if plan.ID.IsUnknown() && !plan.Namespace.IsUnknown() && !plan.Name.IsUnknown() {
		plan.ID = types.StringValue(plan.Namespace.ValueString() + "/" + plan.Name.ValueString())
	}
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
	repair := plan.sameChart(&state) && len(state.Drift.Elements()) > 0
	if repair || plan.sameRelease(&state) {
		plan.Revision, plan.Status, plan.Ready, plan.Waiting = state.Revision, state.Status, state.Ready, state.Waiting
		if repair || plan.WaitFor.ValueString() == waitRollout && !state.Ready.ValueBool() {
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

// statusDeployed is Helm's status of a release whose last operation succeeded.
const statusDeployed = string(helm.StatusDeployed)

// sameRelease reports whether the release does not need an upgrade.
func (m *driverStackModel) sameRelease(state *driverStackModel) bool {
	return m.sameChart(state) && len(state.Drift.Elements()) == 0
}

// sameChart reports whether Helm's release stays as it is; its objects may have to be mended.
func (m *driverStackModel) sameChart(state *driverStackModel) bool {
	return m.Name.Equal(state.Name) && m.Namespace.Equal(state.Namespace) && m.ChartDigest.Equal(state.ChartDigest) &&
		m.EffectiveValues.Equal(
			state.EffectiveValues,
		) && m.SecretVersion.Equal(state.SecretVersion) && state.Status.ValueString() == statusDeployed
}

// forgetRelease plans a new revision. One that Helm does not deploy is an error of the apply.
func (m *driverStackModel) forgetRelease() {
	m.Revision, m.Status = types.Int64Unknown(), types.StringValue(statusDeployed)
	m.Ready, m.Waiting = types.BoolUnknown(), types.ListUnknown(types.StringType)
}

// setDefaults sets after an import the attributes that the cluster does not store: settings of the resource itself.
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
