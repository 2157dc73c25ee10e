package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"gpufabric.io/tests/docker"
)

// drainTaint is the taint of the GPUs of a node that is drained.
const drainTaint = "gpufabric.io/drained"

// testDrain drains a node while a pod has one of its GPUs, resets the GPU, and takes the node back. Every role of the chart
// that opens GPUs takes part.
func testDrain(t *testing.T, e *environment) {
	node := e.Workers()[0]
	plugin := e.kubectl(t, "--namespace", "gpufabric-system", "get", "pods", "--selector", "app.kubernetes.io/component=gpu-plugin",
		"--field-selector", "spec.nodeName="+node, "--output", "name")
	order := func(ctx context.Context, args ...string) (string, error) {
		return e.Kubectl(ctx, nil, append([]string{"--namespace", "gpufabric-system", "exec", plugin, "--", "gpufabric"}, args...)...)
	}
	reset := func() string {
		out, err := e.smi(t.Context(), node, "--gpu-reset", "-i", "3")
		must(t, err)
		return out
	}
	condition := func(want string) {
		t.Helper()
		e.eventually(t, "the node's condition GPUDriver to be "+want, func(ctx context.Context) (bool, string, error) {
			out, err := e.Kubectl(ctx, nil, "get", "node", node, "--output",
				`jsonpath={range .status.conditions[?(@.type=="GPUDriver")]}{.status} {.reason}: {.message}{end}`)
			return strings.HasPrefix(out, want+":"), out, err
		})
	}
	condition("True DriverReady")
	before, err := e.roles(t.Context()) // tests before this one have killed plugins
	must(t, err)

	e.apply(t, fmt.Sprintf(`
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: stands}
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: stands}
spec:
  terminationGracePeriodSeconds: 1
  nodeSelector: {kubernetes.io/hostname: %s}
  containers: [{name: main, image: "ubuntu:22.04", command: [sleep, infinity], resources: {claims: [{name: gpu}]}}]
  resourceClaims: [{name: gpu, resourceClaimName: stands}]
`, node))
	e.ready(t, "stands")
	if out := reset(); !strings.Contains(out, "use") {
		t.Errorf("a GPU is reset while the roles have NVML open:\n%s", out)
	}
	_, err = order(t.Context(), "drain", "--timeout", "30s") // it publishes its taint first
	if err == nil || !strings.Contains(err.Error(), "claim default/stands has gpu-") {
		t.Errorf("a drain that waits for a claim says %v, want the claim's name", err)
	}
	e.eventually(t, "the taints of a drain that was given up to go", func(context.Context) (bool, string, error) {
		got := e.taints(t, node)
		return len(got) == 0, fmt.Sprint(got), nil
	})

	e.kubectl(t, "delete", "pod/stands", inTime)
	out, err := order(t.Context(), "drain", "--timeout", "4m")
	must(t, err)
	t.Logf("the drain says:\n%s", out)
	if got := e.taints(t, node); len(got) != 8 || strings.Count(strings.Join(got, " "), drainTaint) != 8 {
		t.Errorf("a drained node's taints are %v, want those of 8 GPUs", got)
	}
	condition("False GPUsDrained")
	opened, err := docker.Script(t.Context(), node,
		`for p in /proc/[0-9]*; do ls -l $p/fd 2>/dev/null | grep -q '/dev/nvidia' && tr '\0' ' ' <$p/cmdline; done; true`)
	if err != nil || strings.Contains(opened, "gpufabric") {
		t.Errorf("roles of a drained node have the driver open (error: %v):\n%s", err, opened)
	}
	if out := reset(); !strings.Contains(out, "successfully reset") {
		t.Errorf("a drained node's GPU is not reset:\n%s", out)
	}
	e.rolesRun(t, before) // none of them fails because a GPU is missing

	_, err = order(t.Context(), "undrain")
	must(t, err)
	condition("True DriverReady")
	e.eventually(t, "the drain's taints to go", func(context.Context) (bool, string, error) {
		got := e.taints(t, node)
		return len(got) == 0, fmt.Sprint(got), nil
	})
	e.apply(t, pinned(e.file(t, "examples/manifests/cuda-training-pod.yaml"), node))
	e.ready(t, "cuda-training")
	e.kubectl(t, "delete", "pod/cuda-training", "--grace-period=1", inTime)
}
