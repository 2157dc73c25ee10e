package provider

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/plancheck"
	"github.com/hashicorp/terraform-plugin-testing/terraform"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/provider/internal/apiserver"
)

// words makes a pattern that finds the text in a diagnostic, which Terraform breaks into lines anywhere.
func words(text string) *regexp.Regexp {
	parts := strings.Fields(text)
	for i, p := range parts {
		parts[i] = regexp.QuoteMeta(p)
	}
	return regexp.MustCompile(strings.Join(parts, `\s+`))
}

// testTrouble tries what goes wrong between provider and API server. After each failure no resource may be in the state, which the test
// framework checks by destroying nothing.
func testTrouble(t *testing.T, s *apiserver.Server) {
	host := func(more string) string {
		return fmt.Sprintf("provider \"gpufabric\" {\n  host = %q\n  %s\n}\n", s.URL, more)
	}
	ca := fmt.Sprintf("cluster_ca_certificate = %q", s.CA)
	closed := closedPort(t)
	aDomain := "resource \"gpufabric_compute_domain\" \"test\" {\n  name = \"trouble\"\n  channel = { resource_claim_template = \"x\" }\n}\n"
	aStack := "resource \"gpufabric_driver_stack\" \"test\" {\n  name = \"trouble\"\n  chart = \"testdata/stack\"\n}\n"
	for _, c := range []struct{ name, provider, resource, want string }{
		{"an address where nothing listens is " +
			"unreachable", fmt.Sprintf("provider \"gpufabric\" {\n  host = \"https://%s\"\n}\n", closed), aStack, "Cluster unreachable"},
		{"the message about an unreachable cluster names the address", fmt.Sprintf("provider \"gpufabric\" {\n  host = "+
			"\"https://%s\"\n}\n", closed), aDomain, closed + ": connect: connection refused"},
		{"a certificate of an unknown authority is not trusted", host("token = \"" + apiserver.AdminToken + "\""), aDomain,
			"Server certificate not trusted"},
		{"a wrong or expired token is rejected", host(ca + "\ntoken = \"expired\""), aDomain, "Credentials rejected"},
		{"a user without rights is told the verb and the " +
			"resource", host(ca + "\ntoken = \"" + apiserver.ViewerToken + "\""), aDomain,
			`cannot get resource "computedomains" in API group "resource.nvidia.com" in the namespace "default"`},
		{"a user without rights cannot install either", host(ca + "\ntoken = \"" + apiserver.ViewerToken + "\""), aStack,
			`cannot list resource "secrets"`},
		{"an answer that is not Kubernetes' is no cluster", fmt.Sprintf("provider \"gpufabric\" {\n  host = %q\n  insecure = true\n  "+
			"tls_server_name = \"x\"\n}\n", "http://"+notKubernetes(t)), aDomain, "does not answer as a Kubernetes API server"},
		{"a kind that is not installed is named with its CRD", as(s), strings.Replace(aDomain, "channel =", "timeouts = { create = \"6s\" }\n "+
			"channel =", 1), "CustomResourceDefinition computedomains.resource.nvidia.com"},
	} {
		t.Run(c.name, func(t *testing.T) {
			check(t, resource.TestStep{Config: c.provider + c.resource, ExpectError: words(c.want)})
		})
	}
	t.Run("a plan needs no cluster", func(t *testing.T) {
		check(t, resource.TestStep{
			Config:   fmt.Sprintf("provider \"gpufabric\" {\n  host = \"https://%s\"\n}\n", closed) + aDomain + aStack,
			PlanOnly: true, ExpectNonEmptyPlan: true,
		})
	})
	t.Run("a kubeconfig that another resource has yet to write is no error at plan time", func(t *testing.T) {
		config := fmt.Sprintf(
			"resource \"terraform_data\" \"cluster\" {\n  input = %q\n}\nprovider \"gpufabric\" {\n  config_path = "+
				"terraform_data.cluster.output\n}\n",
			s.Kubeconfig,
		)
		check(t, resource.TestStep{Config: config + aStack, Check: resource.TestCheckResourceAttr(stackAddress, "ready", "true")})
	})
	t.Run("an API server that goes away between two applies leaves the state right, and the next apply goes on", func(t *testing.T) {
		s.ServeDomains(t, func(string) apiserver.Domain { return apiserver.Domain{Status: "Ready"} })
		check(
			t,
			resource.TestStep{Config: stack(s, "gone", "")},
			resource.TestStep{
				PreConfig:   s.Pause,
				Config:      stack(s, "gone", "values = [\"controller: {replicas: 2}\"]"),
				ExpectError: words("Cluster unreachable"),
			},
			resource.TestStep{PreConfig: func() { s.Resume(t) }, Config: stack(s, "gone", "values = [\"controller: {replicas: 2}\"]"),
				ConfigPlanChecks: resource.ConfigPlanChecks{
					PreApply: []plancheck.PlanCheck{plancheck.ExpectResourceAction(stackAddress, plancheck.ResourceActionUpdate)},
				},
				Check: resource.TestCheckResourceAttr(stackAddress, "revision", "2")},
		)
	})
}

