package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// A VGPUProfile with the policy spread, and pods that request a slice of it in a single line.
const (
	spreadProfile = `{apiVersion: gpufabric.io/v1alpha1, kind: VGPUProfile, metadata: {name: tenth}, spec: {mode: Software, memory: 8Gi, ` +
		`cores: 10, policy: Spread}}`
	profilePod = `
{apiVersion: v1, kind: Pod, metadata: {namespace: %s, name: %s}, spec: {schedulerName: gpufabric-scheduler, ` +
		`terminationGracePeriodSeconds: 1,
  nodeSelector: {kubernetes.io/hostname: %s},
  containers: [{name: main, image: "ubuntu:24.04", command: [sleep, infinity], resources: {limits: {gpufabric.io/tenth: 1}}}]}}
---`
)

// testProfileSlices runs a VGPUProfile with its policy, by our own scheduler, from the object to the container, and limits it by a quota.
func testProfileSlices(t *testing.T, e *environment) {
	node := e.Workers()[0]
	e.apply(t, spreadProfile)
	touched := 0
	// The free slices are counted each minute, and when the profile changes.
	free := func(taken int) {
		t.Helper()
		e.eventually(t, fmt.Sprintf("all slices but %d to be free", taken), func(ctx context.Context) (bool, string, error) {
			touched++
			if _, err := e.Kubectl(ctx, nil, "annotate", "vgpuprofile", "tenth", fmt.Sprint("touched=", touched), "--overwrite"); err != nil {
				return false, "", err
			}
			out, err := e.Kubectl(ctx, nil, "get", "vgpuprofile", "tenth", "--output",
				`jsonpath={.status.fits} {.status.free} {.status.extendedResourceName}`)
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
	e.eventually(t, "the quota to be taken up", func(ctx context.Context) (bool, string, error) {
		out, err := e.Kubectl(ctx, nil, "--namespace", "profile-limited", "get", "resourcequota", "slices", "--output", "jsonpath={.status.hard}")
		return strings.Contains(out, "tenth"), out, err
	})
	e.apply(t, fmt.Sprintf(profilePod, "profile-limited", "first", node))
	e.kubectl(t, "--namespace", "profile-limited", "wait", "pod/first", "--for=condition=Ready", inTime)
	if said := e.refused(t, fmt.Sprintf(profilePod, "profile-limited", "second", node)); !has(said, "exceeded quota: slices",
		"requests.gpufabric.io/tenth=1") {
		t.Errorf("a second slice where one is allowed is refused with %s", said)
	}
	e.kubectl(t, "--namespace", "profile-limited", "delete", "pod/first", inTime)
	e.kubectl(t, "delete", "pod/slice-a", "pod/slice-b", inTime)
	free(0)
}

// testProfileModes runs VGPUProfiles that select existing devices, MIG devices and whole GPUs. Pods request them in a single
// line.
func testProfileModes(t *testing.T, e *environment) {
	node := e.Workers()[0]
	const modes = `
{apiVersion: gpufabric.io/v1alpha1, kind: VGPUProfile, metadata: {name: %s}, spec: {mode: %s, memory: %s}}
---`
	for name, size := range map[string][2]string{"small-mig": {"MIG", "8Gi"}, "large-mig": {"MIG", "30Gi"}, "whole": {"Exclusive", "70Gi"}} {
		e.apply(t, fmt.Sprintf(modes, name, size[0], size[1]))
	}
	var manifest strings.Builder
	pods := []string{"small-mig", "large-mig", "whole"}
	for _, profile := range pods {
		fmt.Fprint(&manifest, strings.ReplaceAll(fmt.Sprintf(profilePod, "default", profile, node), "gpufabric.io/tenth",
			"gpufabric.io/"+profile))
		e.eventually(t, profile+" to fit", func(ctx context.Context) (bool, string, error) {
			out, err := e.Kubectl(ctx, nil, "get", "vgpuprofile", profile, "--output",
				`jsonpath={.status.conditions[?(@.type=="Ready")].status} {.status.extendedResourceName}`)
			return out == "True gpufabric.io/"+profile, out, err
		})
	}
	e.apply(t, manifest.String())
	e.ready(t, pods...)
	for _, pod := range []string{"small-mig", "large-mig"} {
		if seen := e.seen(t, pod, "main"); len(seen) != 3 {
			t.Errorf("%s sees %v, want its parent and the two capabilities that open its MIG device", pod, seen)
		}
	}
	if out, err := e.smi(t.Context(), node, "mig", "-lgi"); err != nil || !has(out, "1g.10gb", "3g.40gb") || strings.Count(out, "MIG ") != 2 {
		t.Errorf("the node's MIG instances are not the smallest that have 8 and 30 GiB (error: %v):\n%s", err, out)
	}
	whole := e.seen(t, "whole", "main")
	if len(whole) != 1 || slices.Contains(e.seen(t, "small-mig", "main"), whole[0]) ||
		slices.Contains(e.seen(t, "large-mig", "main"), whole[0]) {
		t.Errorf("the pod of the profile in mode Exclusive sees %v, want a GPU that no MIG device is on", whole)
	}
	e.kubectl(t, "delete", "pod/small-mig", "pod/large-mig", "pod/whole", inTime)
	e.eventually(t, "the MIG devices to be removed", func(ctx context.Context) (bool, string, error) {
		out, err := e.smi(ctx, node, "mig", "-lgi")
		return has(out, "No ", "found"), out, err
	})
}
