package provider

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-framework-validators/setvalidator"
	"github.com/hashicorp/terraform-plugin-framework/action"
	"github.com/hashicorp/terraform-plugin-framework/action/schema"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"gpufabric.io/provider/internal/cluster"
	"gpufabric.io/provider/internal/inventory"
	"gpufabric.io/provider/internal/maintenance"
	"gpufabric.io/provider/internal/object"
)

type restartIMEXModel struct {
	actionTimeouts
	Namespace types.String `tfsdk:"namespace"`
	Domain    types.String `tfsdk:"domain"`
	Nodes     types.Set    `tfsdk:"nodes"`
}

func (m *restartIMEXModel) key() object.Key {
	return object.Key{Namespace: or(m.Namespace.ValueString(), "default"), Name: m.Domain.ValueString()}
}

func newRestartIMEXAction() action.Action {
	return &deed[*restartIMEXModel]{
		name:  "restart_imex",
		usual: 5 * time.Minute,
		schema: schema.Schema{
			MarkdownDescription: "Restarts the IMEX daemons of a compute domain, and waits until they are ready again and the domain is as it " +
				"was. Jobs of the domain lose the GPU memory that they share across nodes: they fail and must be started again. Needs Terraform 1.14.",
			Attributes: map[string]schema.Attribute{
				"domain": schema.StringAttribute{Required: true, Validators: kubernetesName(), MarkdownDescription: "Name of the ComputeDomain."},
				"namespace": schema.StringAttribute{
					Optional:            true,
					Validators:          kubernetesLabel(),
					MarkdownDescription: "Its namespace. Default `default`.",
				},
				"nodes": schema.SetAttribute{
					ElementType:         types.StringType,
					Optional:            true,
					Validators:          []validator.Set{setvalidator.SizeAtLeast(1), setvalidator.ValueStringsAre(kubernetesName()...)},
					MarkdownDescription: "Only the daemons on these nodes; without it, on all of the domain.",
				},
			},
		},
		empty:  func() *restartIMEXModel { return &restartIMEXModel{} },
		advise: adviseRestartIMEX,
		run: func(ctx context.Context, client *cluster.Client, m *restartIMEXModel, say func(string)) (string, diag.Diagnostics, error) {
			var diags diag.Diagnostics
			doing := "restart the IMEX daemons of ComputeDomain " + m.key().String()
			restarted, err := maintenance.RestartIMEX(ctx, client, m.key(), stringsOf(ctx, m.Nodes, &diags), say)
			if err == nil {
				say(fmt.Sprintf("restarted the IMEX daemons on %s", strings.Join(restarted, ", ")))
			}
			return doing, diags, err
		},
	}
}

// adviseRestartIMEX names the pods that have a channel in the domain's namespace: a claim does not say of which domain it is, but a
// namespace's pods are few beside a cluster's.
func adviseRestartIMEX(now *inventory.Snapshot, m *restartIMEXModel) diag.Diagnostics {
	var diags diag.Diagnostics
	pods := now.Holders(func(d *inventory.Device, c *inventory.Claim) bool {
		return d.Driver == inventory.ComputeDomainDriver && c.Namespace == m.key().Namespace
	})
	if len(pods) > 0 {
		diags.AddWarning(
			"Jobs lose shared memory",
			fmt.Sprintf(
				"The restart of the IMEX daemons of %s takes the GPU memory that the domain's pods share across nodes. Pods with a channel in "+
					"namespace %s now:\n%s",
				m.key(),
				m.key().Namespace,
				few(pods),
			),
		)
	}
	return diags
}
