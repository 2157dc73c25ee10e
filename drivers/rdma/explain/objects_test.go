package explain_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"gpufabric.io/drivers/hardware/sysfstest"
	"gpufabric.io/drivers/node/host"
	"gpufabric.io/drivers/rdma/explain"
)

// pools are RDMAPools for every kind of answer: served beside the file's, in conflict, refused for its name, invalid, for other
// nodes.
const pools = `
apiVersion: gpufabric.io/v1alpha1
kind: RDMAPool
metadata: {name: shared, generation: 1}
spec: {resourceName: rail_0, rdmaHcaMax: 8, selectors: {vendors: [15b3], minRateGbps: 200}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: something-else}
data: {unknown: "1"}
---
apiVersion: gpufabric.io/v1alpha1
kind: RDMAPoolList
items:
- apiVersion: gpufabric.io/v1alpha1
  kind: RDMAPool
  metadata: {name: whole, generation: 2}
  spec: {nodeSelector: {matchLabels: {rack: a}}, resourceName: whole, mode: Exclusive, selectors: {ifNames: [ibp3s0]}}
- apiVersion: gpufabric.io/v1alpha1
  kind: RDMAPool
  metadata: {name: twin, generation: 1}
  spec: {resourceName: roce, rdmaHcaMax: 1, selectors: {linkLayers: [Ethernet]}}
- apiVersion: gpufabric.io/v1alpha1
  kind: RDMAPool
  metadata: {name: mistaken, generation: 1}
  spec: {resourceName: m, selectors: {vendors: [mellanox]}}
- apiVersion: gpufabric.io/v1alpha1
  kind: RDMAPool
  metadata: {name: elsewhere, generation: 1}
  spec: {nodeSelector: {matchLabels: {rack: b}}, resourceName: e, selectors: {vendors: [15b3]}}
`

// want is the expected result for those pools on a node of rack a.
var want = []explain.Pool{
	{Resource: "rdma/hca_shared_devices_a", Source: "config.json configList[0]", Devices: []string{"mlx5_0"},
		Conflicts: []string{"mlx5_0: also in RDMAPool shared", "mlx5_0: RDMAPool whole wants it"}},
	{Resource: "rdma/roce", Source: "config.json configList[1]", Devices: []string{"mlx5_1"},
		Conflicts: []string{"RDMAPool twin wants the resource rdma/roce too", "mlx5_1: also in RDMAPool shared"}},
	{Resource: "rdma/rail_0", Source: "RDMAPool shared", Devices: []string{"mlx5_0", "mlx5_1"},
		Conflicts: []string{"mlx5_0: also in config.json configList[0]", "mlx5_1: also in config.json configList[1]"}},
	{Resource: "rdma/roce", Source: "RDMAPool twin",
		NotServed: "the resource rdma/roce is that of config.json configList[1] already: rename one of the two"},
	{Resource: "rdma/whole", Source: "RDMAPool whole", Conflicts: []string{"mlx5_0: config.json configList[0] has it"}},
	{Resource: "rdma/m", Source: "RDMAPool mistaken",
		NotServed: `spec.selectors.vendors[0]: Invalid value: "mellanox": must be four hexadecimal digits without 0x, such as 15b3`},
	{Source: "RDMAPool elsewhere", NotServed: "its nodeSelector does not select this node"},
}

func manifest(t *testing.T, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "pools.yaml")
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

func check(t *testing.T, out string, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	var answer explain.Answer
	if err := json.Unmarshal([]byte(out), &answer); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, answer.Pools); diff != "" {
		t.Error(diff)
	}
	if got := answer.Devices[0].Refusals["rdma/whole"]; got != "config.json configList[0] has it already, and one of the two pools is "+
		"exclusive" {
		t.Errorf("mlx5_0 was refused by rdma/whole for %q", got)
	}
}

