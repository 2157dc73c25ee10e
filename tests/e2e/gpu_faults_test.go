package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"gpufabric.io/tests/docker"
)

// pinned is a manifest of the examples with every pod on one node.
func pinned(manifest, node string) string {
	return strings.ReplaceAll(manifest, "\n  containers:\n", "\n  nodeSelector: {kubernetes.io/hostname: "+node+"}\n  containers:\n")
}

// testGPUHealth breaks GPUs of a node while a pod holds one, and heals them.
func testGPUHealth(t *testing.T, e *environment) {
	const pod = "gpu-of-two-containers"
	e.apply(t, pinned(e.file(t, "examples/manifests/gpu-of-two-containers.yaml"), e.Workers()[0]))
	node := e.ready(t, pod)[0]
	held := strings.TrimPrefix(e.seen(t, pod, "first")[0], "nvidia")
	lost, unlinked := "6", "7"
	e.inject(t, node, "gpu-lost", "gpu="+lost)
	e.inject(t, node, "nvlink-down", "gpu="+unlinked, "link=4")
	want := []string{
		"gpu-" + held + " gpu.nvidia.com/xid=119:NoSchedule",
		"gpu-" + lost + " gpu.nvidia.com/lost=79:NoExecute",
		"gpu-" + unlinked + " gpu.nvidia.com/nvlink=link-4:NoSchedule",
	}
	// The fake driver names no recovery action after an XID, so that its fault ends ten seconds after it was last seen.
	again := func() { e.inject(t, node, "xid", "gpu="+held, "code=119") }
	e.eventually(t, "the taints of the broken GPUs", func(context.Context) (bool, string, error) {
		again()
		got := e.taints(t, node)
		return slices.Equal(got, want), fmt.Sprint(got), nil
	})
	e.eventually(t, "the kubelet to say in the pod's status that its GPU is unhealthy", func(ctx context.Context) (bool, string, error) {
		again()
		out, err := e.Kubectl(ctx, nil, "get", "pod", pod, "--output", "jsonpath={.status.containerStatuses[*].allocatedResourcesStatus}")
		return strings.Count(out, `"Unhealthy"`) == 2, out, err
	})
	for _, kind := range []string{"Pod", "ResourceClaim"} {
		e.eventually(t, "an Event on the "+kind, func(ctx context.Context) (bool, string, error) {
			out, err := e.Kubectl(ctx, nil, "get", "events", "--field-selector", "reason=GPUUnhealthy,involvedObject.kind="+kind, "--output",
				"jsonpath={.items[*].message}")
			return strings.Contains(out, "XID 119"), out, err
		})
	}
	e.inject(t, node, "gpu-back", "gpu="+lost)
	e.inject(t, node, "nvlink-up", "gpu="+unlinked, "link=4")
	e.eventually(t, "the taints to go", func(context.Context) (bool, string, error) {
		got := e.taints(t, node)
		return len(got) == 0, fmt.Sprint(got), nil
	})
	e.eventually(t, "the pod's GPU to be healthy again", func(ctx context.Context) (bool, string, error) {
		out, err := e.Kubectl(ctx, nil, "get", "pod", pod, "--output", "jsonpath={.status.containerStatuses[*].allocatedResourcesStatus}")
		return err == nil && !strings.Contains(out, `"Unhealthy"`), out, err
	})
}

