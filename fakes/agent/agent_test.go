package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
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

// fakeNode is a running agent: its root, and its address.
type fakeNode struct {
	root, health, control, cdi string
	// change gives the Kubernetes node other labels.
	change func(map[string]string)
}

// anyPort lets the kernel choose a port, which the agent's log has.
const anyPort = "127.0.0.1:0"

// addresses passes on the addresses on which an agent listens, from its log.
type addresses struct {
	slog.Handler
	health, control chan string
}

func newAddresses() addresses {
	return addresses{slog.NewTextHandler(io.Discard, nil), make(chan string, 1), make(chan string, 1)}
}

// Handle reads one record of the log.
func (a addresses) Handle(_ context.Context, r slog.Record) error {
	found := map[string]string{}
	r.Attrs(func(attribute slog.Attr) bool {
		found[attribute.Key] = attribute.Value.String()
		return true
	})
	if r.Message == "listening" {
		map[string]chan string{"health checks": a.health, "events to inject": a.control}[found["for"]] <- found["address"]
	}
	return nil
}

// start runs an agent against a server with a node of these labels.
func start(t *testing.T, labels map[string]string) fakeNode {
	t.Helper()
	s := &apiServer{labels: labels, changes: make(chan map[string]string)}
	server := httptest.NewServer(s)
	listening := newAddresses()
	o := agent.Options{NodeName: "node-a", Root: t.TempDir(), Listen: anyPort, Control: anyPort, Sysfs: t.TempDir(), CDIRoot: t.TempDir(),
		Tree: tree.Options{PlainDevices: true},
		API:  &agent.API{Server: server.URL, Client: server.Client(), Token: func() (string, error) { return "secret", nil }},
		Log:  slog.New(listening)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- agent.Run(ctx, o) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		server.Close()
	})
	at := func(address chan string) string {
		select {
		case found := <-address:
			return "http://" + found
		case err := <-done:
			done <- err // for the cleanup
			t.Fatalf("the agent ended before it listened: %v", err)
		}
		return ""
	}
	return fakeNode{o.Root, at(listening.health), at(listening.control), o.CDIRoot, func(l map[string]string) { s.changes <- l }}
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

func TestAgentRendersTheProfileOfTheLabels(t *testing.T) {
	n := start(t, map[string]string{agent.LabelProfile: "gb200-nvl72", agent.LabelIndex: "1"})
	eventually(t, "healthy", func() bool { code, _ := get(n.health + "/healthz"); return code == http.StatusOK })
	r, err := tree.ReadRendered(n.root)
	if err != nil || r.Profile != "gb200-nvl72" || r.Node != 1 {
		t.Fatalf("%+v %v", r, err)
	}
	n.change(map[string]string{agent.LabelProfile: "rdma-only"})
	eventually(t, "rendered again", func() bool { r, err := tree.ReadRendered(n.root); return err == nil && r.Profile == "rdma-only" })

	n.change(map[string]string{agent.LabelProfile: "gb300", agent.LabelIndex: "x"})
	eventually(t, "unhealthy, with both reasons", func() bool {
		code, text := get(n.health + "/healthz")
		return code == http.StatusServiceUnavailable && strings.Contains(text, "gb200-nvl72") && strings.Contains(text, `"x"`)
	})
	n.change(map[string]string{})
	eventually(t, "removed", func() bool { _, err := tree.ReadRendered(n.root); return os.IsNotExist(err) })
	eventually(t, "healthy without hardware", func() bool { code, _ := get(n.health + "/healthz"); return code == http.StatusOK })
}

