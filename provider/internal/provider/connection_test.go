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

	"github.com/hashicorp/terraform-plugin-go/tftypes"
	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/plancheck"
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
		testLaterKubeconfig(t, s, aStack)
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

// testLaterKubeconfig plans while the path of the kubeconfig is unknown, or its file is not there, and applies when it is.
func testLaterKubeconfig(t *testing.T, s *apiserver.Server, resource string) {
	for _, attribute := range []string{"config_path", "kubeconfig_raw", "a file"} {
		t.Run(attribute, func(t *testing.T) {
			c := newCore(t)
			file := filepath.Join(t.TempDir(), "config")
			value := file
			if attribute == "kubeconfig_raw" {
				value = kubeconfigText(t, s)
			}
			known, err := c.parse(fmt.Sprintf("provider \"gpufabric\" {\n  %s = %q\n}\n", strings.Replace(attribute, "a file", "config_path", 1),
				value) + resource)
			must(t, err)
			planned := *known
			if attribute != "a file" {
				settings := fields(known.provider)
				settings[attribute] = tftypes.NewValue(tftypes.String, tftypes.UnknownValue)
				planned.provider = tftypes.NewValue(known.provider.Type(), settings)
			}
			changes, err := c.preview(t.Context(), &planned)
			must(t, err)
			must(t, os.WriteFile(file, []byte(kubeconfigText(t, s)), 0o600))
			server, err := c.connect(t.Context(), known)
			must(t, err)
			must(t, c.apply(t.Context(), server, changes))
			if ready := fields(c.instances[stackAddress].state)["ready"]; !ready.Equal(tftypes.NewValue(tftypes.Bool, true)) {
				t.Errorf("ready: %s", ready)
			}
			known.blocks = nil
			must(t, c.converge(t.Context(), known, nil))
		})
	}
}

func kubeconfigText(t *testing.T, s *apiserver.Server) string {
	t.Helper()
	text, err := os.ReadFile(s.Kubeconfig)
	must(t, err)
	return string(text)
}

// testLogins reads the cluster by each way to name it, as an administrator, and by the environment.
func testLogins(t *testing.T, s *apiserver.Server) {
	for _, name := range []string{"KUBECONFIG", "KUBE_CONFIG_PATH", "KUBE_CONFIG_PATHS", "KUBE_HOST", "KUBE_TOKEN"} {
		t.Setenv(name, "")
	}
	publishRack(t, s)
	empty := filepath.Join(t.TempDir(), "empty")
	must(t, os.WriteFile(empty, []byte("apiVersion: v1\nkind: Config\n"), 0o600))
	certificate := func(line string) string { return fmt.Sprintf("%s\ncluster_ca_certificate = %q", line, s.CA) }
	for _, c := range []struct {
		name, block string
		env         map[string]string
	}{
		{"config_path", fmt.Sprintf("config_path = %q", s.Kubeconfig), nil},
		{"config_paths, of which the first has nothing", fmt.Sprintf("config_paths = [%q, %q]", empty, s.Kubeconfig), nil},
		{"kubeconfig_raw", fmt.Sprintf("kubeconfig_raw = %q", kubeconfigText(t, s)), nil},
		{"kubeconfig_raw with a context", fmt.Sprintf("kubeconfig_raw = %q\nconfig_context = \"test\"", kubeconfigText(t, s)), nil},
		{"host and token", certificate(fmt.Sprintf("host = %q\ntoken = %q", s.URL, apiserver.AdminToken)), nil},
		{"KUBE_CONFIG_PATH", "", map[string]string{"KUBE_CONFIG_PATH": s.Kubeconfig}},
		{"KUBE_CONFIG_PATHS", "", map[string]string{"KUBE_CONFIG_PATHS": empty + string(os.PathListSeparator) + s.Kubeconfig}},
		{"KUBE_CONFIG_PATH and KUBE_CTX", "", map[string]string{"KUBE_CONFIG_PATH": s.Kubeconfig, "KUBE_CTX": "test"}},
		{"KUBECONFIG", "", map[string]string{"KUBECONFIG": s.Kubeconfig}},
		{"KUBE_HOST, KUBE_TOKEN and KUBE_CLUSTER_CA_CERT_DATA", "",
			map[string]string{"KUBE_HOST": s.URL, "KUBE_TOKEN": apiserver.AdminToken, "KUBE_CLUSTER_CA_CERT_DATA": s.CA}},
		{"KUBE_HOST, KUBE_TOKEN and KUBE_INSECURE", "",
			map[string]string{"KUBE_HOST": s.URL, "KUBE_TOKEN": apiserver.AdminToken, "KUBE_INSECURE": "true"}},
		{"a block beside variables of another cluster", fmt.Sprintf("config_path = %q", s.Kubeconfig),
			map[string]string{"KUBE_HOST": "https://127.0.0.1:1", "KUBECONFIG": empty + ".missing"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for name, value := range c.env {
				t.Setenv(name, value)
			}
			check(t, resource.TestStep{Config: "provider \"gpufabric\" {\n" + c.block + "\n}\ndata \"gpufabric_nodes\" \"test\" {}\n",
				Check: resource.TestCheckResourceAttrSet("data.gpufabric_nodes.test", "nodes.0.name")})
		})
	}
}

