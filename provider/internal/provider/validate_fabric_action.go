package provider

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-framework-validators/float64validator"
	"github.com/hashicorp/terraform-plugin-framework-validators/int64validator"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/action"
	"github.com/hashicorp/terraform-plugin-framework/action/schema"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"gpufabric.io/provider/internal/cluster"
	"gpufabric.io/provider/internal/inventory"
	"gpufabric.io/provider/internal/validation"
)

type validateFabricModel struct {
	actionTimeouts
	Test         types.String  `tfsdk:"test"`
	Namespace    types.String  `tfsdk:"namespace"`
	Name         types.String  `tfsdk:"name"`
	Nodes        types.Int64   `tfsdk:"num_nodes"`
	GPUs         types.Int64   `tfsdk:"gpus_per_node"`
	Image        types.String  `tfsdk:"image"`
	NodeSelector types.Object  `tfsdk:"node_selector"`
	Minimum      types.Float64 `tfsdk:"minimum_gb_per_second"`
	Keep         types.Bool    `tfsdk:"keep"`
}

// cleanUpTimeout limits the removal of a check's objects, after its own time has run out or was cut short.
const cleanUpTimeout = 2 * time.Minute

// usualGPUs is how many GPUs a node of a GB200 rack has, as the example's job asks for.
const usualGPUs = 4

func newValidateFabricAction() action.Action {
	return &deed[*validateFabricModel]{
		name:  "validate_fabric",
		usual: 15 * time.Minute,
		schema: schema.Schema{
			MarkdownDescription: "Proves the fabric by a job, reports what it found, and takes everything away again. " +
				"`ping` starts a pod with an IMEX channel on each of `num_nodes` nodes of a new compute domain: they start only when the IMEX " +
				"daemons of all of them have found each other. " +
				"`bandwidth` runs nvbandwidth between all GPUs of the nodes, as `examples/manifests/nvbandwidth-test-job.yaml` does; it needs the " +
				"MPI operator. Needs Terraform 1.14.",
			Attributes: map[string]schema.Attribute{
				"num_nodes": schema.Int64Attribute{
					Required:            true,
					Validators:          []validator.Int64{int64validator.AtLeast(1)},
					MarkdownDescription: "How many nodes of one NVLink clique take part.",
				},
				"test": schema.StringAttribute{
					Optional:            true,
					Validators:          []validator.String{stringvalidator.OneOf(validation.Ping, validation.Bandwidth)},
					MarkdownDescription: "`ping`, the default, or `bandwidth`.",
				},
				"namespace": schema.StringAttribute{
					Optional:            true,
					Validators:          kubernetesLabel(),
					MarkdownDescription: "Namespace of the job, which must exist. Default `default`.",
				},
				"name": schema.StringAttribute{
					Optional:            true,
					Validators:          helmReleaseName(),
					MarkdownDescription: "Name of the job and of its domain. Default `fabric-` and the test.",
				},
				"gpus_per_node": schema.Int64Attribute{Optional: true, Validators: []validator.Int64{int64validator.Between(1, 32)},
					MarkdownDescription: "GPUs that `bandwidth` takes on each node. Default 4."},
				"image": schema.StringAttribute{Optional: true, Validators: []validator.String{stringvalidator.LengthAtLeast(1)},
					MarkdownDescription: "Image of the pods, where the cluster pulls from a registry of its own. `ping` needs bash, `bandwidth` " +
						"nvbandwidth, mpirun and sshd."},
				"node_selector": nodeSelectorOfAction("may take part"),
				"minimum_gb_per_second": schema.Float64Attribute{Optional: true, Validators: []validator.Float64{float64validator.AtLeast(0)},
					MarkdownDescription: "What the slowest pair of GPUs must reach in `bandwidth`, in GB/s."},
				"keep": schema.BoolAttribute{
					Optional:            true,
					MarkdownDescription: "Keep job and domain, to look at them. The next run under the same name needs them gone. Default `false`.",
				},
			},
		},
		empty:  func() *validateFabricModel { return &validateFabricModel{} },
		advise: adviseValidateFabric,
		run:    runValidateFabric,
	}
}

// adviseValidateFabric warns of a check that no clique has enough nodes for.
func adviseValidateFabric(now *inventory.Snapshot, m *validateFabricModel) diag.Diagnostics {
	var diags diag.Diagnostics
	size := map[string]int64{}
	largest := int64(0)
	for _, labels := range now.Labels {
		if clique := labels[inventory.CliqueLabel]; clique != "" {
			size[clique]++
			largest = max(largest, size[clique])
		}
	}
	if m.Nodes.ValueInt64() > largest {
		diags.AddAttributeWarning(
			path.Root("num_nodes"),
			"No clique has so many nodes",
			fmt.Sprintf("num_nodes = %d, but the largest NVLink clique of the cluster has %d nodes now.", m.Nodes.ValueInt64(), largest),
		)
	}
	return diags
}

func (m *validateFabricModel) check(ctx context.Context, diags *diag.Diagnostics) validation.Check {
	test := or(m.Test.ValueString(), validation.Ping)
	gpus := m.GPUs.ValueInt64()
	if m.GPUs.IsNull() {
		gpus = usualGPUs
	}
	return validation.Check{Test: test, Namespace: or(m.Namespace.ValueString(), "default"), Name: or(m.Name.ValueString(), "fabric-"+test),
		Nodes: m.Nodes.ValueInt64(), GPUsPerNode: gpus, Image: m.Image.ValueString(), NodeSelector: labelSelector(ctx, m.NodeSelector, diags)}
}

func runValidateFabric(
	ctx context.Context,
	client *cluster.Client,
	m *validateFabricModel,
	say func(string),
) (doing string, diags diag.Diagnostics, err error) {
	c := m.check(ctx, &diags)
	doing = fmt.Sprintf("run the %s test %s/%s", c.Test, c.Namespace, c.Name)
	report, err := validation.Run(ctx, client, c, say)
	if taken := (*validation.TakenError)(nil); !m.Keep.ValueBool() && !errors.As(err, &taken) {
		cleanUp, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTimeout)
		defer cancel()
		err = errors.Join(err, validation.Remove(cleanUp, client, c))
	}
	if err != nil {
		return doing, diags, err
	}
	if c.Test == validation.Ping {
		say(fmt.Sprintf("the fabric holds: %d nodes share an IMEX domain: %s", len(report.Nodes), strings.Join(report.Nodes, ", ")))
		return doing, diags, nil
	}
	b := report.Bandwidths
	say(
		fmt.Sprintf(
			"%d pairs of GPUs on %d nodes: %.1f GB/s for the slowest pair, %.1f GB/s on average",
			b.Pairs,
			c.Nodes,
			b.Least,
			b.Sum/float64(b.Pairs),
		),
	)
	if b.Least < m.Minimum.ValueFloat64() {
		diags.AddAttributeError(
			path.Root("minimum_gb_per_second"),
			"Fabric too slow",
			fmt.Sprintf("The slowest pair of GPUs reaches %.1f GB/s, and minimum_gb_per_second is %.1f. "+
				"Look at the links of the nodes with `gpufabric topology` and nvidia-smi nvlink --status.", b.Least, m.Minimum.ValueFloat64()),
		)
	}
	return doing, diags, nil
}
