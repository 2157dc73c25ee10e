package provider

import (
	"context"
	"time"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/action/timeouts"
	"github.com/hashicorp/terraform-plugin-framework/action"
	"github.com/hashicorp/terraform-plugin-framework/action/schema"
	"github.com/hashicorp/terraform-plugin-framework/diag"

	"gpufabric.io/provider/internal/cluster"
	"gpufabric.io/provider/internal/inventory"
)

// actionModel is the common part of every action's model.
type actionModel interface{ timeouts() timeouts.Value }

// actionTimeouts is embedded in models of actions.
type actionTimeouts struct {
	Timeouts timeouts.Value `tfsdk:"timeouts"`
}

func (t *actionTimeouts) timeouts() timeouts.Value { return t.Timeouts }

// deed is an action: its schema, its advice at plan time, and its work.
type deed[M actionModel] struct {
	name   string
	schema schema.Schema
	empty  func() M
	usual  time.Duration // the time-out where none is given
	// advise checks the present cluster; nil: no advice.
	advise func(now *inventory.Snapshot, m M) diag.Diagnostics
	// run does the work; it reports progress through say. explain describes its error, with doing as the operation, such as "restart
	// IMEX of default/train".
	run func(ctx context.Context, client *cluster.Client, m M, say func(string)) (doing string, diags diag.Diagnostics, err error)

	connection *cluster.Connection
}

var (
	_ action.ActionWithConfigure  = (*deed[*restartIMEXModel])(nil)
	_ action.ActionWithModifyPlan = (*deed[*restartIMEXModel])(nil)
)

func (p *fabricProvider) Actions(context.Context) []func() action.Action {
	return []func() action.Action{newValidateFabricAction, newRestartIMEXAction, newRepartitionAction}
}

func (d *deed[M]) Metadata(_ context.Context, req action.MetadataRequest, resp *action.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_" + d.name
}

func (d *deed[M]) Schema(ctx context.Context, _ action.SchemaRequest, resp *action.SchemaResponse) {
	resp.Schema = d.schema
	resp.Schema.Attributes["timeouts"] = timeouts.AttributesWithOpts(ctx, timeouts.Opts{
		InvokeDescription: "How long the action may take, as a duration such as `10m`. Default " + d.usual.String() + "."})
}

func (d *deed[M]) Configure(_ context.Context, req action.ConfigureRequest, resp *action.ConfigureResponse) {
	d.connection = connectionFrom(req.ProviderData, &resp.Diagnostics)
}

// ModifyPlan warns about pods that the action disturbs. Like a resource's plan it also works without a cluster.
func (d *deed[M]) ModifyPlan(ctx context.Context, req action.ModifyPlanRequest, resp *action.ModifyPlanResponse) {
	if d.advise == nil || !req.Config.Raw.IsFullyKnown() {
		return
	}
	m := d.empty()
	resp.Diagnostics.Append(req.Config.Get(ctx, m)...)
	if resp.Diagnostics.HasError() {
		return
	}
	if now := snapshot(ctx, d.connection); now != nil {
		resp.Diagnostics.Append(d.advise(now, m)...)
	}
}

func (d *deed[M]) Invoke(ctx context.Context, req action.InvokeRequest, resp *action.InvokeResponse) {
	m := d.empty()
	resp.Diagnostics.Append(req.Config.Get(ctx, m)...)
	if resp.Diagnostics.HasError() {
		return
	}
	timeout, diags := m.timeouts().Invoke(ctx, d.usual)
	resp.Diagnostics.Append(diags...)
	client, err := d.connection.Client(ctx)
	if err != nil {
		addError(&resp.Diagnostics, "run action gpufabric_"+d.name, err)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	doing, diags, err := d.run(ctx, client, m, func(text string) { resp.SendProgress(action.InvokeProgressEvent{Message: text}) })
	resp.Diagnostics.Append(diags...)
	if err != nil {
		addError(&resp.Diagnostics, doing, err)
	}
}
