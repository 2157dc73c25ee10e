package versions

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"gpufabric.io/build/repository"
	"gpufabric.io/drivers/doctor"
	"gpufabric.io/drivers/doctor/preflight"
	"gpufabric.io/drivers/node/host"
	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/domain"
	"gpufabric.io/tests/simcluster/fabric"
	"gpufabric.io/tests/simcluster/fixture"
	"gpufabric.io/tests/simcluster/manifests"
)

var verbs = regexp.MustCompile(`^/dev/infiniband/uverbs\d+$`)

func TestDomainGivesTheSeedsPodItsChannel(t *testing.T) {
	n := shared.Namespace(t)
	n.ApplyFile("examples/manifests/imex-channel-injection.yaml")
	n.AwaitPod("imex-channel-injection", fixture.Running)
	if got := n.DevicePaths("imex-channel-injection"); !slices.Equal(got, []string{"/dev/nvidia-caps-imex-channels/channel0"}) {
		t.Errorf("received %v; want channel 0", got)
	}
}

func TestDomainFormsOverTwoNodes(t *testing.T) {
	n := shared.Namespace(t)
	n.Domain("d", 2)
	for i, name := range []string{"one", "two"} {
		n.Pod(name, "d-channel", cluster.NodeName(i))
	}
	n.AwaitDomain("d", domain.ReadyOn(2))
	for _, name := range []string{"one", "two"} {
		n.AwaitPod(name, fixture.Running)
	}
}

// A tenant's claim for the device of IMEX daemons is refused in each version of the API that the server has.
func TestDaemonDeviceIsRefusedInEveryServedVersion(t *testing.T) {
	n := shared.Namespace(t)
	groups, err := shared.Client.Discovery().ServerGroups()
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for _, group := range groups.Groups {
		if group.Name != "resource.k8s.io" {
			continue
		}
		for _, served := range group.Versions {
			request := map[string]any{"name": "d"}
			const class = "compute-domain-daemon.nvidia.com"
			switch served.Version {
			case "v1", "v1beta2":
				request["exactly"] = map[string]any{"deviceClassName": class}
			case "v1beta1":
				request["deviceClassName"] = class
			default:
				continue // no claims
			}
			tried++
			claim := &unstructured.Unstructured{Object: map[string]any{"apiVersion": served.GroupVersion, "kind": "ResourceClaim",
				"metadata": map[string]any{"name": "daemon"}, "spec": map[string]any{"devices": map[string]any{"requests": []any{request}}}}}
			_, err := n.Manifests.Objects().Resource(schema.GroupVersionResource{Group: group.Name, Version: served.Version,
				Resource: "resourceclaims"}).Namespace(n.Name).Create(t.Context(), claim, metav1.CreateOptions{})
			if err == nil || !strings.Contains(err.Error(), "is for the IMEX daemons that gpufabric runs") {
				t.Errorf("%s: error %v, want the policy's", served.GroupVersion, err)
			}
		}
	}
	if tried == 0 {
		t.Fatalf("the server has no claims: %+v", groups.Groups)
	}
}

func TestRDMARunsTheSeedsPods(t *testing.T) {
	n := shared.Namespace(t)
	n.RemoveAtEnd(fixture.ConfigMaps, "kube-system", "rdma-devices")
	n.ApplyFile("examples/manifests/rdma-devices-configmap.yaml")
	n.AwaitAllocatable(cluster.NodeName(0), "rdma/hca_shared_devices_a", 1000)
	for _, name := range []string{"mofed-test-pod", "rdma-server", "rdma-client"} {
		n.ApplyFile("examples/manifests/" + name + ".yaml")
		n.AwaitPod(name, fixture.Running)
		if got := n.Devices(name, verbs); len(got) != 1 {
			t.Errorf("%s received %v; want one NIC's verbs", name, got)
		}
	}
}

