// Package provider is the Terraform provider: the schemas, and the life cycles of resources over packages cluster, object and release.
package provider

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/hashicorp/terraform-plugin-framework-validators/listvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/provider"
	"github.com/hashicorp/terraform-plugin-framework/provider/schema"
	"github.com/hashicorp/terraform-plugin-framework/providerserver"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"helm.sh/helm/v3/pkg/kube"

	"gpufabric.io/provider/internal/cluster"
	"gpufabric.io/provider/internal/object"
)

// Address is the provider's source address.
const Address = "registry.terraform.io/gpufabric/gpufabric"

// New returns a constructor of the provider, as the plugin server wants it.
func New(version string) func() provider.Provider {
	return func() provider.Provider {
		return &fabricProvider{version: version, getenv: os.Getenv, origin: object.NewOrigin()}
	}
}

// Serve serves a provider to the Terraform or OpenTofu that started this process, until it hangs up; debug waits for a debugger, and
// prints how to attach Terraform.
func Serve(ctx context.Context, constructor func() provider.Provider, debug bool) error {
	// Helm would name itself after the executable, whose name holds the version: every provider upgrade would change the owner of every field.
	kube.ManagedFieldsManager = cluster.UserAgent
	return providerserver.Serve(ctx, constructor, providerserver.ServeOpts{Address: Address, Debug: debug})
}

var (
	_ provider.ProviderWithFunctions          = (*fabricProvider)(nil)
	_ provider.ProviderWithListResources      = (*fabricProvider)(nil)
	_ provider.ProviderWithEphemeralResources = (*fabricProvider)(nil)
	_ provider.ProviderWithActions            = (*fabricProvider)(nil)
)

type fabricProvider struct {
	version string
	getenv  func(string) string
	origin  *object.Origin

	patience time.Duration // see cluster.Settings
}

type providerModel struct {
	ConfigPath    types.String `tfsdk:"config_path"`
	ConfigPaths   types.List   `tfsdk:"config_paths"`
	KubeconfigRaw types.String `tfsdk:"kubeconfig_raw"`
	ConfigContext types.String `tfsdk:"config_context"`
	Host          types.String `tfsdk:"host"`
	Token         types.String `tfsdk:"token"`
	CA            types.String `tfsdk:"cluster_ca_certificate"`
	ClientCert    types.String `tfsdk:"client_certificate"`
	ClientKey     types.String `tfsdk:"client_key"`
	TLSServerName types.String `tfsdk:"tls_server_name"`
	ProxyURL      types.String `tfsdk:"proxy_url"`
	Insecure      types.Bool   `tfsdk:"insecure"`
	Exec          types.Object `tfsdk:"exec"`
	InCluster     types.Bool   `tfsdk:"in_cluster"`
}

type execModel struct {
	APIVersion types.String `tfsdk:"api_version"`
	Command    types.String `tfsdk:"command"`
	Args       types.List   `tfsdk:"args"`
	Env        types.Map    `tfsdk:"env"`
}

func (p *fabricProvider) Metadata(_ context.Context, _ provider.MetadataRequest, resp *provider.MetadataResponse) {
	resp.TypeName = "gpufabric"
	resp.Version = p.version
}

