package provider

import (
	"context"
	"fmt"

	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/datasource/schema"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"gpufabric.io/provider/internal/cluster"
	"gpufabric.io/provider/internal/release"
)

type driverStackDataModel struct {
	ID           types.String `tfsdk:"id"`
	Name         types.String `tfsdk:"name"`
	Namespace    types.String `tfsdk:"namespace"`
	ChartVersion types.String `tfsdk:"chart_version"`
	AppVersion   types.String `tfsdk:"app_version"`
	ChartDigest  types.String `tfsdk:"chart_digest"`
	Revision     types.Int64  `tfsdk:"revision"`
	Status       types.String `tfsdk:"status"`
	Ready        types.Bool   `tfsdk:"ready"`
	Waiting      types.List   `tfsdk:"waiting_for"`
}

// stackName and stackNamespace are the defaults of the resource and of the data source.
const (
	stackName      = "gpufabric"
	stackNamespace = "gpufabric-system"
)

func newDriverStackDataSource() datasource.DataSource {
	attributes := map[string]schema.Attribute{
		"name":      schema.StringAttribute{Optional: true, MarkdownDescription: "Name of the Helm release. Default `" + stackName + "`."},
		"namespace": schema.StringAttribute{Optional: true, MarkdownDescription: "Namespace of the release. Default `" + stackNamespace + "`."},
	}
	for name, a := range driverStackSchema(context.Background()).Attributes {
		switch name {
		case "id", "chart_version", "app_version", "chart_digest", "revision", "status", "ready", "waiting_for":
			attributes[name] = shown(a)
		}
	}
	return &reader[driverStackDataModel]{name: "driver_stack", read: readDriverStack, schema: schema.Schema{
		Attributes: attributes,
		MarkdownDescription: "The gpufabric drivers of a cluster, by their Helm release, whichever client installed it, and whether they run: " +
			"for a configuration whose drivers another one installs. It is an error where there is no such release; a `postcondition` on `ready` " +
			"makes it one where the drivers do not run. Reading it needs the right to list Secrets in the namespace, where Helm keeps releases.",
	}}
}

func readDriverStack(ctx context.Context, client *cluster.Client, m *driverStackDataModel) (diag.Diagnostics, error) {
	name, namespace := or(m.Name.ValueString(), stackName), or(m.Namespace.ValueString(), stackNamespace)
	manager := release.NewManager(client, namespace)
	last, err := manager.Get(ctx, name)
	if err != nil {
		return nil, err
	}
	if last == nil {
		missing := fmt.Sprintf("There is no Helm release %s/%s in the cluster. Check name and namespace; where another configuration installs "+
			"it, apply that one first.", namespace, name)
		return diag.Diagnostics{diag.NewAttributeErrorDiagnostic(path.Root("name"), "Driver stack not found", missing)}, nil
	}
	state, err := manager.Rollout(ctx, last)
	if err != nil {
		return nil, err
	}
	m.ID, m.Revision, m.Status = types.StringValue(namespace+"/"+name), types.Int64Value(int64(last.Revision)), types.StringValue(last.Status)
	m.ChartVersion, m.AppVersion = types.StringValue(last.ChartVersion), types.StringValue(last.AppVersion)
	m.ChartDigest, m.Ready = types.StringValue(last.ChartDigest), types.BoolValue(state.Ready())
	// Which of the release's values are secret is recorded in the resource alone: none of them is repeated here.
	m.Waiting = stringList(redactionOf(release.Flatten(last.Values)).hideAll(state.Waiting))
	return nil, nil
}
