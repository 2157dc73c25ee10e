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

// actionModel is what every action's model has.
type actionModel interface{ timeouts() timeouts.Value }

// actionTimeouts is embedded in models of actions.
type actionTimeouts struct {
	Timeouts timeouts.Value `tfsdk:"timeouts"`
}

func (t *actionTimeouts) timeouts() timeouts.Value { return t.Timeouts }

// deed is an action: its schema, what it says at plan time, and what it does.
type deed[M actionModel] struct {
	name   string
	schema schema.Schema
	empty  func() M
	usual  time.Duration // the time-out where none is given
	// advise looks at the cluster as it is now; nil: nothing to say.
	advise func(now *inventory.Snapshot, m M) diag.Diagnostics
	// run does it; say receives its progress. Its error goes through explain after doing, such as "restart IMEX of default/train".
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

// ModifyPlan warns of what the action disturbs. Like a resource's plan it needs no cluster.
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
