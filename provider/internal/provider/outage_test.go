package provider

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"gpufabric.io/provider/internal/apiserver"
)

// proxyTo serves the API server at another address, by TLS; answer has each request first, and returns whether it has dealt with it.
func proxyTo(t *testing.T, s *apiserver.Server, answer func(http.ResponseWriter, *http.Request) bool) (address string) {
	t.Helper()
	target, err := url.Parse(s.URL)
	must(t, err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(s.CA))
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, MaxIdleConnsPerHost: 50},
		FlushInterval: -1, // watches are streams
	}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if answer(w, r) {
			return
		}
		// An HTTP/1 server closes the body when it begins to answer. The proxy may not have read its end then, and ends the answer.
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the client is gone
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections) // open watches would hold Close
	return server.URL
}

// outage is a proxy before the API server that misbehaves in one way at a time.
type outage struct {
	url   string
	way   atomic.Pointer[func(http.ResponseWriter, *http.Request) bool]
	asked atomic.Int64 // requests since the way was set
}

func newOutage(t *testing.T, s *apiserver.Server) *outage {
	t.Helper()
	o := &outage{}
	o.url = proxyTo(t, s, func(w http.ResponseWriter, r *http.Request) bool {
		o.asked.Add(1)
		way := o.way.Load()
		return way != nil && (*way)(w, r)
	})
	return o
}

func (o *outage) set(way func(http.ResponseWriter, *http.Request) bool) {
	o.way.Store(&way)
	o.asked.Store(0)
}

func (o *outage) heal() { o.way.Store(nil) }

// dead closes every connection without an answer.
func (o *outage) dead(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) }

// silent accepts every request and answers none.
func (o *outage) silent(_ http.ResponseWriter, r *http.Request) bool {
	_, _ = io.Copy(io.Discard, r.Body) // until the client hangs up, which is seen once the body was read
	<-r.Context().Done()
	return true
}

// withoutStore is an API server whose etcd is away: it answers what it knows itself.
func (o *outage) withoutStore(w http.ResponseWriter, r *http.Request) bool {
	return r.URL.Path != "/version" && o.silent(w, r)
}

// nowAndThen returns a way in which one of six requests is turned away, by each status in turn. Where saysWhen, three of four of these
// answers ask the client to come back at once; otherwise it comes back after a second.
func (o *outage) nowAndThen(saysWhen bool, status ...int) func(http.ResponseWriter, *http.Request) bool {
	var seen atomic.Int64
	return func(w http.ResponseWriter, _ *http.Request) bool {
		n := seen.Add(1)
		if n%6 != 0 {
			return false
		}
		if saysWhen && n/6%4 != 0 {
			w.Header().Set("Retry-After", "0")
		}
		http.Error(w, "too busy at the moment", status[n/6%int64(len(status))])
		return true
	}
}

// patient is the environment of a provider that waits for an API server that answers slowly; hasty that of one that does not wait long.
const patient, hasty = patienceVariable + "=1m", patienceVariable + "=10s"

// inOutage is inNewDirectory with a variable team and a patient provider, the last of its environment.
func inOutage(t *testing.T, rc, config string) *cli {
	t.Helper()
	c := inNewDirectory(t, rc, "variable \"team\" { type = string }\n"+config)
	c.vars, c.env = []string{"-var", "team=a"}, append(c.env, patient)
	return c
}

// through returns the arguments of a provider block for the API server behind the proxy.
func (o *outage) through() string {
	return fmt.Sprintf("  host = %q\n  token = %q\n  insecure = true\n", o.url, apiserver.AdminToken)
}

// testReleaseOutage installs, upgrades and removes a release while the API server turns requests away for a moment.
func testReleaseOutage(t *testing.T, s *apiserver.Server, rc string) {
	o := newOutage(t, s)
	c := inOutage(t, rc, fmt.Sprintf("provider \"gpufabric\" {\n%s}\n"+
		"resource \"gpufabric_driver_stack\" \"test\" {\n  name = \"refused\"\n  chart = %q\n  namespace = \"refused-system\"\n"+
		"  values = [yamlencode({ controller = { replicas = var.team == \"a\" ? 1 : 2 } })]\n}\n",
		o.through(), absolute(t, "testdata/stack")))
	o.set(o.nowAndThen(true, http.StatusTooManyRequests))
	contains(t, c.run("apply", "-auto-approve"), "1 added")
	c.vars = []string{"-var", "team=b"}
	contains(t, c.run("apply", "-auto-approve"), "1 changed")
	c.unchanged()
	contains(t, c.run("destroy", "-auto-approve"), "1 destroyed")
}

