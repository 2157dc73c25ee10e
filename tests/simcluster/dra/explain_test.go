package dra

import (
	"bytes"
	"context"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/node/host"
	"gpufabric.io/drivers/rdma/explain"

	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/fabric"
	"gpufabric.io/tests/simcluster/fixture"
)

// reported waits until a node's report on an RDMAPool is as wanted, and returns it.
func reported(t *testing.T, n *fixture.Namespace, pool, node string, wanted func(v1alpha1.RDMAPoolNode) bool) v1alpha1.RDMAPoolNode {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), fixture.Patience)
	defer cancel()
	// A watch without a version begins with the existing objects.
	watching, err := n.Manifests.Objects().Resource(fixture.RDMAPools).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + pool})
	if err != nil {
		t.Fatal(err)
	}
	defer watching.Stop()
	var last v1alpha1.RDMAPool
	for event := range watching.ResultChan() {
		object, ok := event.Object.(*unstructured.Unstructured)
		if !ok {
			t.Fatalf("watch RDMAPool %s: %v", pool, event.Object)
		}
		last = v1alpha1.RDMAPool{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &last); err != nil {
			t.Fatal(err)
		}
		for _, entry := range last.Status.Nodes {
			if entry.Name == node && wanted(entry) {
				return entry
			}
		}
	}
	t.Fatalf("RDMAPool %s has no such report of %s; it has %+v", pool, node, last.Status.Nodes)
	return v1alpha1.RDMAPoolNode{}
}

func TestExplainMatchesReportOfPlugin(t *testing.T) {
	n := shared.Namespace(t)
	node := cluster.NodeName(0)
	n.Pool("a", `{resourceName: ours, rdmaHcaMax: 4, selectors: {vendors: ["15b3"]}}`)
	n.Pool("b", `{resourceName: ours, rdmaHcaMax: 4, selectors: {vendors: ["15b3"]}}`)
	n.Pool("c", `{resourceName: whole, mode: Exclusive, selectors: {isRdma: true}}`)
	n.Pool("d", `{resourceName: none, rdmaHcaMax: 1, selectors: {deviceIDs: ["ffff"]}}`)
	n.Pool("e", `{resourceName: elsewhere, rdmaHcaMax: 1, selectors: {isRdma: true}, nodeSelector: {matchLabels: {kubernetes.io/hostname: `+
		`another}}}`)
	reports := map[string]v1alpha1.RDMAPoolNode{
		"a": reported(t, n, "a", node, func(r v1alpha1.RDMAPoolNode) bool {
			all := strings.Join(r.Conflicts, "\n")
			return strings.Contains(all, "RDMAPool b wants") && strings.Contains(all, "RDMAPool c wants it")
		}),
		"b": reported(t, n, "b", node, func(r v1alpha1.RDMAPoolNode) bool { return r.Message != "" }),
		"c": reported(t, n, "c", node, func(r v1alpha1.RDMAPoolNode) bool { return len(r.Conflicts) > 0 && r.Devices == 0 }),
		"d": reported(t, n, "d", node, func(r v1alpha1.RDMAPoolNode) bool { return r.Message != "" }),
	}

	var out bytes.Buffer
	command := explain.Command(host.Host{Stdout: &out, Getenv: func(string) string { return "" },
		RESTConfig: func() (*rest.Config, error) { return shared.Config, nil }})
	command.SetArgs([]string{"--json", "--node-name", node, "--config", filepath.Join(t.TempDir(), "none.json"),
		"--sysfs-root", filepath.Join(fabric.HardwareOf(cluster.NodeDir(shared.Dir, 0)), "sys")})
	if err := command.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	var answer explain.Answer
	if err := json.Unmarshal(out.Bytes(), &answer); err != nil {
		t.Fatal(err)
	}
	explained := map[string]explain.Pool{}
	for _, p := range answer.Pools {
		explained[strings.TrimPrefix(p.Source, "RDMAPool ")] = p
	}
	for name, report := range reports {
		p := explained[name]
		if len(p.Devices) != int(report.Devices) {
			t.Errorf("%s has the devices %v, and the node reports %d", name, p.Devices, report.Devices)
		}
		conflicts := p.Conflicts
		if p.NotServed != "" {
			conflicts = []string{p.NotServed} // A pool that is refused for its name is in conflict too.
		}
		if diff := cmp.Diff(report.Conflicts, conflicts); diff != "" {
			t.Errorf("conflicts of %s, as reported and as explained: %s", name, diff)
		}
	}
	if got := explained["b"].NotServed; got != reports["b"].Message {
		t.Errorf("b is not served because %q, and the node reports %q", got, reports["b"].Message)
	}
	var refusals []string
	for _, d := range answer.Devices {
		if reason := d.Refusals["rdma/none"]; reason != "" {
			refusals = append(refusals, d.Name+": "+reason)
		}
	}
	if got := strings.Join(refusals, "; "); got != reports["d"].Message || len(refusals) == 0 {
		t.Errorf("d has no device because %q, and the node reports %q", got, reports["d"].Message)
	}
	if p := explained["e"]; !strings.Contains(p.NotServed, "does not select this node") || slices.Contains(p.Devices, "mlx5_0") {
		t.Errorf("the pool of another node is explained as %+v", p)
	}
}
