package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// testOwnScheduler installs gpufabric-scheduler under the scheduler's name in the seed's pods and job. The test binds no pod
// itself.
func testOwnScheduler(t *testing.T, e *environment) {
	e.configure(t, "nvidia: {deviceSplitCount: 10, gpuMemoryFactor: 10}", `{"nodeconfig": []}`)
	e.replace(t, "vgpu-plugin", e.Workers()[1])
	for _, worker := range e.Workers() {
		e.registered(t, worker, ",10,4606,NVIDIA-L40S,true,hami-core:")
		e.eventually(t, "the kubelet of "+worker+" to count the shares", func(ctx context.Context) (bool, string, error) {
			out, err := e.Kubectl(ctx, nil, "get", "node", worker, "--output", `jsonpath={.status.allocatable.volcano\.sh/vgpu-memory}`)
			return out == "36848", out, err
		})
	}
	install := func(values ...string) error {
		arguments := []string{"upgrade", "gpufabric", filepath.Join(e.root, "charts/gpufabric"), "--namespace", vgpuNamespace, "--reuse-values",
			"--wait", "--timeout", patience.String()}
		for _, value := range values {
			arguments = append(arguments, "--set", value)
		}
		_, err := e.Helm(context.WithoutCancel(t.Context()), e.printer, arguments...)
		return err
	}
	t.Cleanup(func() {
		if err := install("scheduler.enabled=false"); err != nil {
			t.Errorf("remove the scheduler: %v", err)
		}
	})
	must(t, install("scheduler.enabled=true", "scheduler.name=volcano"))

	e.run(t, []part{
		{"a slice is preempted from a pod of lower priority", testSlicePreempted},
		{"two of the seed's pods", testSeedPods},
		{"the seed's Volcano job, by a double of its controller", testVolcanoJob},
		// This part is the last, since it needs few units. A kubelet keeps the units of ended pods until its next pod with
		// units, and they cost it quadratic time when the machine changes to other units (docs/limitations.md, shares for
		// Volcano).
		{"a quota counts slices", testSliceQuota},
	})
}

// testSeedPods has the scheduler place two of the seed's pods.
func testSeedPods(t *testing.T, e *environment) {
	seen := map[string]string{} // a pod's GPU
	for document := range strings.SplitSeq(e.file(t, "examples/manifests/vgpu-pods.yaml"), "\n---\n") {
		if !strings.Contains(document, "name: mig-pod") {
			e.apply(t, document)
		}
	}
	for pod, want := range map[string][]string{
		"test1":    {"CUDA_DEVICE_MEMORY_LIMIT_0=10240m"},
		"hami-pod": {"CUDA_DEVICE_MEMORY_LIMIT_0=30000m", "CUDA_DEVICE_SM_LIMIT=50"},
	} {
		e.kubectl(t, "wait", "pod/"+pod, "--for=condition=Ready", inTime)
		placed := e.kubectl(t, "get", "pod", pod, "--output",
			`jsonpath={.spec.nodeName} {.metadata.annotations.volcano\.sh/vgpu-node} {.metadata.annotations.volcano\.sh/vgpu-ids-new}`)
		fields := strings.Fields(placed)
		if len(fields) != 3 || fields[0] != fields[1] {
			t.Errorf("%s was placed as %q, want its node twice and its share", pod, placed)
			continue
		}
		uuid, _, _ := strings.Cut(fields[2], ",")
		seen[pod] = fields[0] + " " + uuid
		if env := e.kubectl(t, "exec", pod, "--", "env"); !has(env, append(want, "NVIDIA_VISIBLE_DEVICES="+uuid)...) {
			t.Errorf("%s has not the share that the scheduler wrote (%s):\n%s", pod, fields[2], env)
		}
	}
	// Binpack: 1024 and 3000 units of a GPU's 4606.
	if seen["test1"] != seen["hami-pod"] {
		t.Errorf("binpack put the seed's pods on two GPUs: %v", seen)
	}
	e.kubectl(t, "delete", "pod/test1", "pod/hami-pod", "--grace-period=1", inTime)
}

