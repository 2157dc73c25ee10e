package e2e

import (
	"context"
	"encoding/json"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"gpufabric.io/tests/docker"
)

const (
	// ackHCA is the resource by which the ACK job requests an HCA. On h100-hgx the chart makes a DeviceClass for it, since DRA
	// serves the pools there.
	ackHCA = "rdma/hca"
	// ackPool gives the job's resource to every HCA of the node.
	ackPool = `{apiVersion: gpufabric.io/v1alpha1, kind: RDMAPool, metadata: {name: ack}, spec: {resourceName: hca, rdmaHcaMax: 64, ` +
		`selectors: {vendors: ["15b3"]}}}`
)

// testACKJob runs the seed's job of eight GPUs and an HCA on the node's network, without changing a byte. Its pod waits for a
// node with all GPUs free, until the tests that run beside this one have ended. The stand-in for the job's program opens all devices
// that it was given and prints what that was.
func testACKJob(t *testing.T, e *environment) {
	const pods = "job-name=hps-benchmark"
	e.apply(t, ackPool)
	started := time.Now()
	e.apply(t, e.file(t, "examples/manifests/ack-hps-benchmark.yaml"))
	e.kubectl(t, "wait", "pods", "--selector", pods, "--for=create", inTime)
	_, err := e.Kubectl(t.Context(), nil, "wait", "pods", "--selector", pods,
		"--for=jsonpath={.status.containerStatuses[0].state.terminated.reason}", inTime)
	code := e.kubectl(t, "get", "pods", "--selector", pods, "--output",
		"jsonpath={.items[*].status.containerStatuses[0].state.terminated.exitCode}")
	if err != nil || code != "0" {
		said, _ := e.Kubectl(t.Context(), nil, "logs", "--selector", pods, "--tail=-1")
		about, _ := e.Kubectl(t.Context(), nil, "describe", "pods", "--selector", pods)
		t.Fatalf("the job's pod ended with the code %q, want 0 (error: %v):\n%s\n%s", code, err, said, about)
	}
	e.kubectl(t, "wait", "job/hps-benchmark", "--for=condition=Complete", inTime)
	measured(t, "the ACK job applied to complete", time.Since(started))

	var list struct {
		Items []struct {
			Metadata struct{ Name string }
			Spec     struct{ NodeName string }
			Status   struct {
				ExtendedResourceClaimStatus struct {
					RequestMappings []struct{ ResourceName string }
				}
			}
		}
	}
	e.get(t, &list, "pods", "--selector", pods)
	if len(list.Items) != 1 {
		t.Fatalf("the job ran %d pods, want one that succeeds at once", len(list.Items))
	}
	pod := list.Items[0]
	var resources []string
	for _, mapping := range pod.Status.ExtendedResourceClaimStatus.RequestMappings {
		resources = append(resources, mapping.ResourceName)
	}
	slices.Sort(resources)
	if want := []string{"nvidia.com/gpu", ackHCA}; !slices.Equal(resources, want) {
		t.Errorf("DRA served the pod %v, want %v", resources, want)
	}
	e.trained(t, pod.Spec.NodeName, e.kubectl(t, "logs", pod.Metadata.Name))

	e.kubectl(t, "delete", "job/hps-benchmark", "--cascade=foreground", inTime)
	e.vanish(t, "the job's claim", func(ctx context.Context) ([]string, error) {
		left, err := e.Kubectl(ctx, nil, "get", "resourceclaims", "--output", "name")
		return slices.DeleteFunc(strings.Fields(left), func(name string) bool { return !strings.Contains(name, "hps-benchmark") }), err
	})
}

// trained compares the output of the stand-in for the job's program with the node that it ran on.
func (e *environment) trained(t *testing.T, node, said string) {
	t.Helper()
	var seen struct {
		Host                    string
		GPUs, UUIDs, InfiniBand []string
		HCA                     string
		ShmMiB                  int
	}
	if err := json.Unmarshal([]byte(said), &seen); err != nil {
		t.Fatalf("the job's log is not one line of JSON: %v\n%s", err, said)
	}
	if seen.Host != node {
		t.Errorf("the job's host is %s, want the node's own network on %s", seen.Host, node)
	}
	if want := []string{"nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidia4", "nvidia5", "nvidia6", "nvidia7"}; !slices.Equal(seen.GPUs,
		want) {
		t.Errorf("the job opened the GPUs %v, want %v", seen.GPUs, want)
	}
	gpus, err := e.smi(t.Context(), node, "--query-gpu=uuid", "--format=csv,noheader")
	must(t, err)
	if want := strings.Fields(gpus); !slices.Equal(seen.UUIDs, want) {
		t.Errorf("the job's nvidia-smi has the GPUs %v, the node's %v", seen.UUIDs, want)
	}
	nodes, err := docker.Script(t.Context(), node, `cd "$HCA/device" && ls infiniband_verbs infiniband_mad`,
		"HCA=/var/lib/fakefabric/sys/class/infiniband/"+path.Base(seen.HCA))
	must(t, err)
	want := []string{"rdma_cm"}
	for _, name := range strings.Fields(nodes) {
		if !strings.HasSuffix(name, ":") { // ls names its directories
			want = append(want, name)
		}
	}
	slices.Sort(want)
	if !slices.Equal(seen.InfiniBand, want) || len(want) != 4 {
		t.Errorf("the job opened %v of /dev/infiniband, want all of %s and of no other HCA: %v", seen.InfiniBand, seen.HCA, want)
	}
	if seen.ShmMiB <= 64 {
		t.Errorf("the job's /dev/shm has %d MiB, as the runtime's own: its volume is not there", seen.ShmMiB)
	}
	t.Logf("%s", strings.TrimSpace(said))
}
