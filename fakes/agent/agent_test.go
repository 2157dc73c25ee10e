package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpufabric.io/fakes/agent"
	"gpufabric.io/fakes/internal/memdir"
	"gpufabric.io/fakes/tree"
)

func TestMain(m *testing.M) { os.Exit(memdir.Run(m)) }

// apiServer serves one node whose labels can be changed.
type apiServer struct {
	labels  map[string]string
	changes chan map[string]string
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	node := func(labels map[string]string) map[string]any {
		return map[string]any{"metadata": map[string]any{"name": "node-a", "resourceVersion": "7", "labels": labels}}
	}
	if r.Header.Get("Authorization") != "Bearer secret" || r.URL.Query().Get("fieldSelector") != "metadata.name=node-a" {
		http.Error(w, "forbidden", http.StatusForbidden)
		return
	}
	if r.URL.Query().Get("watch") == "" {
		_ = json.NewEncoder(w).Encode(map[string]any{"metadata": map[string]any{"resourceVersion": "7"}, "items": []any{node(s.labels)}})
		return
	}
	for {
		w.(http.Flusher).Flush()
		select {
		case <-r.Context().Done():
			return
		case labels := <-s.changes:
			_ = json.NewEncoder(w).Encode(map[string]any{"type": "MODIFIED", "object": node(labels)})
		}
	}
}

// start runs an agent against the server and gives its root and its address.
func start(t *testing.T, labels map[string]string) (root, url string, change func(map[string]string)) {
	t.Helper()
	s := &apiServer{labels: labels, changes: make(chan map[string]string)}
	server := httptest.NewServer(s)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	root = t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- agent.Run(ctx, agent.Options{NodeName: "node-a", Root: root, Listen: address, Tree: tree.Options{PlainDevices: true},
			API: &agent.API{Server: server.URL, Client: server.Client(), Token: func() (string, error) { return "secret", nil }},
			Log: slog.New(slog.DiscardHandler)})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		server.Close()
	})
	return root, "http://" + address, func(l map[string]string) { s.changes <- l }
}

func get(url string) (int, string) {
	r, err := http.Get(url) //nolint:noctx // a test on loopback
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = r.Body.Close() }()
	text, _ := io.ReadAll(r.Body)
	return r.StatusCode, strings.TrimSpace(string(text))
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("never: %s", what)
}

func TestTheAgentRendersWhatTheLabelsAskFor(t *testing.T) {
	root, url, change := start(t, map[string]string{agent.LabelProfile: "gb200-nvl72", agent.LabelIndex: "1"})
	eventually(t, "healthy", func() bool { code, _ := get(url + "/healthz"); return code == http.StatusOK })
	r, err := tree.ReadRendered(root)
	if err != nil || r.Profile != "gb200-nvl72" || r.Node != 1 {
		t.Fatalf("%+v %v", r, err)
	}
	change(map[string]string{agent.LabelProfile: "rdma-only"})
	eventually(t, "rendered anew", func() bool { r, err := tree.ReadRendered(root); return err == nil && r.Profile == "rdma-only" })

	change(map[string]string{agent.LabelProfile: "gb300", agent.LabelIndex: "x"})
	eventually(t, "unhealthy, with both reasons", func() bool {
		code, text := get(url + "/healthz")
		return code == http.StatusServiceUnavailable && strings.Contains(text, "gb200-nvl72") && strings.Contains(text, `"x"`)
	})
	change(map[string]string{})
	eventually(t, "removed", func() bool { _, err := tree.ReadRendered(root); return os.IsNotExist(err) })
	eventually(t, "healthy without hardware", func() bool { code, _ := get(url + "/healthz"); return code == http.StatusOK })
}

func TestARestartedAgentLeavesTheHardwareAsItIs(t *testing.T) {
	labels := map[string]string{agent.LabelProfile: "t4-edge"}
	root, url, change := start(t, labels)
	eventually(t, "healthy", func() bool { code, _ := get(url + "/healthz"); return code == http.StatusOK })
	marker := filepath.Join(root, "sys/marker")
	if err := os.WriteFile(marker, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	// An unrelated label is no reason to render anew either.
	change(map[string]string{agent.LabelProfile: "t4-edge", "other": "label"})
	change(map[string]string{agent.LabelProfile: "t4-edge", agent.LabelIndex: "0"})
	eventually(t, "taken up", func() bool { _, text := get(url + "/healthz"); return strings.Contains(text, "t4-edge 0") })
	if _, err := os.Stat(marker); err != nil {
		t.Error(err)
	}
}

func TestTheControlEndpointInjectsEvents(t *testing.T) {
	root, url, _ := start(t, map[string]string{agent.LabelProfile: "h100-hgx"})
	eventually(t, "healthy", func() bool { code, _ := get(url + "/healthz"); return code == http.StatusOK })
	post := func(event, body string) (int, string) {
		r, err := http.Post(url+"/events/"+event, "application/json", strings.NewReader(body)) //nolint:noctx // a test on loopback
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = r.Body.Close() }()
		text, _ := io.ReadAll(r.Body)
		return r.StatusCode, string(text)
	}
	for _, c := range []struct {
		event, body, says string
		code              int
	}{
		{"port-down", `{"device": "mlx5_0"}`, "", http.StatusNoContent},
		{"port-down", `{"device": "mlx5_0"}`, "DOWN already", http.StatusConflict},
		{"port-down", `{"port": "1"}`, "device is missing", http.StatusBadRequest},
		{"port-down", `nonsense`, "JSON", http.StatusBadRequest},
		{"meteor", ``, "no event", http.StatusBadRequest},
	} {
		if code, text := post(c.event, c.body); code != c.code || !strings.Contains(text, c.says) {
			t.Errorf("%s %s: %d %s", c.event, c.body, code, text)
		}
	}
	if data, err := os.ReadFile(filepath.Join(root, "sys/class/infiniband/mlx5_0/ports/1/state")); err != nil || string(data) != "1: DOWN\n" {
		t.Errorf("%q %v", data, err)
	}
	if code, text := get(url + "/events"); code != http.StatusOK || !strings.Contains(text, `"name":"xid"`) {
		t.Errorf("%d %s", code, text)
	}
	if code, text := get(url + "/node"); code != http.StatusOK || !strings.Contains(text, fmt.Sprintf("%q", "h100-hgx")) {
		t.Errorf("%d %s", code, text)
	}
}
