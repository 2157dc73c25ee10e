package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// Pods of our scheduler, by their requests for a node's eight GPUs.
const (
	preemptingPod = `
{apiVersion: v1, kind: Pod, metadata: {name: %s}, spec: {schedulerName: gpufabric-scheduler, priorityClassName: %s, ` +
		`terminationGracePeriodSeconds: 1,
  nodeSelector: {kubernetes.io/hostname: %s}, %s}}
---`
	byTemplate = `resourceClaims: [{name: gpu, resourceClaimTemplateName: %s}], containers: [{name: main, image: "ubuntu:24.04", ` +
		`command: [sleep, infinity], resources: {claims: [{name: gpu}]}}]`
	bySingleLine = `containers: [{name: main, image: "ubuntu:24.04", command: [sleep, infinity], resources: {limits: {nvidia.com/gpu: 1}}}]`
)

// testDRAPreempted fills a node with two pods of lower priority, one for each way to request GPUs through DRA. Then pods of
// higher priority request GPUs in both ways.
func testDRAPreempted(t *testing.T, e *environment) {
	node := e.Workers()[0]
	e.apply(t, `{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: dra-low}, value: 10}
---
{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: dra-middle}, value: 50}
---
{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: dra-high}, value: 100}
---
`+gpuTemplate("dra-7", 7)+"---\n"+gpuTemplate("dra-2", 2))
	pod := func(name, priority, asks string) string {
		return fmt.Sprintf(preemptingPod, name, priority, node, asks)
	}
	there := func() []string {
		t.Helper()
		return strings.Fields(e.kubectl(t, "get", "pods", "dra-line", "dra-claim", "--ignore-not-found", "--output",
			"jsonpath={..metadata.name}"))
	}
	e.apply(t, pod("dra-line", "dra-low", bySingleLine)+pod("dra-claim", "dra-middle", fmt.Sprintf(byTemplate, "dra-7")))
	e.ready(t, "dra-line", "dra-claim")
	uids := e.claimUIDs(t, "dra-claim")

	// A pod of the same priority waits, since it may not preempt.
	e.apply(t, pod("dra-equal", "dra-low", bySingleLine))
	e.eventually(t, "a pod of low priority to wait", func(ctx context.Context) (bool, string, error) {
		out, err := e.Kubectl(ctx, nil, "get", "pod", "dra-equal", "--output", `jsonpath={.status.conditions[?(@.type=="PodScheduled")].reason}`)
		return out == "Unschedulable", out, err
	})
	if got := there(); len(got) != 2 {
		t.Errorf("a pod of low priority came, and of dra-line and dra-claim %v are left", got)
	}
	e.kubectl(t, "delete", "pod/dra-equal", inTime)

	e.apply(t, pod("dra-urgent-line", "dra-high", bySingleLine))
	e.ready(t, "dra-urgent-line")
	// A pod's claim is free when its containers have ended, which is before the pod is gone.
	e.eventually(t, "dra-line, which has the lowest priority, to go for one GPU in a single line, and no other",
		func(context.Context) (bool, string, error) {
			got := there()
			return slices.Equal(got, []string{"dra-claim"}), fmt.Sprint(got), nil
		})
	if claim := e.kubectl(t, "get", "pod", "dra-urgent-line", "--output",
		"jsonpath={.status.extendedResourceClaimStatus.resourceClaimName}"); claim == "" {
		t.Error("the pod that preempted has no claim for its extended resource: something else than DRA gave it the GPU")
	}

	e.apply(t, pod("dra-urgent-claim", "dra-high", fmt.Sprintf(byTemplate, "dra-2")))
	e.ready(t, "dra-urgent-claim")
	e.vanish(t, "dra-claim, for a claim of two GPUs,", func(context.Context) ([]string, error) { return there(), nil })
	line, claim := e.seen(t, "dra-urgent-line", "main"), e.seen(t, "dra-urgent-claim", "main")
	if len(line) != 1 || len(claim) != 2 || slices.Contains(claim, line[0]) {
		t.Errorf("the pods that preempted see %v and %v, want one GPU and two others", line, claim)
	}
	e.vanish(t, "the preempted claim on its node", func(ctx context.Context) ([]string, error) { return e.traces(ctx, uids...) })
	e.kubectl(t, "delete", "pod/dra-urgent-line", "pod/dra-urgent-claim", inTime)
}
