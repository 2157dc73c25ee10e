package provider

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/action"
	"github.com/hashicorp/terraform-plugin-framework/action/schema"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"gpufabric.io/provider/internal/cluster"
	"gpufabric.io/provider/internal/maintenance"
)

type repartitionModel struct {
	actionTimeouts
	Layout types.String `tfsdk:"mig_layout"`
	Evict  types.Bool   `tfsdk:"evict"`
}

func newRepartitionAction() action.Action {
	return &deed[*repartitionModel]{
		name:  "repartition",
		usual: 15 * time.Minute,
		schema: schema.Schema{
			MarkdownDescription: "Applies a MIG layout now. A `gpufabric_mig_layout` changes only GPUs on which nothing runs; this evicts " +
				"the pods that hold the others, as disruption budgets allow, " +
				"and waits until every selected node has the layout. Needs Terraform 1.14.",
			Attributes: map[string]schema.Attribute{
				"mig_layout": schema.StringAttribute{Required: true, Validators: kubernetesName(), MarkdownDescription: "Name of the MIGLayout."},
				"evict": schema.BoolAttribute{
					Optional:            true,
					MarkdownDescription: "Whether pods are evicted; `false` only waits for them to end. Default `true`.",
				},
			},
		},
		empty: func() *repartitionModel { return &repartitionModel{} },
		run: func(ctx context.Context, client *cluster.Client, m *repartitionModel, say func(string)) (string, diag.Diagnostics, error) {
			doing := "repartition to MIGLayout " + m.Layout.ValueString()
			done, err := maintenance.Repartition(ctx, client, m.Layout.ValueString(), m.Evict.IsNull() || m.Evict.ValueBool(), say)
			if err == nil {
				say(fmt.Sprintf("the layout stands on %s; %d pods were evicted", strings.Join(done.Nodes, ", "), len(done.Evicted)))
			}
			return doing, nil, err
		},
	}
}