func (p *fabricProvider) Schema(_ context.Context, _ provider.SchemaRequest, resp *provider.SchemaResponse) {
	notEmpty := []validator.String{stringvalidator.LengthAtLeast(1)}
	resp.Schema = schema.Schema{
		MarkdownDescription: "Gives a Kubernetes cluster its GPU fabric: installs the gpufabric drivers and declares NVLink compute domains, " +
			"RDMA pools, vGPU profiles and MIG layouts.\n\n" +
			"One cluster must be named: by a kubeconfig (files or text), by `host`, or by `in_cluster`. The provider never falls back to " +
			"localhost or to `~/.kube/config` by itself.\n\n" +
			"What the block leaves out is taken from the environment, by the names that hashicorp/kubernetes uses: `KUBE_CTX`, `KUBE_TOKEN`, " +
			"`KUBE_CLUSTER_CA_CERT_DATA`, `KUBE_CLIENT_CERT_DATA`, `KUBE_CLIENT_KEY_DATA`, `KUBE_TLS_SERVER_NAME`, `KUBE_PROXY_URL`, " +
			"`KUBE_INSECURE`. `KUBE_CONFIG_PATH`, `KUBE_CONFIG_PATHS`, `KUBE_HOST` and `KUBECONFIG`, in this order, count only where the block " +
			"names no cluster.",
		Attributes: map[string]schema.Attribute{
			"config_path": schema.StringAttribute{
				Optional:            true,
				Validators:          append([]validator.String{stringvalidator.ConflictsWith(path.MatchRoot("config_paths"))}, notEmpty...),
				MarkdownDescription: "Path of a kubeconfig file.",
			},
			"config_paths": schema.ListAttribute{ElementType: types.StringType, Optional: true,
				Validators:          []validator.List{listvalidator.SizeAtLeast(1), listvalidator.ValueStringsAre(notEmpty...)},
				MarkdownDescription: "Paths of several kubeconfig files, merged as kubectl merges them."},
			"kubeconfig_raw": schema.StringAttribute{Optional: true, Sensitive: true, Validators: notEmpty,
				MarkdownDescription: "Text of a kubeconfig, for example of `ephemeral.gpufabric_kubeconfig` or of the resource that made the " +
					"cluster. Files that it names are looked up from the working directory."},
			"config_context": schema.StringAttribute{Optional: true, Validators: notEmpty,
				MarkdownDescription: "Context of the kubeconfig to use instead of its current-context."},
			"host": schema.StringAttribute{Optional: true, Validators: notEmpty,
				MarkdownDescription: "URL of the API server, for example `https://10.0.0.1:6443`, with `token`, a client certificate or `exec`. " +
					"Credentials are sent to `https` only."},
			"token": schema.StringAttribute{Optional: true, Sensitive: true, Validators: notEmpty,
				MarkdownDescription: "Bearer token. For applies that outlive it, use `exec`, which fetches a new one when the old one is refused."},
			"cluster_ca_certificate": schema.StringAttribute{Optional: true, Validators: notEmpty,
				MarkdownDescription: "PEM of the authority that signed the API server's certificate."},
			"client_certificate": schema.StringAttribute{Optional: true, Validators: notEmpty,
				MarkdownDescription: "PEM of a client certificate, together with `client_key`."},
			"client_key": schema.StringAttribute{Optional: true, Sensitive: true, Validators: notEmpty,
				MarkdownDescription: "PEM of the client certificate's key."},
			"tls_server_name": schema.StringAttribute{Optional: true, Validators: notEmpty,
				MarkdownDescription: "Name expected in the API server's certificate, where it differs from the address."},
			"proxy_url": schema.StringAttribute{Optional: true, Sensitive: true, Validators: notEmpty,
				MarkdownDescription: "Proxy through which the API server is reached. Sensitive, since it may hold a password."},
			"insecure": schema.BoolAttribute{Optional: true,
				MarkdownDescription: "Skip the check of the API server's certificate. For test clusters only."},
			"in_cluster": schema.BoolAttribute{Optional: true,
				MarkdownDescription: "Use the service account of the pod in which Terraform runs. The provider does not do so by default."},
			"exec": schema.SingleNestedAttribute{Optional: true,
				MarkdownDescription: "Command that prints credentials, as in a kubeconfig's `users[].user.exec`.",
				Attributes: map[string]schema.Attribute{
					"api_version": schema.StringAttribute{
						Required:            true,
						MarkdownDescription: "`client.authentication.k8s.io/v1` or `client.authentication.k8s.io/v1beta1`.",
						Validators: []validator.String{
							stringvalidator.OneOf("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"),
						},
					},
					"command": schema.StringAttribute{Required: true, Validators: notEmpty, MarkdownDescription: "Executable."},
					"args":    schema.ListAttribute{ElementType: types.StringType, Optional: true, MarkdownDescription: "Its arguments."},
					"env": schema.MapAttribute{
						ElementType:         types.StringType,
						Optional:            true,
						Sensitive:           true,
						MarkdownDescription: "Environment variables added for it.",
					},
				}},
		},
	}
}

