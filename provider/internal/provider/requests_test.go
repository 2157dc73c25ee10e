//shows:tf-speed
package provider

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/terraform"

	"gpufabric.io/provider/internal/apiserver"
)

// counter is a proxy before the API server that counts requests, and can go away.
type counter struct {
	url string

	mu      sync.Mutex
	writes  int            // how many more writes pass before it goes away; negative: it stays
	objects map[string]int // requests that name one object
	lists   map[string]int // lists and watches, by path and whether it watches
}

func newCounter(t *testing.T, s *apiserver.Server) *counter {
	t.Helper()
	target, err := url.Parse(s.URL)
	must(t, err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(s.CA))
	c := &counter{writes: -1}
	c.reset()
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, MaxIdleConnsPerHost: 50},
		FlushInterval: -1, // watches are streams
	}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !c.passes(r) {
			panic(http.ErrAbortHandler) // closes the connection without an answer
		}
		c.count(r)
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections) // open watches would hold Close
	c.url = server.URL
	return c
}

// leaveAfter makes the proxy close every connection unanswered once it has passed on some writes of our kinds; a negative number makes it
// stay.
func (c *counter) leaveAfter(writes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writes = writes
}

func (c *counter) passes(r *http.Request) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.writes > 0 && r.Method != http.MethodGet && strings.HasPrefix(r.URL.Path, "/apis/resource.nvidia.com/") {
		c.writes--
		return true
	}
	return c.writes != 0
}

func (c *counter) count(r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !strings.HasPrefix(r.URL.Path, "/apis/resource") {
		return
	}
	if last := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]; strings.HasSuffix(last, "s") && !strings.Contains(last, "-") {
		c.lists[fmt.Sprintf("%s watch=%t", r.URL.Path, r.URL.Query().Get("watch") != "")]++
		return
	}
	c.objects[r.Method]++
}

func (c *counter) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.objects, c.lists = map[string]int{}, map[string]int{}
}

// take returns what was counted since the last call.
func (c *counter) take() (objects int, lists map[string]int, text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.objects {
		objects += n
	}
	lists, text = c.lists, fmt.Sprintf("by verb %v, lists and watches %v", c.objects, c.lists)
	c.objects, c.lists = map[string]int{}, map[string]int{}
	return objects, lists, text
}

// domains configures n compute domains whose provider talks through the proxy and waits for them as long as create says.
func (c *counter) domains(name string, n int, create string) string {
	return fmt.Sprintf(`
provider "gpufabric" {
  host     = %q
  token    = %q
  insecure = true
}
resource "gpufabric_compute_domain" "test" {
  count   = %d
  name    = "%s-${count.index}"
  channel = { resource_claim_template = "%s-${count.index}" }
  timeouts = { create = %q }
}
`, c.url, apiserver.AdminToken, n, name, name, create)
}

// testRequests counts what a resource costs the API server.
func testRequests(t *testing.T, s *apiserver.Server) {
	installCRD(t, s, "testdata/stack/templates/crd.yaml")
	s.ServeDomains(t, func(string) apiserver.Domain { return apiserver.Domain{Status: "Ready"} })
	counter := newCounter(t, s)
	const n = 30
	config := counter.domains("counted", n, "5m")
	t.Run("an apply costs at most 4 requests a resource and one watch a kind; a plan costs 1", func(t *testing.T) {
		check(t, resource.TestStep{Config: config, Check: func(*terraform.State) error {
			// The framework has planned, applied, and read the state; the plan of a resource to be created costs nothing.
			objects, lists, text := counter.take()
			t.Log("apply: " + text)
			if objects > 4*n {
				t.Errorf("%d requests for %d resources: want at most 4 each", objects, n)
			}
			for path, times := range lists {
				// The plan and the apply are two processes; each may look once at what the cluster has. Only the apply watches.
				if watches := strings.HasSuffix(path, "watch=true"); times > 2 || (watches && times > 1) {
					t.Errorf("%d times %s: want one a phase", times, path)
				}
			}
			return nil
		}}, resource.TestStep{PreConfig: counter.reset, RefreshState: true, Check: func(*terraform.State) error {
			objects, _, text := counter.take()
			t.Log("refresh and plan: " + text)
			if objects > 2*n { // a refresh, and the plan that follows it
				t.Errorf("%d requests for %d resources: want at most 1 each and phase", objects, n)
			}
			return nil
		}})
	})
}