func TestRDMAPoolsOfAManifestAreExplained(t *testing.T) {
	t.Run("with labels given", func(t *testing.T) {
		out, err := run(t, two, "--manifest", manifest(t, pools), "--node-labels", "rack=a,zone=z", "--json")
		check(t, out, err)
	})
	t.Run("with the node in the manifest", func(t *testing.T) {
		node := "---\napiVersion: v1\nkind: Node\nmetadata: {name: node-1, labels: {rack: a}}\nstatus: {unknownHere: true}\n"
		out, err := run(t, two, "--manifest", manifest(t, pools+node), "--node-name", "node-1", "--json")
		check(t, out, err)
	})
	t.Run("as a table", func(t *testing.T) {
		out, err := run(t, two, "--manifest", manifest(t, pools), "--node-labels", "rack=a")
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range []string{
			"RDMAPool twin is not served: the resource rdma/roce is that of",
			"RDMAPool shared (rdma/rail_0): mlx5_0: also in config.json configList[0]",
			"RDMAPool elsewhere is not served: its nodeSelector",
		} {
			if !strings.Contains(out, "\n"+line) {
				t.Errorf("no line starts with %q in\n%s", line, out)
			}
		}
		if table, _, _ := strings.Cut(out, "\n\n"); strings.Count(table, "rdma/roce") != 2 {
			t.Errorf("a resource that two pools want occurs twice for each device:\n%s", out)
		}
	})
}

func TestExplainReportsAllMistakesOfAManifest(t *testing.T) {
	_, err := run(t, two, "--node-labels", "rack=a", "--manifest", manifest(t, `
apiVersion: gpufabric.io/v1alpha1
kind: RDMAPool
metadata: {name: a}
spec: {resourceName: a, selector: {vendors: [15b3]}, selectors: {vendor: [15b3]}}
---
apiVersion: gpufabric.io/v1beta1
kind: RDMAPool
metadata: {name: b}
---
kind: [
---
apiVersion: v1
kind: List
items:
- {apiVersion: gpufabric.io/v1alpha1, kind: RDMAPool, metadata: {name: c}, spec: {resourceName: c, rdmaHcaMax: "1"}}
- {apiVersion: gpufabric.io/v1alpha1, kind: RDMAPool, spec: {resourceName: d}}
`))
	if err == nil {
		t.Fatal("it was taken")
	}
	for _, part := range []string{
		`document 1: RDMAPool a: `, `unknown field "spec.selector"`, `unknown field "spec.selectors.vendor"`,
		`document 2: RDMAPool: apiVersion: "gpufabric.io/v1beta1"`, "document 3: ",
		"document 4: items[0]: RDMAPool c: ", "rdmaHcaMax", "document 4: items[1]: RDMAPool : metadata.name is missing",
	} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error lacks %q:\n%v", part, err)
		}
	}
}

func TestExplainDoesNotGuessWithoutNodeLabels(t *testing.T) {
	_, err := run(t, two, "--manifest", manifest(t, pools))
	if err == nil || !strings.Contains(err.Error(), "RDMAPool elsewhere selects nodes by their labels") ||
		!strings.Contains(err.Error(), "--node-labels") {
		t.Errorf("got %v", err)
	}
	_, err = run(t, two, "--manifest", manifest(t, pools), "--node-labels", "rack a")
	if err == nil || !strings.Contains(err.Error(), `"rack a"`) {
		t.Errorf("got %v", err)
	}
}