func (p *fabricProvider) Configure(ctx context.Context, req provider.ConfigureRequest, resp *provider.ConfigureResponse) {
	var m providerModel
	resp.Diagnostics.Append(req.Config.Get(ctx, &m)...)
	if resp.Diagnostics.HasError() {
		return
	}
	if resp.Diagnostics.Append(nullElements(req.Config.Raw)...); resp.Diagnostics.HasError() {
		return
	}
	connection := p.connection(ctx, m, resp)
	if connection != nil && !connection.Known() && req.ClientCapabilities.DeferralAllowed {
		resp.Deferred = &provider.Deferred{Reason: provider.DeferredReasonProviderConfigUnknown}
	}
	resp.ResourceData = &providerData{connection, p.origin}
	resp.DataSourceData = connection
	resp.ListResourceData = connection
	resp.EphemeralResourceData = connection
	resp.ActionData = connection
}

// connection checks the configuration and wraps it; it does not connect. Mistakes are errors here, at the attribute at fault; values
// that are still unknown are not.
func (p *fabricProvider) connection(ctx context.Context, m providerModel, resp *provider.ConfigureResponse) *cluster.Connection {
	if unknown := m.unknown(); unknown != "" {
		return cluster.NewUnknownConnection(unknown)
	}
	settings := cluster.Settings{
		KubeconfigRaw: m.KubeconfigRaw.ValueString(),
		Context:       m.ConfigContext.ValueString(), Host: m.Host.ValueString(), Token: m.Token.ValueString(), CA: m.CA.ValueString(),
		ClientCert: m.ClientCert.ValueString(), ClientKey: m.ClientKey.ValueString(), TLSServerName: m.TLSServerName.ValueString(),
		ProxyURL: m.ProxyURL.ValueString(), Insecure: m.Insecure.ValueBool(), InCluster: m.InCluster.ValueBool(), Patience: p.patience,
	}
	if !m.ConfigPath.IsNull() {
		settings.ConfigPaths = []string{m.ConfigPath.ValueString()}
	}
	if !m.ConfigPaths.IsNull() {
		resp.Diagnostics.Append(m.ConfigPaths.ElementsAs(ctx, &settings.ConfigPaths, false)...)
	}
	if !m.Exec.IsNull() {
		var e execModel
		resp.Diagnostics.Append(m.Exec.As(ctx, &e, objectAsOptions)...)
		settings.Exec = &cluster.Exec{APIVersion: e.APIVersion.ValueString(), Command: e.Command.ValueString(), Env: map[string]string{}}
		if !e.Args.IsNull() {
			resp.Diagnostics.Append(e.Args.ElementsAs(ctx, &settings.Exec.Args, false)...)
		}
		if !e.Env.IsNull() {
			resp.Diagnostics.Append(e.Env.ElementsAs(ctx, &settings.Exec.Env, false)...)
		}
	}
	if resp.Diagnostics.HasError() {
		return nil
	}
	if p.fromEnvironment(&settings, m.Insecure.IsNull(), resp); resp.Diagnostics.HasError() {
		return nil
	}
	var later *cluster.NoFileError // a plan that creates does not need a cluster yet, and the file may be written in the same apply
	if _, _, err := settings.RESTConfig(); err != nil && !errors.As(err, &later) {
		addSettingError(&resp.Diagnostics, err)
	}
	return cluster.NewConnection(settings)
}

