package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// A VGPUProfile that is spread, and pods that ask for a slice of it in a single line.
const (
	spreadProfile = `{apiVersion: gpufabric.io/v1alpha1, kind: VGPUProfile, metadata: {name: tenth}, spec: {mode: Software, memory: 8Gi, cores: 10, policy: Spread}}`
	profilePod    = `
{apiVersion: v1, kind: Pod, metadata: {namespace: %s, name: %s}, spec: {schedulerName: gpufabric-scheduler, terminationGracePeriodSeconds: 1,
  nodeSelector: {kubernetes.io/hostname: %s},
  containers: [{name: main, image: "ubuntu:24.04", command: [sleep, infinity], resources: {limits: {gpufabric.io/tenth: 1}}}]}}
---`
)

// testProfileSlices runs a VGPUProfile with its policy, by our own scheduler, from the object to the container, and limits it by a quota.
func testProfileSlices(t *testing.T, e *environment) {
	node := e.Workers()[0]
	e.apply(t, spreadProfile)
	touched := 0
	// What is free is counted each minute, and when the profile changes.
	free := func(taken int) {
		t.Helper()
		eventually(t, fmt.Sprintf("all slices but %d to be free", taken), func(ctx context.Context) (bool, string, error) {
			touched++
			if _, err := e.Kubectl(ctx, nil, "annotate", "vgpuprofile", "tenth", fmt.Sprint("touched=", touched), "--overwrite"); err != nil {
				return false, "", err
			}
			out, err := e.Kubectl(ctx, nil, "get", "vgpuprofile", "tenth", "--output", `jsonpath={.status.fits} {.status.free} {.status.extendedResourceName}`)
			var fits, left int
			var resource string
			_, _ = fmt.Sscan(out, &fits, &left, &resource)
			return fits > 0 && left == fits-taken && resource == "gpufabric.io/tenth", out, err
		})
	}
	free(0)
	e.apply(t, fmt.Sprintf(profilePod, "default", "slice-a", node)+fmt.Sprintf(profilePod, "default", "slice-b", node))
	e.ready(t, "slice-a", "slice-b")
	a, b := e.seen(t, "slice-a", "main"), e.seen(t, "slice-b", "main")
	if len(a) != 1 || len(b) != 1 || slices.Equal(a, b) {
		t.Errorf("the pods see %v and %v, want a GPU each, spread", a, b)
	}
	for _, pod := range []string{"slice-a", "slice-b"} {
		if env := e.kubectl(t, "exec", pod, "--", "env"); !has(env, "CUDA_DEVICE_MEMORY_LIMIT_0=8192m", "CUDA_DEVICE_SM_LIMIT=10") {
			t.Errorf("%s is not told its limits:\n%s", pod, env)
		}
	}
	free(2)

	e.apply(t, `{apiVersion: v1, kind: Namespace, metadata: {name: profile-limited}}
---
{apiVersion: v1, kind: ResourceQuota, metadata: {name: slices, namespace: profile-limited}, spec: {hard: {requests.gpufabric.io/tenth: 1}}}
---`)
	eventually(t, "the quota to be taken up", func(ctx context.Context) (bool, string, error) {
		out, err := e.Kubectl(ctx, nil, "--namespace", "profile-limited", "get", "resourcequota", "slices", "--output", "jsonpath={.status.hard}")
		return strings.Contains(out, "tenth"), out, err
	})
	e.apply(t, fmt.Sprintf(profilePod, "profile-limited", "first", node))
	e.kubectl(t, "--namespace", "profile-limited", "wait", "pod/first", "--for=condition=Ready", "--timeout=120s")
	if said := e.refused(t, fmt.Sprintf(profilePod, "profile-limited", "second", node)); !has(said, "exceeded quota: slices", "requests.gpufabric.io/tenth=1") {
		t.Errorf("a second slice where one is allowed is refused with %s", said)
	}
	e.kubectl(t, "--namespace", "profile-limited", "delete", "pod/first", "--timeout=60s")
	e.kubectl(t, "delete", "pod/slice-a", "pod/slice-b", "--timeout=60s")
	free(0)
}