func TestAgentKeepsTheHardwareOverARestart(t *testing.T) {
	labels := map[string]string{agent.LabelProfile: "t4-edge"}
	n := start(t, labels)
	eventually(t, "healthy", func() bool { code, _ := get(n.health + "/healthz"); return code == http.StatusOK })
	marker := filepath.Join(n.root, "sys/marker")
	if err := os.WriteFile(marker, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	// Unrelated labels do not cause another rendering.
	n.change(map[string]string{agent.LabelProfile: "t4-edge", "other": "label"})
	n.change(map[string]string{agent.LabelProfile: "t4-edge", agent.LabelIndex: "0"})
	eventually(t, "taken up", func() bool { _, text := get(n.health + "/healthz"); return strings.Contains(text, "t4-edge 0") })
	if _, err := os.Stat(marker); err != nil {
		t.Error(err)
	}
}

func TestAgentDescribesTheNodeToTheContainerRuntime(t *testing.T) {
	n := start(t, map[string]string{agent.LabelProfile: "h100-hgx"})
	specs := func() int {
		files, err := filepath.Glob(filepath.Join(n.cdi, "*.json"))
		if err != nil {
			t.Fatal(err)
		}
		return len(files)
	}
	eventually(t, "healthy", func() bool { code, _ := get(n.health + "/healthz"); return code == http.StatusOK })
	if got := specs(); got != 2 {
		t.Errorf("%d CDI specifications of GPUs and the node", got)
	}
	n.change(map[string]string{agent.LabelProfile: "rdma-only"})
	eventually(t, "only the node's, without GPUs", func() bool { return specs() == 1 })
	n.change(map[string]string{})
	eventually(t, "none without hardware", func() bool { return specs() == 0 })
}

func TestAgentControlEndpointInjectsEvents(t *testing.T) {
	n := start(t, map[string]string{agent.LabelProfile: "h100-hgx"})
	eventually(t, "healthy", func() bool { code, _ := get(n.health + "/healthz"); return code == http.StatusOK })
	post := func(event, body string) (int, string) {
		r, err := http.Post(n.control+"/events/"+event, "application/json", strings.NewReader(body)) //nolint:noctx // a test on loopback
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
	if data, err := os.ReadFile(filepath.Join(n.root, "sys/class/infiniband/mlx5_0/ports/1/state")); err != nil ||
		string(data) != "1: DOWN\n" {
		t.Errorf("%q %v", data, err)
	}
	if code, text := get(n.control + "/events"); code != http.StatusOK || !strings.Contains(text, `"name":"xid"`) {
		t.Errorf("%d %s", code, text)
	}
	if code, text := get(n.control + "/node"); code != http.StatusOK || !strings.Contains(text, fmt.Sprintf("%q", "h100-hgx")) {
		t.Errorf("%d %s", code, text)
	}
}

func TestEventsAreAcceptedOnlyOnLoopback(t *testing.T) {
	n := start(t, map[string]string{agent.LabelProfile: "h100-hgx"})
	eventually(t, "healthy", func() bool { code, _ := get(n.health + "/healthz"); return code == http.StatusOK })
	for _, path := range []string{"/node", "/events"} {
		if code, text := get(n.health + path); code != http.StatusNotFound {
			t.Errorf("the kubelet's port answers %s: %d %s", path, code, text)
		}
	}
	for _, address := range []string{":8090", "0.0.0.0:8090", "[::]:8090", "10.1.2.3:8090", "localhost:8090", "8090"} {
		err := agent.Run(t.Context(), agent.Options{Control: address, Sysfs: t.TempDir(), Listen: anyPort})
		if err == nil || !strings.Contains(err.Error(), "loopback") {
			t.Errorf("%s: %v", address, err)
		}
	}
}

func TestAgentRefusesAMachineWithRealGPUs(t *testing.T) {
	sysfs := t.TempDir()
	add := func(address, vendor, class string) {
		device := filepath.Join(sysfs, "bus/pci/devices", address)
		if err := os.MkdirAll(device, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{"vendor": vendor, "class": class} {
			if err := os.WriteFile(filepath.Join(device, name), []byte(text+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	// An NVIDIA audio function and another vendor's display do not count.
	add("0000:01:00.1", "0x10de", "0x040300")
	add("0000:02:00.0", "0x1a03", "0x030000")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	run := func(allowGPUs bool) error {
		return agent.Run(ended, agent.Options{Sysfs: sysfs, BesideGPUs: allowGPUs, Listen: "127.0.0.1:none", Log: slog.New(slog.DiscardHandler)})
	}
	if err := run(false); err == nil || !strings.Contains(err.Error(), "listen for health checks") {
		t.Errorf("a machine without a GPU: %v", err)
	}
	add("0000:17:00.0", "0x10de", "0x030200")
	if err := run(false); err == nil || !strings.Contains(err.Error(), "0000:17:00.0") || !strings.Contains(err.Error(), "--beside-gpus") {
		t.Errorf("a machine with one: %v", err)
	}
	if err := run(true); err == nil || !strings.Contains(err.Error(), "listen for health checks") {
		t.Errorf("told so: %v", err)
	}
}
