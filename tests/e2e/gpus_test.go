package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gpufabric.io/tests/docker"
)

// testGPUClaims runs the claims of the NVIDIA driver's documentation. Each is a manifest of the examples.
func testGPUClaims(t *testing.T, e *environment) {
	e.run(t, []part{
		{"two pods get a GPU each", testGPUEach},
		{"two containers share their pod's GPU", testGPUOfTwoContainers},
		{"two pods share a claim and outlive each other", testGPUOfTwoPods},
		{"three MIG devices are made on one parent and removed with their pod", testMIGOfOneParent},
		{"one claim has a GPU in long time slices and one behind MPS", testTimeSlicingAndMPS},
		{"two pods share a GPU by memory and cores", testGPUShares},
		{"a node of counted shares gives two pods one each", testCountedShares},
	})
}

// seen are the GPUs and MIG capabilities of /dev that a container sees: "nvidia3", "nvidia-cap12".
func (e *environment) seen(t *testing.T, pod, container string) []string {
	t.Helper()
	return strings.Fields(e.kubectl(t, "exec", pod, "--container", container, "--", "sh", "-c",
		"ls /dev | grep -E '^nvidia[0-9]+$'; ls /dev/nvidia-caps 2>/dev/null || true"))
}

// ready waits for pods and returns the node of each.
func (e *environment) ready(t *testing.T, pods ...string) []string {
	t.Helper()
	var nodes []string
	for _, pod := range pods {
		e.kubectl(t, "wait", "pod/"+pod, "--for=condition=Ready", inTime)
		nodes = append(nodes, e.kubectl(t, "get", "pod", pod, "--output", "jsonpath={.spec.nodeName}"))
	}
	return nodes
}

// smi is the output of nvidia-smi on a node.
func (e *environment) smi(ctx context.Context, node string, args ...string) (string, error) {
	return docker.Script(ctx, node, "/var/lib/fakefabric/driver/usr/bin/nvidia-smi "+strings.Join(args, " ")+" 2>&1 || true",
		"FAKEFABRIC_ROOT=/var/lib/fakefabric")
}

func testGPUEach(t *testing.T, e *environment) {
	e.apply(t, e.file(t, "examples/manifests/gpu-one.yaml"))
	nodes := e.ready(t, "one-gpu-a", "one-gpu-b")
	a, b := e.seen(t, "one-gpu-a", "main"), e.seen(t, "one-gpu-b", "main")
	if len(a) != 1 || len(b) != 1 || nodes[0] == nodes[1] && a[0] == b[0] {
		t.Errorf("the pods see %v on %s and %v on %s, want one GPU each, not the same", a, nodes[0], b, nodes[1])
	}
}

func testGPUOfTwoContainers(t *testing.T, e *environment) {
	e.apply(t, e.file(t, "examples/manifests/gpu-of-two-containers.yaml"))
	e.ready(t, "gpu-of-two-containers")
	first, second := e.seen(t, "gpu-of-two-containers", "first"), e.seen(t, "gpu-of-two-containers", "second")
	if len(first) != 1 || !slices.Equal(first, second) {
		t.Errorf("the containers see %v and %v, want the same GPU", first, second)
	}
}

func testGPUOfTwoPods(t *testing.T, e *environment) {
	e.apply(t, e.file(t, "examples/manifests/gpu-of-two-pods.yaml"))
	nodes := e.ready(t, "gpu-of-two-pods-a", "gpu-of-two-pods-b")
	a, b := e.seen(t, "gpu-of-two-pods-a", "main"), e.seen(t, "gpu-of-two-pods-b", "main")
	if len(a) != 1 || !slices.Equal(a, b) || nodes[0] != nodes[1] {
		t.Errorf("the pods see %v on %s and %v on %s, want the same GPU", a, nodes[0], b, nodes[1])
	}
	uid := e.kubectl(t, "get", "resourceclaim", "gpu-of-two-pods", "--output", "jsonpath={.metadata.uid}")
	e.kubectl(t, "delete", "pod/gpu-of-two-pods-a", inTime)
	if traces, err := e.traces(t.Context(), uid); err != nil || len(traces) == 0 {
		t.Errorf("the claim of the pod that stays was given back with the other (error: %v)", err)
	}
	e.kubectl(t, "delete", "pod/gpu-of-two-pods-b", inTime)
	e.vanish(t, "the claim on its node", func(ctx context.Context) ([]string, error) { return e.traces(ctx, uid) })
}

