package provider

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/hashicorp/terraform-plugin-framework-validators/int64validator"
	"github.com/hashicorp/terraform-plugin-framework/ephemeral"
	"github.com/hashicorp/terraform-plugin-framework/ephemeral/schema"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"
	authv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	api "k8s.io/client-go/tools/clientcmd/api"

	"gpufabric.io/provider/internal/cluster"
)

var _ ephemeral.EphemeralResourceWithConfigure = (*kubeconfigResource)(nil)

// kubeconfigResource requests a short-lived token of a service account from the API server. Nothing of it enters plan or state.
type kubeconfigResource struct{ connection *cluster.Connection }

type kubeconfigModel struct {
	Namespace      types.String `tfsdk:"namespace"`
	ServiceAccount types.String `tfsdk:"service_account"`
	Seconds        types.Int64  `tfsdk:"expiration_seconds"`
	Token          types.String `tfsdk:"token"`
	Kubeconfig     types.String `tfsdk:"kubeconfig"`
	ExpiresAt      types.String `tfsdk:"expires_at"`
}

// The API server refuses tokens of less than ten minutes.
const (
	shortestToken = 600
	usualToken    = 3600
)

func (p *fabricProvider) EphemeralResources(context.Context) []func() ephemeral.EphemeralResource {
	return []func() ephemeral.EphemeralResource{func() ephemeral.EphemeralResource { return &kubeconfigResource{} }}
}

func (r *kubeconfigResource) Metadata(_ context.Context, req ephemeral.MetadataRequest, resp *ephemeral.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_kubeconfig"
}

func (r *kubeconfigResource) Schema(_ context.Context, _ ephemeral.SchemaRequest, resp *ephemeral.SchemaResponse) {
	resp.Schema = schema.Schema{
		MarkdownDescription: "A short-lived kubeconfig of a service account, for other providers and provisioners of the same run. It is " +
			"never written to plan or state. Needs Terraform 1.10 or OpenTofu 1.11.",
		Attributes: map[string]schema.Attribute{
			"namespace": schema.StringAttribute{
				Required:            true,
				Validators:          kubernetesLabel(),
				MarkdownDescription: "Namespace of the service account.",
			},
			"service_account": schema.StringAttribute{
				Required:            true,
				Validators:          kubernetesName(),
				MarkdownDescription: "Service account whose rights the kubeconfig has.",
			},
			"expiration_seconds": schema.Int64Attribute{Optional: true, Validators: []validator.Int64{int64validator.Between(shortestToken, 86400)},
				MarkdownDescription: "How long it is valid, 600 to 86400 seconds. Default 3600. The API server may give less."},
			"token": schema.StringAttribute{Computed: true, Sensitive: true, MarkdownDescription: "The bearer token."},
			"kubeconfig": schema.StringAttribute{
				Computed:            true,
				Sensitive:           true,
				MarkdownDescription: "The kubeconfig as YAML, with the token in it.",
			},
			"expires_at": schema.StringAttribute{Computed: true, MarkdownDescription: "When the token expires, RFC 3339."},
		},
	}
}

func (r *kubeconfigResource) Configure(_ context.Context, req ephemeral.ConfigureRequest, resp *ephemeral.ConfigureResponse) {
	r.connection = connectionFrom(req.ProviderData, &resp.Diagnostics)
}

func (r *kubeconfigResource) Open(ctx context.Context, req ephemeral.OpenRequest, resp *ephemeral.OpenResponse) {
	var m kubeconfigModel
	resp.Diagnostics.Append(req.Config.Get(ctx, &m)...)
	if resp.Diagnostics.HasError() {
		return
	}
	account := m.Namespace.ValueString() + "/" + m.ServiceAccount.ValueString()
	doing := "get a token of service account " + account
	client, err := r.connection.Client(ctx)
	if err != nil {
		addError(&resp.Diagnostics, doing, err)
		return
	}
	seconds := int64(usualToken)
	if !m.Seconds.IsNull() {
		seconds = m.Seconds.ValueInt64()
	}
	token, err := client.Typed.CoreV1().ServiceAccounts(m.Namespace.ValueString()).CreateToken(ctx, m.ServiceAccount.ValueString(),
		&authv1.TokenRequest{Spec: authv1.TokenRequestSpec{ExpirationSeconds: &seconds}}, metav1.CreateOptions{})
	if err != nil {
		addError(&resp.Diagnostics, doing, err)
		return
	}
	text, err := kubeconfig(client.Config, m.Namespace.ValueString(), m.ServiceAccount.ValueString(), token.Status.Token)
	if err != nil {
		addError(&resp.Diagnostics, doing, err)
		return
	}
	m.Token, m.Kubeconfig = types.StringValue(token.Status.Token), types.StringValue(text)
	m.ExpiresAt = types.StringValue(token.Status.ExpirationTimestamp.UTC().Format(time.RFC3339))
	resp.Diagnostics.Append(resp.Result.Set(ctx, &m)...)
}

// kubeconfig writes a kubeconfig for the same API server with another login.
func kubeconfig(config *rest.Config, namespace, name, token string) (string, error) {
	tls := rest.CopyConfig(config)
	if err := rest.LoadTLSFiles(tls); err != nil {
		return "", fmt.Errorf("read the API server's CA: %w", err)
	}
	out := api.NewConfig()
	out.Clusters["cluster"] = &api.Cluster{
		Server:                   config.Host,
		CertificateAuthorityData: tls.CAData,
		InsecureSkipTLSVerify:    tls.Insecure,
		TLSServerName:            tls.ServerName,
	}
	if config.Proxy != nil {
		to, err := url.Parse(config.Host)
		if err != nil {
			return "", fmt.Errorf("read the API server's address: %w", err)
		}
		proxy, err := config.Proxy(&http.Request{URL: to})
		if err != nil {
			return "", fmt.Errorf("find the proxy of the API server: %w", err)
		}
		if proxy != nil {
			out.Clusters["cluster"].ProxyURL = proxy.String()
		}
	}
	out.AuthInfos[name] = &api.AuthInfo{Token: token}
	out.Contexts[name] = &api.Context{Cluster: "cluster", AuthInfo: name, Namespace: namespace}
	out.CurrentContext = name
	text, err := clientcmd.Write(*out)
	return string(text), err
}