// Without consumable capacity a slot would be the whole device, and the next claim would find none.
func TestRDMASlotsNeedConsumableCapacity(t *testing.T) {
	n := shared.Namespace(t)
	n.Template("nic", "rdma.gpufabric.io", "")
	n.ClaimPod("client", "", "nic")
	if !gates(t)[shares] {
		n.AwaitPod("client", unschedulable)
		return
	}
	n.AwaitPod("client", fixture.Running)
	if got := n.Devices("client", verbs); len(got) != 1 {
		t.Errorf("received %v; want one NIC's verbs", got)
	}
}

func TestExclusiveRDMAPoolIsGivenToOneClaim(t *testing.T) {
	n := shared.Namespace(t)
	n.Pool("whole", `{resourceName: whole, mode: Exclusive, selectors: {vendors: ["15b3"]}}`)
	n.AwaitAllocatable(cluster.NodeName(1), "rdma/whole", 1)
	n.LimitPod("one", cluster.NodeName(1), "rdma/whole: 1")
	n.AwaitPod("one", fixture.Running)
	if got := n.Devices("one", verbs); len(got) != 1 {
		t.Errorf("received %v; want one NIC's verbs", got)
	}
}

// Every seed's manifest whose kinds the cluster has is accepted. Whose kinds are others' (MPIJob, Volcano's Job) is not applied here.
func TestSeedsAreAccepted(t *testing.T) {
	root, err := repository.Root()
	if err != nil {
		t.Fatal(err)
	}
	list, err := os.ReadFile(filepath.Join(root, "tests/seeds/SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	applied := 0
	for line := range strings.Lines(string(list)) {
		_, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		objects, err := manifests.Read(filepath.Join(root, "examples/manifests", name))
		if err != nil {
			t.Fatal(err)
		}
		missing, err := shared.Manifests.Missing(objects)
		if err != nil {
			t.Fatal(err)
		}
		if len(missing) > 0 {
			t.Logf("%s: the cluster has no %v", name, missing)
			continue
		}
		applied++
		t.Run(name, func(t *testing.T) {
			n := shared.Namespace(t)
			if err := n.Manifests.Apply(t.Context(), n.Name, objects...); err != nil {
				t.Fatal(err)
			}
			if err := n.Manifests.Delete(t.Context(), n.Name, objects...); err != nil {
				t.Error(err)
			}
		})
	}
	if applied < 8 {
		t.Errorf("%d manifests were applied, want those of eight files at least", applied)
	}
}

func TestPreflightJudgesTheVersion(t *testing.T) {
	values := fabric.Values()
	values["gpus"] = map[string]any{"enabled": true}
	text, err := yaml.Marshal(values)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	command := doctor.Command(host.Host{Stdout: &out, Stderr: &out, Getenv: func(string) string { return "" },
		RESTConfig: func() (*rest.Config, error) { return rest.CopyConfig(shared.Config), nil }})
	command.SetArgs([]string{"preflight", "--values", file, "--system-namespace", fixture.System, "--output=json", "--request-timeout=2m",
		"--timeout=5m"})
	command.SilenceUsage, command.SilenceErrors = true, true
	var status *doctor.StatusError
	if err := command.ExecuteContext(t.Context()); err != nil && (!errors.As(err, &status) || status.Message != "") {
		t.Fatalf("preflight: %v\n%s", err, out.String())
	}
	var checks []preflight.Check
	if err := json.Unmarshal(out.Bytes(), &checks); err != nil {
		t.Fatal(err)
	}
	want := map[string]preflight.Result{"Kubernetes version": preflight.OK, "resource.k8s.io/v1": preflight.OK}
	if v := version(t); v < "36" {
		want["Kubernetes version"] = preflight.Warning
	}
	for _, c := range checks {
		if result, ok := want[c.Name]; ok {
			delete(want, c.Name)
			t.Logf("%s: %s: %s", c.Name, c.Result, c.Detail)
			if c.Result != result {
				t.Errorf("%s: %s (%s), want %s", c.Name, c.Result, c.Detail, result)
			}
		}
	}
	if len(want) > 0 {
		t.Errorf("no check %v among %+v", want, checks)
	}
}