func testGPUShares(t *testing.T, e *environment) {
	e.apply(t, pinned(e.file(t, "examples/manifests/gpu-share.yaml"), e.Workers()[0]))
	e.ready(t, "gpu-share-a", "gpu-share-b")
	a, b := e.seen(t, "gpu-share-a", "main"), e.seen(t, "gpu-share-b", "main")
	if len(a) != 1 || !slices.Equal(a, b) {
		t.Errorf("the pods see %v and %v, want the same GPU", a, b)
	}
	for _, pod := range []string{"gpu-share-a", "gpu-share-b"} {
		if out := e.kubectl(t, "exec", pod, "--", "env"); !has(out, "CUDA_DEVICE_MEMORY_LIMIT_0=20480m", "CUDA_DEVICE_SM_LIMIT=30") {
			t.Errorf("%s is not told its limits:\n%s", pod, out)
		}
	}
}

// testCountedShares has a node offer its GPUs in shares. The claim is that of the NVIDIA driver's own tests of consumableShares.
func testCountedShares(t *testing.T, e *environment) {
	const template = `
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: counted}
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, capacity: {requests: {shares: "1"}}}}]}}}
`
	const pod = `
---
apiVersion: v1
kind: Pod
metadata: {name: counted-%s}
spec:
  terminationGracePeriodSeconds: 1
  nodeSelector: {kubernetes.io/hostname: %s}
  containers: [{name: main, image: "ubuntu:22.04", command: [sleep, infinity], resources: {claims: [{name: gpu}]}}]
  resourceClaims: [{name: gpu, resourceClaimTemplateName: counted}]
`
	node := e.Workers()[0]
	offers := func(want string) {
		t.Helper()
		e.eventually(t, "the node to offer "+want, func(ctx context.Context) (bool, string, error) {
			out, err := e.Kubectl(ctx, nil, "get", "node", node, "--output", `jsonpath={.status.conditions[?(@.type=="GPUForms")].message}`)
			return strings.Contains(out, "asked for: "+want), out, err
		})
	}
	e.kubectl(t, "label", "node", node, "gpufabric.io/gpu-forms=shares_4")
	t.Cleanup(func() { e.kubectlCleanup(t, "label", "node", node, "gpufabric.io/gpu-forms-") })
	offers("shares_4")
	program := filepath.Join(e.root, "bin/gpufabric")
	offered := regexp.MustCompile(node + ` +8 +8 +8 shares \(4\) `)
	// All are free once the claims of the earlier pods are gone.
	e.eventually(t, "gpufabric doctor gpu to say that "+node+" offers 8 GPUs in shares", func(ctx context.Context) (bool, string, error) {
		said, err := exec.CommandContext(ctx, program, "doctor", "gpu", "--kubeconfig", e.Kubeconfig).CombinedOutput()
		return err == nil && offered.Match(said), string(said), err
	})
	e.apply(t, template+fmt.Sprintf(pod, "a", node)+fmt.Sprintf(pod, "b", node))
	e.ready(t, "counted-a", "counted-b")
	a, b := e.seen(t, "counted-a", "main"), e.seen(t, "counted-b", "main")
	if len(a) != 1 || !slices.Equal(a, b) {
		t.Errorf("the pods see %v and %v, want the same GPU", a, b)
	}
	if out := e.kubectl(t, "exec", "counted-a", "--", "env"); strings.Contains(out, "CUDA_DEVICE_MEMORY_LIMIT") {
		t.Errorf("a share that asked for no memory is limited:\n%s", out)
	}
	e.kubectl(t, "delete", "pod/counted-a", "pod/counted-b", inTime)
	e.kubectl(t, "label", "node", node, "gpufabric.io/gpu-forms-")
	offers("flexible")
}

func testMIGOfOneParent(t *testing.T, e *environment) {
	manifest := e.file(t, "examples/manifests/gpu-mig-of-one-parent.yaml")
	e.apply(t, manifest)
	node := e.ready(t, "mig-of-one-parent")[0]
	all := map[string]bool{}
	parents := map[string]bool{}
	for _, container := range []string{"small", "middle", "large"} {
		seen := e.seen(t, "mig-of-one-parent", container)
		for _, name := range seen {
			if strings.HasPrefix(name, "nvidia-cap") {
				all[name] = true
			} else {
				parents[name] = true
			}
		}
		if len(seen) != 3 {
			t.Errorf("container %s sees %v, want its parent and the two capabilities that open its MIG device", container, seen)
		}
	}
	if len(parents) != 1 || len(all) != 6 {
		t.Errorf("the containers see the parents %v and the capabilities %v, want one parent and six", parents, all)
	}
	if out, err := e.smi(t.Context(), node, "mig", "-lgi"); err != nil || !has(out, "1g.10gb", "2g.20gb", "3g.40gb") {
		t.Errorf("the node's MIG instances (error: %v):\n%s", err, out)
	}
	e.kubectl(t, "delete", "pod/mig-of-one-parent", inTime)
	e.eventually(t, "the MIG instances to be removed", func(ctx context.Context) (bool, string, error) {
		out, err := e.smi(ctx, node, "mig", "-lgi")
		return has(out, "No ", "found"), out, err
	})
}

