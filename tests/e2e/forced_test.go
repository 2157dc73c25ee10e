package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"gpufabric.io/tests/docker"
)

// deafClaim is a claim template of the default namespace.
func deafClaim(name, request string) string {
	return fmt.Sprintf(`
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: %s}
spec: {spec: {devices: {requests: [{name: device, exactly: %s}]}}}
---`, name, request)
}

// deafPod is a pod with a claim, whose container ignores SIGTERM.
func deafPod(name, node, template string) string { return holdingPod(name, node, template, "") }

// politePod is a pod with a claim, whose container ends when it is asked to.
func politePod(name, node, template string) string { return holdingPod(name, node, template, "exit 0") }

// holdingPod is a pod with a claim, whose container runs a command on SIGTERM; with an empty one it ignores the signal.
func holdingPod(name, node, template, onTerm string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %[1]s}
spec:
  terminationGracePeriodSeconds: 600
  nodeSelector: {kubernetes.io/hostname: %[2]s}
  containers:
    - name: main
      image: ubuntu:22.04
      command: [bash, -c, "trap '%[4]s' TERM; while true; do sleep 1; done"]
      resources: {claims: [{name: device}]}
  resourceClaims: [{name: device, resourceClaimTemplateName: %[3]s}]
---`, name, node, template, onTerm)
}

// podProcesses is a script that prints the processes of the pod with a UID, each on a line. It supports cgroups of version 1 and 2, and the
// names of the kubelet's drivers cgroupfs and systemd. Cgroups may vanish under find.
func podProcesses(uid string) string {
	return fmt.Sprintf("(find /sys/fs/cgroup \\( -path '*/pod%s/*' -o -path '*-pod%s.slice/*' \\) -name cgroup.procs "+
		"-exec cat {} + 2>/dev/null || true) | sort -u", uid, strings.ReplaceAll(uid, "-", "_"))
}

// signalRuntime is a script that sends a signal to the runtime's shim of a pod. While that is stopped, the pod's containers run on,
// whatever the kubelet requests: it ends those of a pod that was deleted by force after two seconds, unless the runtime hangs or the
// kernel has them in an uninterruptible call.
func signalRuntime(pod, signal string) string {
	return fmt.Sprintf("sandbox=$(crictl pods --quiet --name '^%s$'); test -n \"$sandbox\"; pkill -%s -f -- \"-id $sandbox\"", pod, signal)
}

// endPod is a script that ends every process of the pod with a UID, and has its runtime run on.
func endPod(pod, uid string) string {
	return podProcesses(uid) + " | while read -r p; do kill -KILL $p || true; done; " + signalRuntime(pod, "CONT")
}

// succession is a device of a node that one pod has and another one requests.
type succession struct {
	device      string
	first, next string // the claim templates
}

// devicesOf lists a pod's device nodes: GPUs, verbs devices, IMEX channels. A MIG instance is seen as its GPU.
func (e *environment) devicesOf(t *testing.T, pod string) string {
	t.Helper()
	return e.kubectl(t, "exec", pod, "--", "sh", "-c", "ls /dev | grep -E '^nvidia[0-9]+$'; "+
		"ls /dev/infiniband /dev/nvidia-caps-imex-channels 2>/dev/null | grep -E 'uverbs|channel'; true")
}

// gpuUUID waits until a node offers a GPU, and returns its UUID.
func (e *environment) gpuUUID(t *testing.T, node string, index int) string {
	t.Helper()
	var uuid string
	e.eventually(t, fmt.Sprintf("%s to offer GPU %d", node, index), func(ctx context.Context) (found bool, out string, err error) {
		uuid, err = e.Kubectl(ctx, nil, "get", "resourceslices", "--field-selector=spec.driver="+gpuDriver+",spec.nodeName="+node, "--output",
			fmt.Sprintf(`jsonpath={.items[*].spec.devices[?(@.name=="gpu-%d")].attributes.uuid.string}`, index))
		return strings.HasPrefix(uuid, "GPU-"), uuid, err
	})
	return strings.TrimSpace(uuid)
}

// gpuDriver is the driver of GPUs, and the class of whole ones.
const gpuDriver = "gpu.nvidia.com"

// requestOf is a request of a claim for a device of a class that fits a CEL expression. capacity may be empty.
func requestOf(class, capacity, expression string) string {
	return fmt.Sprintf(`{deviceClassName: %s, %s selectors: [{cel: {expression: '%s'}}]}`, class, capacity, expression)
}

// wholeGPU, migOf and shareOf request a GPU by its index, a MIG instance of the GPU with a UUID, and a share of a GPU by its index.
func wholeGPU(index int) string { return requestOf(gpuDriver, "", gpuIndex(index)) }

func migOf(uuid string) string {
	return requestOf("mig.nvidia.com", "", `device.attributes["gpu.nvidia.com"].parentUUID == "`+uuid+
		`" && device.attributes["gpu.nvidia.com"].profile == "1g.10gb"`)
}

func shareOf(index int) string {
	return requestOf("gpu-share.gpufabric.io", `capacity: {requests: {memory: 20Gi, cores: "30"}},`, gpuIndex(index))
}

func gpuIndex(index int) string {
	return fmt.Sprintf(`device.attributes["%s"].index == %d`, gpuDriver, index)
}

