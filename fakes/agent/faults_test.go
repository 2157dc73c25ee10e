package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"gpufabric.io/fakes/agent"
	"gpufabric.io/fakes/tree"
)

// object is an object of the API.
type object = map[string]any

// cluster is an API server with nodes and FabricFaults; watches end when one of them changes, and clients list again.
type cluster struct {
	mu      sync.Mutex
	nodes   map[string]map[string]string // labels by name
	faults  map[string]object            // by name
	patches int
	changed chan struct{} // closed at a change, and replaced
	made    int
}

func newCluster(nodes map[string]map[string]string) *cluster {
	return &cluster{nodes: nodes, faults: map[string]object{}, changed: make(chan struct{})}
}

func (c *cluster) change(fn func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fn()
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *cluster) create(name string, spec object) {
	c.change(func() {
		c.made++
		c.faults[name] = object{"metadata": object{"name": name, "uid": fmt.Sprint("uid-", c.made),
			"creationTimestamp": time.Unix(int64(c.made), 0).UTC().Format(time.RFC3339)}, "spec": spec}
	})
}

// result is the node's entry in the status of a fault.
func (c *cluster) result(fault, node string) object {
	c.mu.Lock()
	defer c.mu.Unlock()
	status, _ := c.faults[fault]["status"].(object)
	nodes, _ := status["nodes"].(object)
	entry, _ := nodes[node].(object)
	return maps.Clone(entry)
}

func (c *cluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	const faults = "/apis/fakefabric.gpufabric.io/v1alpha1/fabricfaults"
	switch {
	case r.Method == http.MethodPatch && strings.HasPrefix(r.URL.Path, faults+"/"):
		c.patch(w, r, strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, faults+"/"), "/status"))
	case r.URL.Path == faults:
		c.list(w, r, func() (items []any) {
			for _, f := range c.faults {
				items = append(items, f)
			}
			return items
		})
	case r.URL.Path == "/api/v1/nodes":
		name := strings.TrimPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")
		c.list(w, r, func() (items []any) {
			if labels, exists := c.nodes[name]; exists {
				items = append(items, object{"metadata": object{"name": name, "labels": maps.Clone(labels)}})
			}
			return items
		})
	default:
		http.NotFound(w, r)
	}
}

// list answers a list, or a watch that sends each item again at each change, and the deletion of those that are gone.
func (c *cluster) list(w http.ResponseWriter, r *http.Request, items func() []any) {
	sent := map[string]json.RawMessage{}
	for {
		c.mu.Lock()
		changed, now := c.changed, map[string]json.RawMessage{}
		for _, item := range items() {
			text, _ := json.Marshal(item)
			now[item.(object)["metadata"].(object)["name"].(string)] = text //nolint:forcetypeassert // made above
		}
		c.mu.Unlock()
		if r.URL.Query().Get("watch") == "" {
			all := []json.RawMessage{}
			for _, text := range now {
				all = append(all, text)
			}
			_ = json.NewEncoder(w).Encode(object{"metadata": object{"resourceVersion": "1"}, "items": all})
			return
		}
		for name, text := range sent {
			if _, exists := now[name]; !exists {
				_ = json.NewEncoder(w).Encode(object{"type": "DELETED", "object": text})
			}
		}
		for name, text := range now {
			if string(sent[name]) != string(text) {
				_ = json.NewEncoder(w).Encode(object{"type": "MODIFIED", "object": text})
			}
		}
		sent = now
		w.(http.Flusher).Flush()
		select {
		case <-r.Context().Done():
			return
		case <-changed:
		}
	}
}

func (c *cluster) patch(w http.ResponseWriter, r *http.Request, name string) {
	var patch object
	if err := json.NewDecoder(r.Body).Decode(&patch); err != nil || r.Header.Get("Content-Type") != "application/merge-patch+json" {
		http.Error(w, "no merge patch", http.StatusBadRequest)
		return
	}
	answer := http.StatusOK
	c.change(func() {
		c.patches++
		f := c.faults[name]
		switch {
		case f == nil:
			answer = http.StatusNotFound
		case f["metadata"].(object)["uid"] != patch["metadata"].(object)["uid"]: //nolint:forcetypeassert // made above
			answer = http.StatusConflict
		default:
			merged := maps.Clone(f)
			merge(merged, patch)
			c.faults[name] = merged
		}
	})
	w.WriteHeader(answer)
}