func testTimeSlicingAndMPS(t *testing.T, e *environment) {
	const pod = "time-slicing-and-mps"
	e.apply(t, e.file(t, "examples/manifests/gpu-time-slicing-and-mps.yaml"))
	node := e.ready(t, pod)[0]
	for _, strategy := range []string{"sliced", "mps"} {
		a, b := e.seen(t, pod, strategy+"-a"), e.seen(t, pod, strategy+"-b")
		if len(a) != 1 || !slices.Equal(a, b) {
			t.Errorf("%s: the containers see %v and %v, want the same GPU", strategy, a, b)
		}
	}
	if out := e.kubectl(t, "exec", pod, "--container", "mps-a", "--", "sh", "-c",
		"echo $CUDA_MPS_PIPE_DIRECTORY; ls /tmp/nvidia-mps"); !has(out, "/tmp/nvidia-mps", "control") {
		t.Errorf("the container finds no MPS control daemon:\n%s", out)
	}
	if out := e.kubectl(t, "exec", pod, "--container", "sliced-a", "--", "sh", "-c",
		"env; ls -d /tmp/nvidia-mps 2>&1 || true"); strings.Contains(out, "CUDA_MPS") {
		t.Errorf("the container that shares by time is given MPS:\n%s", out)
	}
	policies := func(ctx context.Context) (string, error) {
		slices, err := e.smi(ctx, node, "compute-policy", "--list")
		if err != nil {
			return "", err
		}
		modes, err := e.smi(ctx, node, "--query-gpu=index,compute_mode", "--format=csv,noheader")
		return slices + "\n" + modes, err
	}
	if out, err := policies(t.Context()); err != nil || strings.Count(out, "Long") != 1 || strings.Count(out, "Exclusive_Process") != 1 {
		t.Errorf("want one GPU with long time slices and one for MPS' server alone (error: %v):\n%s", err, out)
	}
	e.kubectl(t, "delete", "pod/"+pod, inTime)
	e.eventually(t, "the GPUs to be shared in the ordinary way again", func(ctx context.Context) (bool, string, error) {
		out, err := policies(ctx)
		return err == nil && !strings.Contains(out, "Long") && !strings.Contains(out, "Exclusive"), out, err
	})
	// The keeper of the daemons still runs, so its socket and its lock remain.
	e.vanish(t, "what MPS wrote", func(ctx context.Context) ([]string, error) {
		out, err := docker.Script(ctx, node, `ls -A /run/gpufabric/mps | grep --invert-match '^keeper\.' || true`)
		return strings.Fields(out), err
	})
}

func has(text string, all ...string) bool {
	return !slices.ContainsFunc(all, func(one string) bool { return !strings.Contains(text, one) })
}

// inject makes an event happen to a node's hardware.
func (e *environment) inject(t *testing.T, node string, event ...string) {
	t.Helper()
	agent := e.kubectl(t, "--namespace", "fake-hardware", "get", "pods", "--field-selector", "spec.nodeName="+node, "--output",
		"jsonpath={.items[0].metadata.name}")
	e.kubectl(t, append([]string{"--namespace", "fake-hardware", "exec", agent, "--", "fakefabric", "inject", "--root", "/var/lib/fakefabric"},
		event...)...)
}

// taints are the taints of a node's whole GPUs, as "gpu-3 gpu.nvidia.com/xid=119:NoSchedule", sorted.
func (e *environment) taints(t *testing.T, node string) []string {
	t.Helper()
	var list struct {
		Items []struct {
			Spec struct {
				Devices []struct {
					Name   string
					Taints []struct{ Key, Value, Effect string }
				}
			}
		}
	}
	e.get(t, &list, "resourceslices", "--field-selector", "spec.driver=gpu.nvidia.com,spec.nodeName="+node)
	var out []string
	for _, slice := range list.Items {
		for _, device := range slice.Spec.Devices {
			for _, taint := range device.Taints {
				if strings.Count(device.Name, "-") == 1 {
					out = append(out, fmt.Sprintf("%s %s=%s:%s", device.Name, taint.Key, taint.Value, taint.Effect))
				}
			}
		}
	}
	slices.Sort(out)
	return out
}
