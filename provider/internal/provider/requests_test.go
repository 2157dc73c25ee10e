package provider

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/provider/internal/apiserver"
)

// counter is a proxy before the API server that counts requests, and can go away.
type counter struct {
	url string

	mu      sync.Mutex
	writes  int            // how many more objects are written before it goes away; negative: it stays
	refused string         // the content type of requests that it answers with 403; empty: none
	objects map[string]int // requests that name one object
	lists   map[string]int // lists and watches, by path and whether it watches
}

func newCounter(t *testing.T, s *apiserver.Server) *counter {
	t.Helper()
	c := &counter{writes: -1}
	c.reset()
	c.url = proxyTo(t, s, func(w http.ResponseWriter, r *http.Request) bool {
		if !c.passes(r) {
			panic(http.ErrAbortHandler) // closes the connection without an answer
		}
		if c.refuses(r) {
			http.Error(w, "the test refuses this", http.StatusForbidden)
			return true
		}
		c.count(r)
		return false
	})
	return c
}

// leaveAfter makes the proxy close every connection unanswered once it has passed on some writes of whole objects of our kinds (the mark
// of a creation is removed by a write of another type, at any time after it); a negative number makes it stay.
func (c *counter) leaveAfter(writes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writes = writes
}

// refuse makes the proxy answer requests of a content type with 403; none of the empty one.
func (c *counter) refuse(contentType string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refused = contentType
}

func (c *counter) refuses(r *http.Request) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refused != "" && r.Header.Get("Content-Type") == c.refused
}

func (c *counter) passes(r *http.Request) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.writes > 0 && r.Header.Get("Content-Type") == string(types.ApplyPatchType) &&
		strings.HasPrefix(r.URL.Path, "/apis/resource.nvidia.com/") {
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
func testRequests(t *testing.T, s *apiserver.Server, rc string) {
	installCRD(t, s, "testdata/stack/templates/crd.yaml")
	s.ServeDomains(t, func(string) apiserver.Domain { return apiserver.Domain{Status: "Ready"} })
	counter := newCounter(t, s)
	const n = 30
	c := inNewDirectory(t, rc, counter.domains("counted", n, "5m"))
	t.Run("an apply costs at most 4 requests a resource and one watch a kind; a plan costs 1", func(t *testing.T) {
		c.run("apply", "-auto-approve")
		objects, lists, text := counter.take() // the plan of a resource to be created costs nothing
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
		c.unchanged()
		objects, _, text = counter.take()
		t.Log("plan: " + text)
		if objects > n {
			t.Errorf("%d requests for %d resources: want at most 1 each", objects, n)
		}
	})
	c.run("destroy", "-auto-approve")
}