// server answers as an API server with those pools and a node of rack a; notFound: without the CRD.
func server(t *testing.T, notFound bool) host.Host {
	t.Helper()
	var items []json.RawMessage
	for _, document := range strings.Split(pools, "---\n") {
		content, err := yaml.YAMLToJSON([]byte(document))
		if err != nil {
			t.Fatal(err)
		}
		var object struct {
			Kind  string            `json:"kind"`
			Items []json.RawMessage `json:"items"`
		}
		if err := json.Unmarshal(content, &object); err != nil {
			t.Fatal(err)
		}
		if items = append(items, object.Items...); object.Kind == "RDMAPool" {
			items = append(items, content)
		}
	}
	list, err := json.Marshal(map[string]any{"apiVersion": "gpufabric.io/v1alpha1", "kind": "RDMAPoolList", "metadata": map[string]any{},
		"items": items})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.URL.Path == "/apis/gpufabric.io/v1alpha1/rdmapools" && !notFound:
			_, _ = w.Write(list)
		case r.URL.Path == "/api/v1/nodes/node-1":
			_, _ = w.Write([]byte(`{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1", "labels": {"rack": "a"}}}`))
		default:
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404, "message": ` +
				`"not found"}`))
		}
	}))
	t.Cleanup(s.Close)
	return host.Host{RESTConfig: func() (*rest.Config, error) { return &rest.Config{Host: s.URL}, nil }}
}

func TestRDMAPoolsOfTheAPIServerAreExplained(t *testing.T) {
	tree, file := hardware(t), manifest(t, two)
	flags := []string{"--sysfs-root", tree.Sys, "--config", file, "--json"}
	t.Run("as those of a manifest", func(t *testing.T) {
		out, err := command(t, server(t, false), append(flags, "--node-name", "node-1")...)
		check(t, out, err)
	})
	t.Run("by a kubeconfig", func(t *testing.T) {
		reach, _ := server(t, false).Kubernetes()
		kubeconfig := manifest(t, `{"apiVersion": "v1", "kind": "Config", "current-context": "c", "contexts": [{"name": "c", "context": `+
			`{"cluster": "c"}}], "clusters": [{"name": "c", "cluster": {"server": "`+reach.Host+`"}}]}`)
		h := server(t, true) // The flag wins.
		out, err := command(t, h, append(flags, "--node-name", "node-1", "--kubeconfig", kubeconfig)...)
		check(t, out, err)
	})
	t.Run("there are none without the CRD", func(t *testing.T) {
		out, err := command(t, server(t, true), append(flags, "--node-name", "node-1")...)
		if err != nil || strings.Contains(out, "RDMAPool") {
			t.Errorf("%v\n%s", err, out)
		}
	})
	for _, wrong := range []struct {
		name string
		args []string
		want string
	}{
		{"without a node's name", nil, "--node-name is empty"},
		{"with the name of no node", []string{"--node-name", "node-2"}, "node-2"},
		{"with labels and no manifest", []string{"--node-name", "node-1", "--node-labels", "a=b"}, "--node-labels needs --manifest"},
		{"with a kubeconfig and a manifest", []string{"--kubeconfig", "k", "--manifest", "m"}, "give one of them"},
		{"with a kubeconfig that is not there", []string{"--kubeconfig", "/does/not/exist"}, "/does/not/exist"},
	} {
		t.Run(wrong.name, func(t *testing.T) {
			if _, err := command(t, server(t, false), append(flags, wrong.args...)...); err == nil || !strings.Contains(err.Error(), wrong.want) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// hardware is a node of one InfiniBand HCA with a dead port, one RoCE HCA and a network card without RDMA.
func hardware(t *testing.T) *sysfstest.Tree {
	t.Helper()
	tree := sysfstest.New(t)
	tree.AddHCA(sysfstest.HCA{Function: sysfstest.Function{Parent: "pci0000:3a/0000:3a:00.0", Address: "0000:3b:00.0"},
		Nets: []string{"ibp3s0"}, State: "1: DOWN", PhysState: "2: Polling"})
	tree.AddHCA(sysfstest.HCA{Function: sysfstest.Function{Parent: "pci0000:5d/0000:5d:00.0", Address: "0000:5e:00.0", Device: "0x101d"},
		Ethernet: true, Nets: []string{"ens2f0"}})
	tree.AddFunction(sysfstest.Function{Parent: "pci0000:10/0000:10:00.0", Address: "0000:11:00.0", Vendor: "0x8086", Device: "0x1572",
		Driver: "i40e"})
	return tree
}