// testOutages holds the provider as a program under Terraform to its words about clusters that are not there, or not well: what two
// aliases do to each other, silence, refusals for a moment, an API server that goes away, and a cluster that the same apply makes.
func testOutages(t *testing.T, s *apiserver.Server, rc string) {
	t.Run("an apply that is interrupted", func(t *testing.T) {
		t.Parallel() // most of it is waiting
		testInterruptedApply(t, s, rc)
	})
	publishRack(t, s)
	for _, way := range []struct {
		name string
		of   func(*outage) func(http.ResponseWriter, *http.Request) bool
		want string
	}{
		{"dead", func(o *outage) func(http.ResponseWriter, *http.Request) bool { return o.dead }, "Cluster unreachable"},
		{"silent", func(o *outage) func(http.ResponseWriter, *http.Request) bool { return o.silent }, "Cluster unreachable"},
		{"without its store", func(o *outage) func(http.ResponseWriter, *http.Request) bool { return o.withoutStore },
			"The API server does not answer"},
	} {
		t.Run("a cluster behind one of two aliases that is "+way.name, func(t *testing.T) {
			t.Parallel() // most of it is waiting
			o, name := newOutage(t, s), strings.Fields(way.name)[0]
			c := inOutage(t, rc, fmt.Sprintf(`
provider "gpufabric" {
  alias       = "well"
  config_path = %q
}
provider "gpufabric" {
  alias = "ill"
%s}
resource "gpufabric_compute_domain" "well" {
  provider = gpufabric.well
  name     = "well-%s"
  labels   = { team = var.team }
  channel  = { resource_claim_template = "well" }
}
resource "gpufabric_rdma_pool" "ill" {
  provider      = gpufabric.ill
  count         = 25
  name          = "ill-%s-${count.index}"
  labels        = { team = var.team }
  resource_name = "ill_%s_${count.index}"
  devices       = ["ib0"]
}
`, s.Kubeconfig, o.through(), name, name, name))
			has := func(want string) {
				t.Helper()
				if got := len(strings.Fields(c.plain("state", "list"))); fmt.Sprint(got) != want {
					t.Errorf("%d objects in the state, want %s", got, want)
				}
			}
			fall := func() {
				o.set(way.of(o))
				c.env[len(c.env)-1] = hasty
			}
			heal := func() {
				o.heal()
				c.env[len(c.env)-1] = patient
			}
			fall()
			contains(t, c.run("plan"), "26 to add")
			fails(t, c, way.want, "apply", "-auto-approve")
			has("1")
			heal()
			contains(t, c.run("apply", "-auto-approve"), "25 added, 0 changed, 0 destroyed")
			fall()
			fails(t, c, way.want, "plan")
			if n := o.asked.Load(); n > 40 { // ten at a time, and nothing more once it is known
				t.Errorf("a cluster that is %s was asked %d times in one plan", way.name, n)
			}
			c.vars = []string{"-var", "team=b"}
			contains(t, c.run("apply", "-auto-approve", "-target=gpufabric_compute_domain.well"), "0 added, 1 changed, 0 destroyed")
			contains(t, c.run("plan", "-refresh=false"), "0 to add, 25 to change, 0 to destroy")
			fails(t, c, way.want, "destroy", "-auto-approve", "-refresh=false")
			has("25")
			heal()
			contains(t, c.run("destroy", "-auto-approve"), "25 destroyed")
		})
	}
	t.Run("429 and 500 now and then", func(t *testing.T) {
		t.Parallel()
		o := newOutage(t, s)
		c := inOutage(t, rc, fmt.Sprintf(`
provider "gpufabric" {
%s}
resource "gpufabric_compute_domain" "test" {
  count   = 5
  name    = "flaky-${count.index}"
  labels  = { team = var.team }
  channel = { resource_claim_template = "flaky-${count.index}" }
}
data "gpufabric_nodes" "all" {}
`, o.through()))
		o.set(o.nowAndThen(false, http.StatusTooManyRequests, http.StatusInternalServerError))
		contains(t, c.run("apply", "-auto-approve"), "5 added")
		c.unchanged()
		c.vars = []string{"-var", "team=b"}
		contains(t, c.run("apply", "-auto-approve"), "5 changed")
		contains(t, c.run("destroy", "-auto-approve"), "5 destroyed")
	})
	t.Run("a cluster that the same apply makes, and makes anew", func(t *testing.T) {
		t.Parallel()
		c := inOutage(t, rc, fmt.Sprintf(`
resource "terraform_data" "cluster" {
  input            = abspath("kubeconfig")
  triggers_replace = var.team
  provisioner "local-exec" {
    command = "cp %s kubeconfig"
  }
}
provider "gpufabric" {
  config_path = terraform_data.cluster.output
}
resource "gpufabric_compute_domain" "test" {
  name    = "later"
  channel = { resource_claim_template = "later" }
}
data "gpufabric_nodes" "all" {
  depends_on = [terraform_data.cluster]
}
output "first" { value = data.gpufabric_nodes.all.nodes[0].name }
`, s.Kubeconfig))
		contains(t, c.run("apply", "-auto-approve"), "2 added")
		c.unchanged()
		c.vars = []string{"-var", "team=b"}
		contains(t, oneLine(c.run("plan")), "Not refreshed", "1 to add, 0 to change, 1 to destroy")
		contains(t, c.run("apply", "-auto-approve"), "1 added, 0 changed, 1 destroyed")
		contains(t, c.run("destroy", "-auto-approve"), "2 destroyed")
	})
	t.Run("a kubeconfig file that the same apply writes", func(t *testing.T) {
		t.Parallel()
		c := inOutage(t, rc, fmt.Sprintf(`
resource "terraform_data" "cluster" {
  provisioner "local-exec" {
    command = "cp %s kubeconfig"
  }
}
provider "gpufabric" {
  config_path = "${path.module}/kubeconfig"
}
resource "gpufabric_compute_domain" "test" {
  name       = "file"
  channel    = { resource_claim_template = "file" }
  labels     = { team = var.team }
  depends_on = [terraform_data.cluster]
}
`, s.Kubeconfig))
		contains(t, c.run("apply", "-auto-approve"), "2 added")
		c.unchanged()
		must(t, os.Remove(filepath.Join(c.dir, "kubeconfig")))
		fails(t, c, "kubeconfig", "plan")
		must(t, os.WriteFile(filepath.Join(c.dir, "kubeconfig"), []byte(kubeconfigText(t, s)), 0o600))
		contains(t, c.run("destroy", "-auto-approve"), "2 destroyed")
	})
}

// fails runs a command that must fail with the words.
func fails(t *testing.T, c *cli, want string, args ...string) {
	t.Helper()
	out, err := c.try(args...)
	if err == nil {
		t.Fatalf("terraform %v succeeds:\n%s", args, out)
	}
	contains(t, oneLine(out), want)
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	must(t, err)
	return path
}