// testInterruptedApply takes the API server away after three of eight domains were written.
func testInterruptedApply(t *testing.T, s *apiserver.Server) {
	installCRD(t, s, "testdata/stack/templates/crd.yaml")
	s.ServeDomains(t, func(string) apiserver.Domain { return apiserver.Domain{Status: "Ready"} })
	const n, written = 8, 3
	proxy := newCounter(t, s)
	var before map[string]types.UID
	check(t, resource.TestStep{
		PreConfig: func() { proxy.leaveAfter(written) }, Config: proxy.domains("interrupted", n, "20s"),
		ExpectError: words("What was done so far is in the state; run terraform apply again"),
	}, resource.TestStep{
		PreConfig: func() {
			if before = domainUIDs(t, s, "interrupted-"); len(before) != written {
				t.Errorf("%d domains were written before the API server went away, want %d", len(before), written)
			}
			proxy.leaveAfter(-1)
		},
		Config: proxy.domains("interrupted", n, "5m"),
		Check: func(*terraform.State) error {
			after := domainUIDs(t, s, "interrupted-")
			if len(after) != n {
				t.Errorf("%d domains after the second apply, want %d", len(after), n)
			}
			for name, uid := range before {
				if after[name] != uid {
					t.Errorf("%s was made again: the first apply lost it, or left it tainted", name)
				}
			}
			return nil
		},
	})
}

// domainUIDs are the compute domains whose names begin with prefix.
func domainUIDs(t *testing.T, s *apiserver.Server, prefix string) map[string]types.UID {
	t.Helper()
	list, err := s.Dynamic.Resource(computeDomains).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	uids := map[string]types.UID{}
	for _, item := range list.Items {
		if strings.HasPrefix(item.GetName(), prefix) {
			uids[item.GetName()] = item.GetUID()
		}
	}
	return uids
}

// closedPort returns a local address on which nothing listens.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer func() { must(t, l.Close()) }()
	return l.Addr().String()
}