// testKilledInPrepare kills the plugin of a node while it makes MIG devices, each of which takes seconds there.
func testKilledInPrepare(t *testing.T, e *environment) {
	const pod = "mig-of-one-parent"
	node := e.Workers()[1]
	e.inject(t, node, "delay", "function=nvmlGpuInstanceCreateComputeInstance", "ms=2000")
	e.apply(t, pinned(e.file(t, "examples/manifests/gpu-mig-of-one-parent.yaml"), node))
	e.eventually(t, "the first MIG instance to stand", func(ctx context.Context) (bool, string, error) {
		out, err := e.smi(ctx, node, "mig", "-lgi")
		return strings.Contains(out, "g."), out, err
	})
	killed, err := docker.Script(t.Context(), node, "pid=$(pgrep -f 'gpufabric-node gpu-plugin'); kill -9 $pid; echo $pid")
	must(t, err)
	if len(strings.Fields(killed)) != 1 {
		t.Fatalf("killed the processes %q, want the plugin alone", killed)
	}
	e.inject(t, node, "delay", "function=nvmlGpuInstanceCreateComputeInstance", "ms=0")
	e.eventually(t, "the plugin to serve again", func(ctx context.Context) (bool, string, error) {
		out, err := docker.Script(ctx, node, "pgrep -f 'gpufabric-node gpu-plugin' || true")
		return strings.TrimSpace(out) != "" && out != killed, out, err
	})
	e.hasten(t, pod)
	e.ready(t, pod)
	if out, err := e.smi(t.Context(), node, "mig", "-lgi"); err != nil || strings.Count(out, "g.") != 3 {
		t.Errorf("want the three instances of the claim and no other (error: %v):\n%s", err, out)
	}
	e.kubectl(t, "delete", "pod/"+pod, inTime)
	e.eventually(t, "the MIG instances to be removed", func(ctx context.Context) (bool, string, error) {
		out, err := e.smi(ctx, node, "mig", "-lgi")
		return has(out, "No ", "found"), out, err
	})
}

// hasten makes the kubelet handle a pod at once by changing the pod. After a failed prepare the kubelet would otherwise wait
// for up to a minute and a half.
func (e *environment) hasten(t *testing.T, pod string) {
	t.Helper()
	e.kubectl(t, "annotate", "--overwrite", "pod", pod, "gpufabric.io/hastened=true")
}

// testReboot does what a reboot does to a node's GPUs and their claims. The node itself stays up, since its boot ID is a file
// of the fake hardware.
func testReboot(t *testing.T, e *environment) {
	const pod, plugin = "mig-of-one-parent", "daemonset/gpufabric-gpu-plugin"
	node := e.Workers()[1]
	script := func(text string) string {
		t.Helper()
		out, err := docker.Script(t.Context(), node, text, "FAKEFABRIC_ROOT=/var/lib/fakefabric")
		must(t, err)
		return out
	}
	restart := func() {
		t.Helper()
		e.kubectl(t, "--namespace", "gpufabric-system", "rollout", "restart", plugin)
		e.kubectl(t, "--namespace", "gpufabric-system", "rollout", "status", plugin, inTime)
	}
	const boot = "/var/lib/fakefabric/proc/sys/kernel/random"
	script("mkdir -p " + boot + "; echo first >" + boot + "/boot_id")
	restart()
	e.apply(t, pinned(e.file(t, "examples/manifests/gpu-mig-of-one-parent.yaml"), node))
	e.ready(t, pod)
	uid := e.claimUIDs(t, pod)[0]

	script(`set -e
		systemctl stop kubelet
		for pod in $(crictl pods --quiet --name '^(` + pod + `|gpufabric-gpu-plugin.*)$'); do crictl stopp $pod; done
		echo second >` + boot + `/boot_id
		rm -f /var/run/cdi/*
		smi=/var/lib/fakefabric/driver/usr/bin/nvidia-smi
		$smi mig -dci; $smi mig -dgi; $smi -mig 0
		systemctl start kubelet`)
	e.eventually(t, "the claim to be prepared for the new boot", func(ctx context.Context) (bool, string, error) {
		out, err := docker.Script(ctx, node, "cat /var/lib/gpufabric/gpu-plugin/claims/"+uid+".claim; ls /var/run/cdi")
		return has(out, `"bootID":"second"`, uid+".json"), out, err
	})
	e.eventually(t, "the pod to run again", func(ctx context.Context) (bool, string, error) {
		out, err := e.Kubectl(ctx, nil, "get", "pod", pod, "--output",
			"jsonpath={range .status.containerStatuses[*]}{.ready}/{.restartCount} {end}")
		return out == "true/1 true/1 true/1", out, err
	})
	for _, container := range []string{"small", "middle", "large"} {
		if seen := e.seen(t, pod, container); len(seen) != 3 {
			t.Errorf("after the reboot container %s sees %v, want its parent and two capabilities", container, seen)
		}
	}
	if out, err := e.smi(t.Context(), node, "mig", "-lgi"); err != nil || strings.Count(out, "g.") != 3 {
		t.Errorf("want the three instances of the claim (error: %v):\n%s", err, out)
	}
	e.kubectl(t, "delete", "pod/"+pod, inTime)
}
