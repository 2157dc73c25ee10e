package charts

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/jsonpath"
	"sigs.k8s.io/yaml"

	"gpufabric.io/fakes/agent"
	"gpufabric.io/fakes/tree"
)

// faultPatience bounds the wait for the server to serve FabricFaults.
const faultPatience = 2 * time.Minute

func faultResource() schema.GroupVersionResource {
	return resourceOf("fakefabric.gpufabric.io", "v1alpha1", "fabricfaults")
}

func TestFakeHardwareWatchesFaultsOnlyWhenEnabled(t *testing.T) {
	for _, faults := range []bool{false, true} {
		got := map[string]bool{}
		for _, object := range renderValues(t, "fake-hardware", map[string]any{"faults": faults}) {
			for _, part := range []string{"fabricfaults", "--faults"} {
				if strings.Contains(object.YAML, part) {
					got[object.GetKind()] = true
				}
			}
		}
		want := map[string]bool{}
		if faults {
			want = map[string]bool{"CustomResourceDefinition": true, "ClusterRole": true, "DaemonSet": true}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("faults %v: objects with something of FabricFaults (-want +rendered):\n%s", faults, diff)
		}
	}
}

// TestFabricFaultIsInjectedWithChartRights runs an agent with the rights of its service account against a real API server.
func TestFabricFaultIsInjectedWithChartRights(t *testing.T) {
	if testing.Short() {
		t.Skip("starts etcd and kube-apiserver; -short asks for neither")
	}
	live := startServer(t)
	if _, err := newHelm(t, live.config).install("fake-hardware", load(t, "fake-hardware"), map[string]any{"faults": true}); err != nil {
		t.Fatal(err)
	}
	for name, labels := range map[string]string{"node-a": `"` + agent.LabelProfile + `": "h100-hgx"`, "node-b": ""} {
		node := object(`{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "` + name + `", "labels": {` + labels + `}}}`)
		if _, err := live.client.Resource(nodeResource).Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	root := runAgent(t, live, "node-a", "")
	makeFault(t, live, "cut", `"nodes": ["node-a", "node-z"], "event": "port-down", "arguments": {"device": "mlx5_0"}`)
	makeFault(t, live, "numbers",
		`"nodeSelector": {"`+agent.LabelProfile+`": "h100-hgx"}, "event": "xid", "arguments": {"gpu": 7, "code": 79}`)
	makeFault(t, live, "short", `"event": "gpu-lost", "arguments": {"gpu": "0"}, "duration": "10ms"`)
	makeFault(t, live, "meteor", `"event": "meteor"`)
	awaitResult(t, live, "cut", "node-a", "Applied", "")
	awaitResult(t, live, "cut", "node-z", "Refused", `no node "node-z"`)
	awaitResult(t, live, "numbers", "node-a", "Applied", "")
	awaitResult(t, live, "short", "node-a", "Reverted", "")
	awaitResult(t, live, "meteor", "node-a", "Refused", `no event "meteor"`)
	if state, err := os.ReadFile(filepath.Join(root, "sys/class/infiniband/mlx5_0/ports/1/state")); string(state) != "1: DOWN\n" {
		t.Errorf("the port's state is %q: %v", state, err)
	}
	t.Run("the server accepts the README's manifest", func(t *testing.T) { manifestOfREADME(t, live) })
	t.Run("the schema rejects what no agent could apply", func(t *testing.T) { rejectedFaults(t, live) })
	t.Run("an agent changes nothing but the status", func(t *testing.T) { agentsRights(t, live) })
}

// runAgent runs an agent of the node until the test ends, and returns the directory of the node. profile is for a node without a label.
func runAgent(t *testing.T, live *server, node, profile string) string {
	t.Helper()
	config := rest.CopyConfig(live.config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + namespace + ":fake-hardware",
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"}}
	transport, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	o := agent.Options{NodeName: node, Profile: profile, Root: t.TempDir(), Listen: "127.0.0.1:0", Sysfs: t.TempDir(), Faults: true,
		Tree: tree.Options{PlainDevices: true}, API: &agent.API{Server: live.config.Host, Client: &http.Client{Transport: transport}},
		Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- agent.Run(ctx, o) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return o.Root
}

func faultOf(name, spec string) *unstructured.Unstructured {
	return object(`{"apiVersion": "fakefabric.gpufabric.io/v1alpha1", "kind": "FabricFault", "metadata": {"name": "` + name + `"},
		"spec": {` + spec + `}}`)
}

// makeFault creates a FabricFault, whose kind the server may not serve yet.
func makeFault(t *testing.T, live *server, name, spec string) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, faultPatience, true, func(ctx context.Context) (bool, error) {
		_, err := live.client.Resource(faultResource()).Create(ctx, faultOf(name, spec),
			metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return true, err
	})
	if err != nil {
		t.Fatalf("create FabricFault %s: %v", name, err)
	}
}

func awaitResult(t *testing.T, live *server, fault, node, result, message string) {
	t.Helper()
	var last map[string]string
	defer func() {
		if t.Failed() {
			t.Logf("%s reports %v of %s", node, last, fault)
		}
	}()
	await(t, fmt.Sprintf("%s, %q, of %s on %s", result, message, fault, node), live.client.Resource(faultResource()).Watch,
		func(event watch.Event) bool {
			f, ok := event.Object.(*unstructured.Unstructured)
			if !ok {
				return false
			}
			last, _, _ = unstructured.NestedStringMap(f.Object, "status", "nodes", node)
			return last["result"] == result && strings.Contains(last["message"], message)
		}, metav1.ListOptions{FieldSelector: "metadata.name=" + fault})
}

func manifestOfREADME(t *testing.T, live *server) {
	readme, err := os.ReadFile(Dir("fake-hardware/README.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(readme), "<<EOF\n")
	i := slices.IndexFunc(blocks, func(block string) bool { return strings.Contains(block, "\nkind: FabricFault\n") })
	if i < 1 {
		t.Fatal("the README has no manifest of a FabricFault")
	}
	manifest, wait, _ := strings.Cut(blocks[i], "EOF\n")
	f := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(manifest), &f.Object); err != nil {
		t.Fatalf("the README's manifest %q: %v", manifest, err)
	}
	if _, err := live.client.Resource(faultResource()).Create(t.Context(), f, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll},
		FieldValidation: metav1.FieldValidationStrict}); err != nil {
		t.Error(err)
	}
	// The condition is evaluated as kubectl wait does.
	path := regexp.MustCompile(`--for=jsonpath='([^']+)'=Applied`).FindStringSubmatch(wait)
	if path == nil {
		t.Fatalf("no condition in %q", wait)
	}
	condition := jsonpath.New("condition")
	if err := condition.Parse(path[1]); err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	reported := map[string]any{"status": map[string]any{"nodes": map[string]any{"worker-1": map[string]any{"result": "Applied"}}}}
	if err := condition.Execute(&got, reported); err != nil || got.String() != "Applied" {
		t.Errorf("%s is %q of a fault that was applied: %v", path[1], got.String(), err)
	}
}

func rejectedFaults(t *testing.T, live *server) {
	faults := live.client.Resource(faultResource())
	for _, one := range []struct{ name, spec, message string }{
		{"no event", `"nodes": ["node-a"]`, "spec.event: Required"},
		{"an empty event", `"event": ""`, "spec.event"},
		{"names and labels", `"event": "uvm-unload", "nodes": ["node-a"], "nodeSelector": {"a": "b"}`, "not both"},
		{"a list of no nodes", `"event": "uvm-unload", "nodes": []`, "spec.nodes"},
		{"a node twice", `"event": "uvm-unload", "nodes": ["node-a", "node-a"]`, "Duplicate"},
		{"a truth value", `"event": "mig-busy", "arguments": {"gpu": 0, "busy": true}`, "spec.arguments.busy"},
		{"an unknown field", `"event": "uvm-unload", "node": "node-a"`, `unknown field "spec.node"`},
	} {
		_, err := faults.Create(t.Context(), faultOf("tried", one.spec), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll},
			FieldValidation: metav1.FieldValidationStrict})
		if err == nil || !strings.Contains(err.Error(), one.message) {
			t.Errorf("%s: %v, want %q", one.name, err, one.message)
		}
	}
	_, err := faults.Patch(t.Context(), "cut", types.MergePatchType, []byte(`{"spec": {"event": "port-up"}}`), metav1.PatchOptions{})
	if err == nil || !strings.Contains(err.Error(), "does not change") {
		t.Errorf("another event of a fault that has happened: %v", err)
	}
}

func agentsRights(t *testing.T, live *server) {
	faults := live.as(t, "fake-hardware", "node-a").Resource(faultResource())
	dry := []string{metav1.DryRunAll}
	_, created := faults.Create(t.Context(), faultOf("tried", `"event": "uvm-unload"`), metav1.CreateOptions{DryRun: dry})
	_, changed := faults.Patch(t.Context(), "cut", types.MergePatchType, []byte(`{"metadata": {"labels": {"a": "b"}}}`),
		metav1.PatchOptions{DryRun: dry})
	for what, err := range map[string]error{"create": created, "change": changed,
		"delete": faults.Delete(t.Context(), "cut", metav1.DeleteOptions{DryRun: dry})} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s a fault: %v", what, err)
		}
	}
}