// notKubernetes serves something else over HTTP.
func notKubernetes(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>a login page</html>") }))
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// TestProviderConfiguration tries provider blocks that name no usable cluster. No server is needed: all are refused before connecting.
//
//shows:tf-auth
func TestProviderConfiguration(t *testing.T) {
	needTerraform(t)
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	kubeconfig := func(name, server, current string) string {
		return write(
			name,
			fmt.Sprintf(
				"apiVersion: v1\nkind: Config\ncurrent-context: %s\nclusters: [{name: c, cluster: {server: %q}}]\nusers: [{name: u, user: {token: "+
					"t}}]\ncontexts: [{name: one, context: {cluster: c, user: u}}]\n",
				current,
				server,
			),
		)
	}
	good := kubeconfig("good", "https://127.0.0.1:1", "one")
	for _, c := range []struct{ name, block, env, want string }{
		{"nothing names a cluster", ``, "", "No cluster is named"},
		{"KUBECONFIG names a missing file", ``, filepath.Join(dir, "missing"), "KUBECONFIG="},
		{"config_path names a missing file", `config_path = "/nowhere/config"`, "", "cannot read the kubeconfig: stat /nowhere/config: no " +
			"such file or directory"},
		{"config_path is empty", `config_path = ""`, "", "string length must be at least 1"},
		{"config_path names a file that is no " +
			"kubeconfig", fmt.Sprintf("config_path = %q", write("garbage", "{{{")), "", "the kubeconfig cannot be understood"},
		{"config_path and config_paths are both given", fmt.Sprintf("config_path = %q\nconfig_paths = [%q]", good, good), "",
			`Attribute "config_paths" cannot be specified when "config_path" is specified`},
		{"config_paths is empty", `config_paths = []`, "", "list must contain at least 1 elements"},
		{"context is not in the file", fmt.Sprintf("config_path = %q\ncontext = \"two\"", good), "", `there is no context "two"`},
		{"the contexts there are, are named", fmt.Sprintf("config_path = %q\ncontext = \"two\"", good), "", "It has: one."},
		{"the file has no current-context", fmt.Sprintf("config_path = %q", kubeconfig("no-current", "https://127.0.0.1:1", `""`)), "",
			"has no current-context. Set context to one of: one."},
		{"the cluster has no server", fmt.Sprintf("config_path = %q", kubeconfig("no-server", "", "one")), "", "has no server address"},
		{"host and config_path are both given", fmt.Sprintf("config_path = %q\nhost = "+
			"\"https://127.0.0.1:1\"", good), "", "cannot be combined with config_path"},
		{"host is no URL", `host = "cluster.example"`, "", "is not a URL of an API server"},
		{"host has a scheme that is not HTTP", `host = "ftp://127.0.0.1"`, "", "is not a URL of an API server"},
		{"host comes with a context", "host = \"https://127.0.0.1:1\"\ncontext = \"one\"", "", "picks an entry of a kubeconfig file"},
		{"in_cluster outside a pod", `in_cluster = true`, "", "needs a pod's service account"},
		{"in_cluster and host are both given", "in_cluster = true\nhost = \"https://127.0.0.1:1\"", "", "cannot be combined"},
		{"insecure comes with a CA", "host = \"https://127.0.0.1:1\"\ninsecure = true\ncluster_ca_certificate = \"x\"", "",
			"cannot be combined with cluster_ca_certificate"},
		{"a certificate has no key", "host = \"https://127.0.0.1:1\"\nclient_certificate = \"x\"", "", "belong together"},
		{"a key has no certificate", "host = \"https://127.0.0.1:1\"\nclient_key = \"x\"", "", "belong together"},
		{"the CA is not PEM", "host = \"https://127.0.0.1:1\"\ncluster_ca_certificate = " +
			"\"bm90IHBlbQ==\"", "", "not file names and not base64 of PEM"},
		{"the client certificate is not PEM", "host = \"https://127.0.0.1:1\"\nclient_certificate = \"x\"\nclient_key = \"y\"", "",
			"the TLS settings cannot be used"},
		{"token and exec are both given", "host = \"https://127.0.0.1:1\"\ntoken = \"t\"\nexec = { api_version = " +
			"\"client.authentication.k8s.io/v1\", command = \"true\" }", "", "two ways to log in"},
		{"exec has an unknown API version", "host = \"https://127.0.0.1:1\"\nexec = { api_version = \"v1alpha1\", command = \"true\" }", "",
			`value must be one of: ["client.authentication.k8s.io/v1"`},
		{"exec has no command", "host = \"https://127.0.0.1:1\"\nexec = { api_version = \"client.authentication.k8s.io/v1\" }", "",
			`attribute "command" is required`},
		{"the proxy is no URL", "host = \"https://127.0.0.1:1\"\nproxy_url = " +
			"\"proxy\"", "", "is not a URL; write it like http://proxy.example:3128"},
		{"a token would go over http", "host = \"http://127.0.0.1:1\"\ntoken = \"t\"", "", "a token would go to http://127.0.0.1:1 unencrypted"},
		{"a command's credentials would go over http", "host = \"http://127.0.0.1:1\"\nexec = { api_version = " +
			"\"client.authentication.k8s.io/v1\", command = \"true\" }", "",
			"the credentials of exec would go to http://127.0.0.1:1 unencrypted"},
		{"a kubeconfig's token would go over http", fmt.Sprintf("config_path = %q\ntoken = \"t\"",
			kubeconfig("plain", "http://127.0.0.1:1", "one")), "", "unencrypted"},
		{"host names a user", "host = \"https://admin:pass@127.0.0.1:1\"", "", "host names a user"},
		{"an attribute is misspelt", "hots = \"https://127.0.0.1:1\"", "", `An argument named "hots" is not expected here`},
		{"a flag is no boolean", "host = \"https://127.0.0.1:1\"\ninsecure = \"maybe\"", "", "a bool is required"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("KUBECONFIG", c.env)
			block := fmt.Sprintf("provider \"gpufabric\" {\n%s\n}\n", c.block)
			check(
				t,
				resource.TestStep{
					Config: block + "resource \"gpufabric_compute_domain\" \"test\" {\n  name = \"x\"\n  channel = { resource_claim_template = " +
						"\"x\" }\n}\n",
					ExpectError: words(c.want),
				},
			)
		})
	}
}