// merge is RFC 7396 for objects.
func merge(into, patch object) {
	for key, v := range patch {
		below, isObject := v.(object)
		switch {
		case v == nil:
			delete(into, key)
		case isObject:
			old, _ := into[key].(object)
			if old = maps.Clone(old); old == nil {
				old = object{}
			}
			merge(old, below)
			into[key] = old
		default:
			into[key] = v
		}
	}
}

// join runs an agent of node-a, with this directory, until leave is called or the test ends.
func (c *cluster) join(t *testing.T, root string) (leave func()) {
	t.Helper()
	server := httptest.NewServer(c)
	o := agent.Options{NodeName: "node-a", Root: root, Listen: "127.0.0.1:0", Sysfs: t.TempDir(), Faults: true,
		Tree: tree.Options{PlainDevices: true}, API: &agent.API{Server: server.URL, Client: server.Client()}, Log: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- agent.Run(ctx, o) }()
	leave = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		server.Close()
	})
	t.Cleanup(leave)
	return leave
}

func (c *cluster) await(t *testing.T, fault, node, result, message string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s of %s is %s, %q", fault, node, result, message), func() bool {
		got := c.result(fault, node)
		text, _ := got["message"].(string)
		return got["result"] == result && strings.Contains(text, message)
	})
}

func portState(t *testing.T, root, device string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, "sys/class/infiniband", device, "ports/1/state"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

// downs is how often the port lost its link.
func downs(t *testing.T, root, device string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, "sys/class/infiniband", device, "ports/1/counters/link_downed"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

func h100() map[string]map[string]string {
	return map[string]map[string]string{"node-a": {agent.LabelProfile: "h100-hgx", "rack": "r1"}, "node-b": {}}
}

func TestFabricFaultHappensOnTheNodesThatItSelects(t *testing.T) {
	c, root := newCluster(h100()), t.TempDir()
	down := func(device string, spec object) object {
		spec["event"], spec["arguments"] = "port-down", object{"device": device}
		return spec
	}
	c.create("every", down("mlx5_0", object{}))
	c.create("named", down("mlx5_1", object{"nodes": []string{"node-b", "node-a"}}))
	c.create("selected", down("mlx5_2", object{"nodeSelector": object{"rack": "r1"}}))
	c.create("other-name", down("mlx5_3", object{"nodes": []string{"node-b"}}))
	c.create("other-label", down("mlx5_3", object{"nodeSelector": object{"rack": "r2"}}))
	c.create("absent-label", down("mlx5_3", object{"nodeSelector": object{"row": ""}}))
	c.create("last", object{"event": "xid", "arguments": object{"gpu": 7, "code": 79}})
	c.join(t, root)
	c.await(t, "last", "node-a", "Applied", "") // faults happen in the order in which they were made
	for fault, device := range map[string]string{"every": "mlx5_0", "named": "mlx5_1", "selected": "mlx5_2"} {
		c.await(t, fault, "node-a", "Applied", "")
		if got := portState(t, root, device); got != "1: DOWN" {
			t.Errorf("%s: port of %s is %s", fault, device, got)
		}
	}
	for _, fault := range []string{"other-name", "other-label", "absent-label"} {
		if got := c.result(fault, "node-a"); got != nil {
			t.Errorf("%s: node-a reports %v", fault, got)
		}
	}
	if got := portState(t, root, "mlx5_3"); got != "4: ACTIVE" {
		t.Errorf("port of mlx5_3 is %s", got)
	}
}

func TestFabricFaultReportsWhyItWasRefused(t *testing.T) {
	c := newCluster(h100())
	for name, spec := range map[string]object{
		"unknown-event":    {"event": "meteor"},
		"empty":            {},
		"missing-argument": {"event": "xid", "arguments": object{"gpu": 0}},
		"extra-argument":   {"event": "uvm-unload", "arguments": object{"gpu": 0}},
		"bad-value":        {"event": "xid", "arguments": object{"gpu": "all", "code": true}},
		"no-such-device":   {"event": "port-down", "arguments": object{"device": "mlx9_9"}},
		"bad-duration":     {"event": "gpu-lost", "arguments": object{"gpu": 0}, "duration": "soon"},
		"zero-duration":    {"event": "gpu-lost", "arguments": object{"gpu": 0}, "duration": "0s"},
		"cannot-be-undone": {"event": "xid", "arguments": object{"gpu": 0, "code": 79}, "duration": "1s"},
		"unknown-for-long": {"event": "meteor", "duration": "1s"},
		"no-such-node":     {"event": "uvm-unload", "nodes": []string{"node-z"}},
	} {
		c.create(name, spec)
	}
	c.join(t, t.TempDir())
	for name, message := range map[string]string{
		"unknown-event":    `no event "meteor"; there are xid, `,
		"empty":            `no event ""`,
		"missing-argument": "code is missing",
		"extra-argument":   `takes no argument "gpu"`,
		"bad-value":        `code is "true"`,
		"no-such-device":   `no device "mlx9_9"`,
		"bad-duration":     `duration is "soon"`,
		"zero-duration":    `duration is "0s"`,
		"cannot-be-undone": "xid cannot be undone",
		"unknown-for-long": `no event "meteor"`,
	} {
		c.await(t, name, "node-a", "Refused", message)
	}
	c.await(t, "no-such-node", "node-z", "Refused", `the cluster has no node "node-z"`)
}

func TestFabricFaultHappensOnceWhenTheAgentStartsAgain(t *testing.T) {
	c, root := newCluster(h100()), t.TempDir()
	c.create("cut", object{"event": "port-down", "arguments": object{"device": "mlx5_0"}})
	leave := c.join(t, root)
	c.await(t, "cut", "node-a", "Applied", "")
	leave()
	first := c.result("cut", "node-a")
	c.change(func() { delete(c.faults["cut"], "status") }) // the report is made again, the event is not
	c.create("heal", object{"event": "port-up", "arguments": object{"device": "mlx5_0"}})
	c.join(t, root)
	c.await(t, "heal", "node-a", "Applied", "")
	c.await(t, "cut", "node-a", "Applied", "")
	if got := c.result("cut", "node-a"); got["time"] != first["time"] {
		t.Errorf("reported as %v, and before the restart as %v", got, first)
	}
	if up, times := portState(t, root, "mlx5_0"), downs(t, root, "mlx5_0"); up != "4: ACTIVE" || times != "1" {
		t.Errorf("the port is %s and went down %s times", up, times)
	}
}

func TestFabricFaultIsReportedAsInterruptedWhenTheAgentWasKilledInIt(t *testing.T) {
	c, root := newCluster(h100()), t.TempDir()
	leave := c.join(t, root)
	c.create("before", object{"event": "uvm-unload"})
	c.await(t, "before", "node-a", "Applied", "")
	leave()
	c.create("cut", object{"event": "port-down", "arguments": object{"device": "mlx5_0"}})
	path := filepath.Join(root, "state/fabricfaults.json")
	if err := os.WriteFile(path, []byte(`{"uid-2": {"result": "Interrupted", "message": "may have happened"}}`), 0o644); err != nil {
		t.Fatal(err)
	}
	c.join(t, root)
	c.await(t, "cut", "node-a", "Interrupted", "may have happened")
	if got := portState(t, root, "mlx5_0"); got != "4: ACTIVE" {
		t.Errorf("the port is %s", got)
	}
}

func TestFabricFaultsStopWhileTheRecordIsDamaged(t *testing.T) {
	c, root := newCluster(h100()), t.TempDir()
	leave := c.join(t, root)
	c.create("before", object{"event": "uvm-unload"})
	c.await(t, "before", "node-a", "Applied", "")
	leave()
	path := filepath.Join(root, "state/fabricfaults.json")
	if err := os.WriteFile(path, []byte(`{"uid-1": {`), 0o644); err != nil {
		t.Fatal(err)
	}
	c.create("cut", object{"event": "port-down", "arguments": object{"device": "mlx5_0"}})
	c.create("gone", object{"event": "uvm-load", "nodes": []string{"node-z"}})
	c.join(t, root)
	c.await(t, "gone", "node-z", "Refused", "no node") // the agent has gone through the faults
	if got := c.result("cut", "node-a"); got != nil {
		t.Errorf("reported as %v", got)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	c.await(t, "cut", "node-a", "Applied", "") // tried again by itself
}

func TestFabricFaultEndsAfterItsDurationAndWhenItIsDeleted(t *testing.T) {
	c, root := newCluster(h100()), t.TempDir()
	leave := c.join(t, root)
	c.create("short", object{"event": "port-down", "arguments": object{"device": "mlx5_0"}, "duration": "10ms"})
	c.await(t, "short", "node-a", "Reverted", "")
	if up, times := portState(t, root, "mlx5_0"), downs(t, root, "mlx5_0"); up != "4: ACTIVE" || times != "1" {
		t.Errorf("the port is %s and went down %s times", up, times)
	}
	if got := c.result("short", "node-a"); got["until"] != nil {
		t.Errorf("it has ended and is reported as %v", got)
	}

	c.create("long", object{"event": "port-down", "arguments": object{"device": "mlx5_1"}, "duration": "24h"})
	c.create("forever", object{"event": "port-down", "arguments": object{"device": "mlx5_2"}})
	c.await(t, "long", "node-a", "Applied", "")
	c.await(t, "forever", "node-a", "Applied", "")
	if got := c.result("long", "node-a"); got["until"] == nil {
		t.Errorf("it ends and is reported as %v", got)
	}
	leave() // it ends although no agent saw that it was deleted
	c.change(func() { delete(c.faults, "long"); delete(c.faults, "forever") })
	c.join(t, root)
	eventually(t, "the port of the fault with a duration is back", func() bool { return portState(t, root, "mlx5_1") == "4: ACTIVE" })
	if got := portState(t, root, "mlx5_2"); got != "1: DOWN" {
		t.Errorf("the port of a fault without a duration is %s", got)
	}
}

func TestFabricFaultEndsWhenTheNodeWasRepairedMeanwhile(t *testing.T) {
	c := newCluster(h100())
	c.create("cut", object{"event": "port-down", "arguments": object{"device": "mlx5_0"}, "duration": "24h"})
	c.create("heal", object{"event": "port-up", "arguments": object{"device": "mlx5_0"}})
	root := t.TempDir()
	leave := c.join(t, root)
	c.await(t, "heal", "node-a", "Applied", "")
	leave()
	path := filepath.Join(root, "state/fabricfaults.json")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var record map[string]object
	if err := json.Unmarshal(data, &record); err != nil {
		t.Fatal(err)
	}
	record["uid-1"]["until"] = time.Now().Format(time.RFC3339Nano)
	if data, err = json.Marshal(record); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	c.join(t, root)
	c.await(t, "cut", "node-a", "Reverted", "ACTIVE already")
}

func TestFabricFaultWaitsForTheHardware(t *testing.T) {
	c, root := newCluster(map[string]map[string]string{"node-a": {}}), t.TempDir()
	cut := func(device string, spec object) object {
		spec["event"], spec["arguments"] = "port-down", object{"device": device}
		return spec
	}
	c.create("every", cut("mlx5_0", object{}))
	c.create("named", cut("mlx5_1", object{"nodes": []string{"node-a"}}))
	c.join(t, root)
	c.await(t, "named", "node-a", "Waiting", agent.LabelProfile)
	if got := c.result("every", "node-a"); got != nil {
		t.Errorf("a node without hardware reports %v of a fault that does not name it", got)
	}
	c.change(func() { c.nodes["node-a"] = map[string]string{agent.LabelProfile: "h100"} })
	c.await(t, "named", "node-a", "Waiting", "h100-hgx") // the names that there are
	c.change(func() { c.nodes["node-a"] = map[string]string{agent.LabelProfile: "h100-hgx"} })
	c.await(t, "named", "node-a", "Applied", "")
	c.await(t, "every", "node-a", "Applied", "")

	// Another machine is one to which nothing has happened yet.
	c.change(func() { c.nodes["node-a"] = map[string]string{agent.LabelProfile: "h100-hgx", agent.LabelIndex: "1"} })
	eventually(t, "it happens to the next machine", func() bool {
		r, err := tree.ReadRendered(root)
		return err == nil && r.Node == 1 && portState(t, root, "mlx5_1") == "1: DOWN"
	})
}

func TestFabricFaultReportReplacesAnotherEntry(t *testing.T) {
	c := newCluster(h100())
	c.create("cut", object{"event": "gpu-lost", "arguments": object{"gpu": 0}})
	c.change(func() {
		c.faults["cut"]["status"] = object{"nodes": object{"node-a": object{"result": "Applied", "message": "another", "until": "never"},
			"node-b": object{"result": "Refused"}}}
	})
	c.join(t, t.TempDir())
	eventually(t, "replaced as a whole", func() bool {
		got := c.result("cut", "node-a")
		return len(got) == 2 && got["result"] == "Applied" && got["time"] != nil
	})
	if got := c.result("cut", "node-b"); got["result"] != "Refused" {
		t.Errorf("another node's entry is %v", got)
	}
}