// testForcedDeletion deletes pods by force whose containers run on: one with a whole GPU, one with a MIG instance, one with a share, and
// one with a NIC. The next pods request the same device or the whole one.
func testForcedDeletion(t *testing.T, e *environment) {
	const resource = "rdma/forced"
	node := e.Workers()[0]
	nic := requestOf("rdma.gpufabric.io", "", `has(device.attributes["rdma.gpufabric.io"].pool) && `+
		`device.attributes["rdma.gpufabric.io"].pool == "`+resource+`" && device.attributes["rdma.gpufabric.io"].rdmaDevice == "mlx5_3"`)
	e.apply(t, `{apiVersion: gpufabric.io/v1alpha1, kind: RDMAPool, metadata: {name: forced}, spec: {resourceName: forced, mode: Exclusive,
		selectors: {vendors: ["15b3"]}}}`)
	e.apply(t, strings.Join([]string{
		deafClaim("forced-whole", wholeGPU(5)),
		deafClaim("forced-mig", migOf(e.gpuUUID(t, node, 4))), deafClaim("forced-whole-mig", wholeGPU(4)),
		deafClaim("forced-share", shareOf(3)), deafClaim("forced-whole-share", wholeGPU(3)),
		deafClaim("forced-nic", nic),
	}, "\n"))
	e.takenOver(t, node, []succession{
		{"a whole GPU", "forced-whole", "forced-whole"},
		{"a MIG instance, then its GPU", "forced-mig", "forced-whole-mig"},
		{"a share, then its GPU", "forced-share", "forced-whole-share"},
		{"a NIC", "forced-nic", "forced-nic"},
	})
}

// testForcedChannel is the same for the IMEX session of a node, which a pod of another ComputeDomain gets next.
func testForcedChannel(t *testing.T, e *environment) {
	e.domains(t, "forced-a", "forced-b")
	e.takenOver(t, e.Workers()[0], []succession{{"an IMEX channel", "forced-a", "forced-b"}})
}

// domains makes ComputeDomains of a node each, with claim templates of the same names.
func (e *environment) domains(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		e.apply(t, fmt.Sprintf(`{apiVersion: resource.nvidia.com/v1beta1, kind: ComputeDomain, metadata: {name: %[1]s},
			spec: {numNodes: 1, channel: {resourceClaimTemplate: {name: %[1]s}}}}`, name))
		e.kubectl(t, "wait", "resourceclaimtemplate/"+name, "--for=create", inTime)
	}
}

// takenOver deletes the first pod of each succession by force, whose container runs on. The next one gets its device when that
// container has ended, and not before.
func (e *environment) takenOver(t *testing.T, node string, all []succession) {
	t.Helper()
	uids, saw := make([]string, len(all)), make([]string, len(all))
	first := func(i int) string { return fmt.Sprintf("forced-%d", i) }
	next := func(i int) string { return fmt.Sprintf("after-forced-%d", i) }
	for i, s := range all {
		e.apply(t, deafPod(first(i), node, s.first))
	}
	t.Cleanup(func() { // before the pods are deleted, where the test failed
		for i, uid := range uids {
			if uid != "" {
				_, _ = docker.Script(context.WithoutCancel(t.Context()), node, endPod(first(i), uid))
			}
		}
	})
	for i := range all {
		e.ready(t, first(i))
		uids[i] = e.kubectl(t, "get", "pod", first(i), "--output", "jsonpath={.metadata.uid}")
		saw[i] = e.devicesOf(t, first(i))
		_, err := docker.Script(t.Context(), node, signalRuntime(first(i), "STOP"))
		must(t, err)
	}
	for i, s := range all {
		e.kubectl(t, "delete", "pod", first(i), "--force", "--grace-period=0", "--wait=false")
		e.apply(t, deafPod(next(i), node, s.next))
		t.Cleanup(func() { e.kubectlCleanup(t, "delete", "pod/"+next(i), "--grace-period=1", "--ignore-not-found") })
	}
	// The kubelet's reconcile loop unprepares the first claims within a minute: this looks for longer than that.
	waits := make([]bool, len(all))
	for deadline := time.Now().Add(75 * time.Second); time.Now().Before(deadline); time.Sleep(time.Second) {
		for i, s := range all {
			processes, err := docker.Script(t.Context(), node, podProcesses(uids[i]))
			must(t, err)
			if strings.TrimSpace(processes) == "" {
				t.Fatalf("%s: the first pod's container ended by itself, so the test shows nothing", s.device)
			}
			if phase := e.kubectl(t, "get", "pod", next(i), "--output", "jsonpath={.status.phase}"); phase != "Pending" {
				t.Fatalf("%s: the next pod is %s while the first one's container has it", s.device, phase)
			}
			events := e.kubectl(t, "get", "events", "--field-selector=involvedObject.name="+next(i), "--output",
				`jsonpath={range .items[*]}{.reason}: {.message}{"\n"}{end}`)
			waits[i] = waits[i] || strings.Contains(events, "DeviceInUse") && strings.Contains(events, "UID "+uids[i])
		}
	}
	for i, s := range all {
		if !waits[i] {
			t.Errorf("%s: no Event of the next pod has the reason DeviceInUse and names the pod that it waits for:\n%s", s.device,
				e.kubectl(t, "get", "events", "--field-selector=involvedObject.name="+next(i)))
		}
		_, err := docker.Script(t.Context(), node, endPod(first(i), uids[i]))
		must(t, err)
		ended := time.Now()
		e.ready(t, next(i))
		measured(t, "forced deletion, "+s.device+": container's end to the next pod ready", time.Since(ended))
		if got := e.devicesOf(t, next(i)); got != saw[i] {
			t.Errorf("%s: the next pod sees %q, want %q", s.device, got, saw[i])
		}
	}
}
