package agent_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"gpufabric.io/fakes/agent"
	"gpufabric.io/fakes/tree"
)

// apiNode is a Node as the API server returns it.
type apiNode struct {
	name, created, taint string
	labels               map[string]string
}

func (n apiNode) object() map[string]any {
	o := map[string]any{"metadata": map[string]any{"name": n.name, "creationTimestamp": n.created, "labels": n.labels}}
	if n.taint != "" {
		o["spec"] = map[string]any{"taints": []any{map[string]any{"key": n.taint, "effect": "NoSchedule"}}}
	}
	return o
}

// serve serves nodes, and watches in which nothing changes.
func serve(t *testing.T, nodes *[]apiNode) *agent.API {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") != "" {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return
		}
		items := []any{}
		for _, n := range *nodes {
			if selector := r.URL.Query().Get("fieldSelector"); selector == "" || selector == "metadata.name="+n.name {
				items = append(items, n.object())
			}
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"metadata": map[string]any{"resourceVersion": "7"}, "items": items})
	}))
	t.Cleanup(server.Close)
	return &agent.API{Server: server.URL, Client: server.Client()}
}

// rendered runs an agent of the node until it is healthy, and returns what it rendered; nil: nothing.
func rendered(t *testing.T, api *agent.API, root, node, profile string) *tree.Rendered {
	t.Helper()
	listening := newAddresses()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- agent.Run(ctx, agent.Options{NodeName: node, Root: root, Listen: anyPort, Sysfs: t.TempDir(), Profile: profile,
			Tree: tree.Options{PlainDevices: true}, API: api, Log: slog.New(listening)})
	}()
	health := "http://" + <-listening.health + "/healthz"
	eventually(t, "healthy", func() bool { code, _ := get(health); return code == http.StatusOK })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	r, err := tree.ReadRendered(root)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return &r
}

func TestAgentNumbersNodesWithoutLabelsByAge(t *testing.T) {
	const old, young = "2026-11-27T10:00:00Z", "2026-11-27T11:00:00Z"
	numbered := map[string]string{agent.LabelProfile: "t4-edge", agent.LabelIndex: "1"}
	nodes := []apiNode{
		{"control", old, "node-role.kubernetes.io/control-plane", nil},
		{"young", young, "", nil},
		{"old-b", old, "", map[string]string{"other": "label"}},
		{"old-a", old, "", nil},
		{"numbered", old, "", numbered},
		{"index-alone", young, "", map[string]string{agent.LabelIndex: "4"}},
		{"other-profile", old, "", map[string]string{agent.LabelProfile: "rdma-only"}},
		{"excluded", old, "", map[string]string{agent.LabelProfile: ""}},
	}
	api := serve(t, &nodes)
	for node, want := range map[string]int{"old-a": 0, "numbered": 1, "old-b": 2, "young": 3, "index-alone": 4} {
		if r := rendered(t, api, t.TempDir(), node, "t4-edge"); r == nil || r.Profile != "t4-edge" || r.Node != want {
			t.Errorf("%s is %+v, want node %d of t4-edge", node, r, want)
		}
	}
	if r := rendered(t, api, t.TempDir(), "other-profile", "t4-edge"); r == nil || r.Profile != "rdma-only" {
		t.Errorf("other-profile is %+v, want what its label says", r)
	}
	for _, node := range []string{"control", "excluded"} {
		if r := rendered(t, api, t.TempDir(), node, "t4-edge"); r != nil {
			t.Errorf("%s is %+v, want no hardware", node, r)
		}
	}
}

func TestAgentKeepsItsNumberWhenOlderNodesGo(t *testing.T) {
	nodes := []apiNode{{"a", "2026-11-27T10:00:00Z", "", nil}, {"b", "2026-11-27T10:00:00Z", "", nil}}
	api, root := serve(t, &nodes), t.TempDir()
	for range 2 {
		if r := rendered(t, api, root, "b", "t4-edge"); r == nil || r.Node != 1 {
			t.Errorf("b is %+v, want node 1", r)
		}
		nodes = nodes[len(nodes)-1:]
	}
}

func TestAgentRejectsAnUnknownProfile(t *testing.T) {
	err := agent.Run(t.Context(), agent.Options{Sysfs: t.TempDir(), Listen: anyPort, Profile: "h100"})
	if err == nil || !strings.Contains(err.Error(), `"h100"`) || !strings.Contains(err.Error(), "h100-hgx") {
		t.Errorf("error %v, want the profile and those that exist", err)
	}
}