// sliceByScheduler is a pod of the scheduler's that requests units of the memory of one given GPU.
func sliceByScheduler(namespace, name, priority, uuid string, units int) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata:
  namespace: %s
  name: %s
  annotations: {volcano.sh/vgpu-use-gpuuuid: %s}
spec:
  schedulerName: volcano
  priorityClassName: %q
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: "ubuntu:24.04", command: [sleep, infinity], resources: {limits: {volcano.sh/vgpu-number: 1, `+
		`volcano.sh/vgpu-memory: %d}}}
---`, namespace, name, uuid, priority, units)
}

// testSlicePreempted makes a pod of high priority that fits no GPU unless a pod of low priority goes. The node's sums, as the
// kubelet counts, would have room for both.
func testSlicePreempted(t *testing.T, e *environment) {
	uuid := e.registered(t, e.Workers()[0], ",10,4606,NVIDIA-L40S,true,hami-core:")[5]
	e.apply(t, `{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: vgpu-low}, value: 10}
---
{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: vgpu-high}, value: 100}
---`)
	e.apply(t, sliceByScheduler("default", "cheap", "vgpu-low", uuid, 2000)+sliceByScheduler("default", "dear", "vgpu-high", uuid, 2000))
	for _, pod := range []string{"cheap", "dear"} {
		e.kubectl(t, "wait", "pod/"+pod, "--for=condition=Ready", inTime)
	}
	e.apply(t, sliceByScheduler("default", "urgent", "vgpu-high", uuid, 2500))
	e.kubectl(t, "wait", "pod/urgent", "--for=condition=Ready", inTime)
	if env := e.kubectl(t, "exec", "urgent", "--", "env"); !has(env, "CUDA_DEVICE_MEMORY_LIMIT_0=25000m", "NVIDIA_VISIBLE_DEVICES="+uuid) {
		t.Errorf("the pod that preempted has not its share:\n%s", env)
	}
	// A pod's shares are free when its containers have ended, which is before the pod is gone.
	e.eventually(t, "cheap to go and dear, of the priority of the one that preempted, to stay",
		func(ctx context.Context) (bool, string, error) {
			left, err := e.Kubectl(ctx, nil, "get", "pods", "cheap", "dear", "--ignore-not-found", "--output", "name")
			return left == "pod/dear", left, err
		})
	e.kubectl(t, "delete", "pod/urgent", "pod/dear", inTime)
}

func testSliceQuota(t *testing.T, e *environment) {
	uuid := e.registered(t, e.Workers()[0], ",10,4606,NVIDIA-L40S,true,hami-core:")[6]
	e.apply(t, `{apiVersion: v1, kind: Namespace, metadata: {name: vgpu-limited}}
---
{apiVersion: v1, kind: ResourceQuota, metadata: {name: slices, namespace: vgpu-limited}, spec: {hard: {requests.volcano.sh/vgpu-number: 1}}}
---`)
	e.eventually(t, "the quota to be taken up", func(ctx context.Context) (bool, string, error) {
		out, err := e.Kubectl(ctx, nil, "--namespace", "vgpu-limited", "get", "resourcequota", "slices", "--output", "jsonpath={.status.hard}")
		return strings.Contains(out, "vgpu-number"), out, err
	})
	e.apply(t, sliceByScheduler("vgpu-limited", "first", "", uuid, 100))
	e.kubectl(t, "--namespace", "vgpu-limited", "wait", "pod/first", "--for=condition=Ready", inTime)
	if said := e.refused(t, sliceByScheduler("vgpu-limited", "second", "", uuid, 100)); !has(said, "exceeded quota: slices",
		"requests.volcano.sh/vgpu-number=1") {
		t.Errorf("a second slice where one is allowed is refused with %s", said)
	}
	e.kubectl(t, "--namespace", "vgpu-limited", "delete", "pod/first", inTime)
}