// fromEnvironment fills in attributes that the provider block omits. A variable that names a cluster counts only where the block
// names none.
func (p *fabricProvider) fromEnvironment(s *cluster.Settings, insecureUnset bool, resp *provider.ConfigureResponse) {
	named := func() bool { return len(s.ConfigPaths) > 0 || s.KubeconfigRaw != "" || s.Host != "" || s.InCluster }
	for _, variable := range []string{"KUBE_CONFIG_PATH", "KUBE_CONFIG_PATHS", "KUBE_HOST", "KUBECONFIG"} {
		value := p.getenv(variable)
		switch {
		case named() || value == "":
			continue
		case variable == "KUBE_HOST":
			s.Host = value
		case variable == "KUBE_CONFIG_PATH":
			s.ConfigPaths = []string{value}
		default:
			s.ConfigPaths = filepath.SplitList(value)
		}
		s.Variable = variable
	}
	take := func(to *string, variable string) {
		if *to == "" {
			*to = p.getenv(variable)
		}
	}
	if s.Host == "" && !s.InCluster {
		take(&s.Context, "KUBE_CTX")
	}
	if s.Exec == nil {
		take(&s.Token, "KUBE_TOKEN")
	}
	take(&s.ClientCert, "KUBE_CLIENT_CERT_DATA")
	take(&s.ClientKey, "KUBE_CLIENT_KEY_DATA")
	take(&s.TLSServerName, "KUBE_TLS_SERVER_NAME")
	take(&s.ProxyURL, "KUBE_PROXY_URL")
	if value := p.getenv("KUBE_INSECURE"); value != "" && insecureUnset {
		insecure, err := strconv.ParseBool(value)
		if err != nil {
			resp.Diagnostics.AddError("Wrong environment", fmt.Sprintf("KUBE_INSECURE=%s: write true or false.", value))
			return
		}
		s.Insecure = insecure
	}
	if !s.Insecure {
		take(&s.CA, "KUBE_CLUSTER_CA_CERT_DATA")
	}
}

// unknown names the first attribute whose value is unknown to Terraform.
func (m *providerModel) unknown() string {
	for _, a := range []struct {
		name    string
		unknown bool
	}{
		{"config_path", m.ConfigPath.IsUnknown()}, {"config_paths", m.ConfigPaths.IsUnknown() || listHasUnknown(m.ConfigPaths)},
		{"kubeconfig_raw", m.KubeconfigRaw.IsUnknown()}, {"config_context", m.ConfigContext.IsUnknown()},
		{"host", m.Host.IsUnknown()}, {"token", m.Token.IsUnknown()}, {"cluster_ca_certificate", m.CA.IsUnknown()},
		{"client_certificate", m.ClientCert.IsUnknown()}, {"client_key", m.ClientKey.IsUnknown()},
		{"tls_server_name", m.TLSServerName.IsUnknown()},
		{"proxy_url", m.ProxyURL.IsUnknown()}, {"insecure", m.Insecure.IsUnknown()}, {"in_cluster", m.InCluster.IsUnknown()},
		{"exec", objectHasUnknown(m.Exec)},
	} {
		if a.unknown {
			return a.name
		}
	}
	return ""
}

func (p *fabricProvider) Resources(context.Context) []func() resource.Resource {
	return []func() resource.Resource{
		newDriverStackResource,
		newComputeDomainResource,
		newRDMAPoolResource,
		newVGPUProfileResource,
		newMIGLayoutResource,
		newSecondaryNetworkResource,
	}
}

func (p *fabricProvider) DataSources(context.Context) []func() datasource.DataSource {
	return []func() datasource.DataSource{
		newNodesDataSource,
		newDevicesDataSource,
		newTopologyDataSource,
		newCapacityDataSource,
		newDriverStackDataSource,
		objectDataOf(computeDomainDefinition()),
		objectDataOf(rdmaPoolDefinition()),
		objectDataOf(vgpuProfileDefinition()),
		objectDataOf(migLayoutDefinition()),
		objectDataOf(secondaryNetworkDefinition()),
	}
}
