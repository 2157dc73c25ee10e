package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpufabric.io/tests/docker"
)

// sharedHCA is the resource of the seed's pool, and units is how many a node has.
const (
	sharedHCA = "rdma/hca_shared_devices_a"
	units     = 1000
)

// allocatable is how many units of the seed's pool a node offers.
func (e *environment) allocatable(ctx context.Context, node string) (int, error) {
	out, err := e.Kubectl(ctx, nil, "get", "node", node, "--output", `jsonpath={.status.allocatable.rdma/hca_shared_devices_a}`)
	if err != nil {
		return 0, err
	}
	if out == "1k" {
		return units, nil
	}
	return strconv.Atoi(out)
}

// awaitAllocatable waits until a node offers as many units as wanted. It returns the duration and the number of units that the node offered
// during the wait.
func (e *environment) awaitAllocatable(t *testing.T, node, what string, wanted func(int) bool) (time.Duration, []int) {
	t.Helper()
	begin := time.Now()
	var seen []int
	e.eventually(t, what, func(ctx context.Context) (bool, string, error) {
		n, err := e.allocatable(ctx, node)
		if err == nil && (len(seen) == 0 || seen[len(seen)-1] != n) {
			seen = append(seen, n)
		}
		return err == nil && wanted(n), fmt.Sprint(n), err
	})
	return time.Since(begin), seen
}

// testRDMAPool takes a port of the seed's pool down and up, restarts the kubelet under a pod that holds a unit, and gives all
// the others to one pod.
func testRDMAPool(t *testing.T, e *environment) {
	all := func(n int) bool { return n == units }
	for _, node := range e.Workers() {
		e.awaitAllocatable(t, node, node+" to offer every unit", all)
	}
	e.apply(t, e.file(t, "examples/manifests/rdma-server.yaml"))
	node := e.ready(t, "rdma-server")[0]
	devices := e.explained(t, node)

	e.inject(t, node, "port-down", "device="+devices[0])
	rest := units - units/len(devices)
	took, _ := e.awaitAllocatable(t, node, "the units of "+devices[0]+" to go", func(n int) bool { return n <= rest && n >= rest-1 })
	measured(t, "a port that goes down to the node's allocatable", took)
	e.inject(t, node, "port-up", "device="+devices[0])
	e.awaitAllocatable(t, node, "the units of "+devices[0]+" to come back", all)

	restarted := time.Now().UTC().Truncate(time.Second) // as the API's times are
	_, err := docker.Script(t.Context(), node, "systemctl restart kubelet")
	must(t, err)
	// The kubelet's first status after its restart counts. An earlier status in the API server is from the old kubelet.
	e.eventually(t, "the kubelet to report again", func(ctx context.Context) (bool, string, error) {
		out, err := e.Kubectl(ctx, nil, "get", "node", node, "--output",
			`jsonpath={.status.conditions[?(@.type=="Ready")].status} {.status.conditions[?(@.type=="Ready")].lastHeartbeatTime}`)
		status, stamp, _ := strings.Cut(out, " ")
		heard, parsed := time.Parse(time.RFC3339, stamp)
		return err == nil && parsed == nil && status == "True" && !heard.Before(restarted), out, err
	})
	took, seen := e.awaitAllocatable(t, node, "every unit after the kubelet's restart", all)
	measured(t, "the kubelet's first report after its restart to every unit allocatable", took)
	t.Logf("allocatable after the restart: %v", seen)
	if got := e.kubectl(t, "get", "pod", "rdma-server", "--output",
		"jsonpath={.status.phase} {.status.containerStatuses[0].restartCount}"); got != "Running 0" {
		t.Errorf("the pod that holds a unit is %q after the kubelet's restart", got)
	}

	pod := func(name string, count int) string {
		return fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s}, spec: {nodeSelector: {kubernetes.io/hostname: %s}, containers: [
			{name: c, image: "rdma-test:v1", command: [sleep, infinity], resources: {limits: {%s: %d}}}]}}`, name, node, sharedHCA, count)
	}
	e.apply(t, pod("every-other-unit", units-1))
	e.ready(t, "every-other-unit")
	verbs := strings.Count(e.kubectl(t, "exec", "every-other-unit", "--", "ls", "/dev/infiniband"), "uverbs")
	if verbs != len(devices) {
		t.Errorf("the pod with %d units has %d HCAs of %d", units-1, verbs, len(devices))
	}
	e.apply(t, pod("one-too-many", 1))
	e.eventually(t, "the scheduler to find no unit left", func(ctx context.Context) (bool, string, error) {
		out, err := e.Kubectl(ctx, nil, "get", "pod", "one-too-many", "--output",
			`jsonpath={.status.conditions[?(@.type=="PodScheduled")].message}`)
		return strings.Contains(out, "Insufficient "+sharedHCA), out, err
	})
	for _, name := range []string{"one-too-many", "every-other-unit", "rdma-server"} {
		e.kubectl(t, "delete", "pod", name, "--grace-period=1", inTime)
	}
}

// explained returns the HCAs of the seed's pool on a node, as the node's plugin explains them.
func (e *environment) explained(t *testing.T, node string) []string {
	t.Helper()
	plugin := e.kubectl(t, "--namespace", "kube-system", "get", "pods", "--selector", "app.kubernetes.io/component=rdma-plugin",
		"--field-selector", "spec.nodeName="+node, "--output", "jsonpath={.items[0].metadata.name}")
	out := e.kubectl(t, "--namespace", "kube-system", "exec", plugin, "--", "gpufabric", "doctor", "rdma", "--json",
		"--sysfs-root=/var/lib/fakefabric/sys")
	var answer struct {
		Pools []struct {
			Resource  string   `json:"resource"`
			Source    string   `json:"source"`
			Devices   []string `json:"devices"`
			NotServed string   `json:"notServed"`
		} `json:"pools"`
	}
	must(t, json.Unmarshal([]byte(out), &answer))
	for _, p := range answer.Pools {
		if p.Resource == sharedHCA && p.NotServed == "" && strings.HasPrefix(p.Source, "config.json") && len(p.Devices) > 0 {
			slices.Sort(p.Devices)
			return p.Devices
		}
	}
	t.Fatalf("the plugin on %s explains %s", node, out)
	return nil
}
