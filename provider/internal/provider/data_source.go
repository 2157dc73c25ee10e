package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/datasource/schema"
	"github.com/hashicorp/terraform-plugin-framework/diag"

	"gpufabric.io/provider/internal/cluster"
)

// reader is a data source: its schema, and how its model is filled from the cluster.
type reader[M any] struct {
	name   string
	schema schema.Schema
	read   func(ctx context.Context, client *cluster.Client, m *M) (diag.Diagnostics, error)

	connection *cluster.Connection
}

var (
	_ datasource.DataSourceWithConfigure      = (*reader[struct{}])(nil)
	_ datasource.DataSourceWithValidateConfig = (*reader[struct{}])(nil)
)

func (r *reader[M]) Metadata(_ context.Context, req datasource.MetadataRequest, resp *datasource.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_" + r.name
}

func (r *reader[M]) Schema(_ context.Context, _ datasource.SchemaRequest, resp *datasource.SchemaResponse) {
	resp.Schema = r.schema
}

func (r *reader[M]) Configure(_ context.Context, req datasource.ConfigureRequest, resp *datasource.ConfigureResponse) {
	r.connection = connectionFrom(req.ProviderData, &resp.Diagnostics)
}

func (r *reader[M]) ValidateConfig(_ context.Context, req datasource.ValidateConfigRequest, resp *datasource.ValidateConfigResponse) {
	resp.Diagnostics.Append(nullElements(req.Config.Raw)...)
}

func (r *reader[M]) Read(ctx context.Context, req datasource.ReadRequest, resp *datasource.ReadResponse) {
	var m M
	resp.Diagnostics.Append(req.Config.Get(ctx, &m)...)
	if resp.Diagnostics.HasError() {
		return
	}
	client, err := r.connection.Client(ctx)
	if err != nil {
		addError(&resp.Diagnostics, "read gpufabric_"+r.name, err)
		return
	}
	diags, err := r.read(ctx, client, &m)
	resp.Diagnostics.Append(diags...)
	if err != nil {
		addError(&resp.Diagnostics, "read gpufabric_"+r.name, err)
		return
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, &m)...)
}