// testInterruptedApply takes the API server away after three of eight domains were written.
func testInterruptedApply(t *testing.T, s *apiserver.Server, rc string) {
	const n, written = 8, 3
	proxy := newCounter(t, s)
	proxy.leaveAfter(written)
	c := inNewDirectory(t, rc, proxy.domains("interrupted", n, "20s"))
	fails(t, c, "What was done so far is in the state; run terraform apply again", "apply", "-auto-approve")
	before := domainUIDs(t, s, "interrupted-")
	if len(before) != written {
		t.Errorf("%d domains were written before the API server went away, want %d", len(before), written)
	}
	proxy.leaveAfter(-1)
	c.configure(proxy.domains("interrupted", n, "5m"))
	c.run("apply", "-auto-approve")
	c.unchanged()
	after := domainUIDs(t, s, "interrupted-")
	if len(after) != n {
		t.Errorf("%d domains after the second apply, want %d", len(after), n)
	}
	for name, uid := range before {
		if after[name] != uid {
			t.Errorf("%s was made again: the first apply lost it, or left it tainted", name)
		}
	}
	c.run("destroy", "-auto-approve")
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

// TestProviderRejectsUnusableConfiguration tries provider blocks that name no usable cluster. No server is needed: all are refused
// before connecting.
func TestProviderRejectsUnusableConfiguration(t *testing.T) {
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
	text := func(file string) string {
		content, err := os.ReadFile(file)
		must(t, err)
		return string(content)
	}
	t.Setenv("KUBECONFIG", "")
	good := kubeconfig("good", "https://127.0.0.1:1", "one")
	for _, c := range []struct{ name, block, env, want string }{
		{"nothing names a cluster", ``, "", "No cluster is named"},
		{"KUBECONFIG names a missing file", ``, "KUBECONFIG=" + filepath.Join(dir, "missing"), "KUBECONFIG="},
		{"KUBE_CONFIG_PATH names a missing file", ``, "KUBE_CONFIG_PATH=" + filepath.Join(dir, "missing"), "KUBE_CONFIG_PATH="},
		{"KUBE_HOST is no URL", ``, "KUBE_HOST=cluster.example", `KUBE_HOST: host = "cluster.example" is not a URL`},
		{"KUBE_TOKEN would go over http", `host = "http://127.0.0.1:1"`, "KUBE_TOKEN=t", "unencrypted"},
		{"KUBE_CTX is not in the file", fmt.Sprintf("config_path = %q", good), "KUBE_CTX=two", `there is no context "two"`},
		{"KUBE_CTX does not override config_context", fmt.Sprintf("config_path = %q\nconfig_context = \"three\"", good), "KUBE_CTX=one",
			`there is no context "three"`},
		{"KUBE_INSECURE is no boolean", `host = "https://127.0.0.1:1"`, "KUBE_INSECURE=maybe", "write true or false"},
		{"KUBE_CLUSTER_CA_CERT_DATA is not PEM", `host = "https://127.0.0.1:1"`, "KUBE_CLUSTER_CA_CERT_DATA=x", "Certificates and keys are PEM"},
		{"KUBE_HOST does not count where the block names a cluster", fmt.Sprintf("config_path = %q\nconfig_context = \"two\"", good),
			"KUBE_HOST=https://127.0.0.1:1", `there is no context "two"`},
		{"kubeconfig_raw is a path", fmt.Sprintf("kubeconfig_raw = %q", good), "", "Give the file's content, not its path"},
		{"kubeconfig_raw lacks the context", fmt.Sprintf("kubeconfig_raw = %q\nconfig_context = \"two\"", text(good)), "", "It has: one."},
		{"kubeconfig_raw and config_path are both given", fmt.Sprintf("kubeconfig_raw = %q\nconfig_path = %q", text(good), good), "",
			"kubeconfig_raw cannot be combined with config_path"},
		{"config_path names a missing file", `config_path = "/nowhere/config"`, "", "cannot read the kubeconfig: stat /nowhere/config: no " +
			"such file or directory"},
		{"config_path is empty", `config_path = ""`, "", "string length must be at least 1"},
		{"config_path names a file that is no " +
			"kubeconfig", fmt.Sprintf("config_path = %q", write("garbage", "{{{")), "", "the kubeconfig cannot be understood"},
		{"config_path and config_paths are both given", fmt.Sprintf("config_path = %q\nconfig_paths = [%q]", good, good), "",
			`Attribute "config_paths" cannot be specified when "config_path" is specified`},
		{"config_paths is empty", `config_paths = []`, "", "list must contain at least 1 elements"},
		{"config_context is not in the file", fmt.Sprintf("config_path = %q\nconfig_context = \"two\"", good), "", `there is no context "two"`},
		{"the contexts there are, are named", fmt.Sprintf("config_path = %q\nconfig_context = \"two\"", good), "", "It has: one."},
		{"the file has no current-context", fmt.Sprintf("config_path = %q", kubeconfig("no-current", "https://127.0.0.1:1", `""`)), "",
			"has no current-context. Set config_context to one of: one."},
		{"the cluster has no server", fmt.Sprintf("config_path = %q", kubeconfig("no-server", "", "one")), "", "has no server address"},
		{"host and config_path are both given", fmt.Sprintf("config_path = %q\nhost = "+
			"\"https://127.0.0.1:1\"", good), "", "cannot be combined with config_path"},
		{"host is no URL", `host = "cluster.example"`, "", "is not a URL of an API server"},
		{"host has a scheme that is not HTTP", `host = "ftp://127.0.0.1"`, "", "is not a URL of an API server"},
		{"host comes with a config_context", "host = \"https://127.0.0.1:1\"\nconfig_context = \"one\"", "",
			"picks an entry of a kubeconfig file"},
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
			if name, value, given := strings.Cut(c.env, "="); given {
				t.Setenv(name, value)
			}
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
