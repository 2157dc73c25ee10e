package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"gpufabric.io/build/short"
	"gpufabric.io/tests/docker"
)

// driverState mounts the fake node's state into containers with a GPU. The fake driver's programs read it, and programs that allocate
// write it, where real ones query the kernel, which containers share with the node.
const driverState = "gpus.containerEdits.mounts[0].hostPath=/var/lib/fakefabric/state," +
	"gpus.containerEdits.mounts[0].containerPath=/var/lib/fakefabric/state,gpus.containerEdits.mounts[0].options={rw,rbind}"

// TestMachinesServePodsOfSeeds runs pods on other machines than the GB200 rack. The workers get the hardware of one machine after
// another, and the drivers are installed for each. The short suite has the seeds' pods, and what only containers of a real node show:
// what the tests of the drivers' packages or the simulated cluster show too is long.
func TestMachinesServePodsOfSeeds(t *testing.T) {
	e := newEnvironment(t)
	for _, machine := range []struct {
		profile string
		values  []string
		// before is a manifest that is applied before the drivers. The kubelet may need over a minute to bring a later change
		// into a pod's volume.
		before string
		// parts run in this order, since each leaves something in a kubelet that the next one finds.
		parts []part
		// long means that the machine is in the long suite alone.
		long bool
	}{
		{"gb200-nvl72", []string{"gpus.enabled=true", "rdma.enabled=true", "rdma.namespace=kube-system"}, "rdma-devices-configmap.yaml", []part{
			{"the seed's MPI job runs over two nodes' GPUs and IMEX channels", testMPIJob},
			{"a pod deleted by force keeps its IMEX channel until its container has ended", testForcedChannel},
			{"the seed's RDMA pods get their HCA's device nodes and no other's", testRDMAPods},
			{"an RDMA pool outlives a dead port and a restarted kubelet", testRDMAPool},
			{"two pods on two nodes ping each other on a secondary network", testSecondaryNetwork},
			{"pods with a GPU and a channel end without a driver", testDriverRemovedUnderChannel},
			{"a Node registered again offers its devices, and its pods keep theirs", testNodeRegisteredAgain},
			{"containers of a Node that was away keep their devices when it is back", testNodeAwayForLong},
		}, true},
		// MPS mounts a tmpfs of the claim over /dev/shm, which needs privilege.
		{"h100-hgx", []string{"gpus.enabled=true", "gpus.forms.default.form=flexible", "hardware.privileged=true", "rdma.enabled=true",
			"rdma.devicePlugin=false", "rdma.extendedResources={" + ackHCA + "}", "scheduler.enabled=true",
			"console.enabled=true", driverState}, "", []part{
			{"the page of the fabric shows the nodes to who brings a token", long(testPage)},
			{"the seed's ACK job gets eight GPUs and an HCA through DRA", testACKJob},
			{"the seed's training pod gets a GPU through DRA", testTrainingPod},
			{"the claims of the NVIDIA driver's documentation are served", testGPUClaims},
			{"broken GPUs are tainted until they are healthy", long(testGPUHealth)},
			{"a plugin killed in a prepare loses nothing", long(testKilledInPrepare)},
			{"a drained node's GPUs can be reset", long(testDrain)},
			{"pods deleted by force keep their devices until their containers have ended", long(testForcedDeletion)},
			{"pods with GPUs end without a driver", long(testDriverRemoved)},
			{"a reboot prepares claims again", testReboot},
			{"a GPU comes with the NIC that is nearest to it", long(testAlignedPair)},
			{"a pod sees the /sys of its node", long(testNodesSysfs)},
			{"slices of a VGPUProfile are spread, limited and counted", testProfileSlices},
			{"the containers of a claim keep to its share together", long(testShareOfTwoContainers)},
			{"VGPUProfiles hand out MIG devices and whole GPUs", long(testProfileModes)},
			{"our own scheduler preempts for what DRA hands out", long(testDRAPreempted)},
		}, false},
		{"l40s-8", []string{"gpus.enabled=true", "vgpu.enabled=true", playsScheduler}, "", []part{
			{"a GPU is shared as Volcano's scheduler says", testSharedGPU},
			{"slices are limited, watched and given back", testGPUSlices},
			{"a hostile container gets no more than its share", testHostileContainer},
			{"our own scheduler places pods with slices", testOwnScheduler},
		}, false},
		{"a100-40", []string{"gpus.enabled=true", "vgpu.enabled=true", playsScheduler, "scheduler.enabled=true", "scheduler.name=volcano",
			"scheduler.nodeLock=true"}, "", []part{
			{"MIG instances are made for slots and for sizes", testMIGSlots},
		}, true},
	} {
		t.Run(machine.profile, func(t *testing.T) {
			if machine.long {
				notInShort(t)
			}
			if machine.before != "" {
				e.apply(t, e.file(t, "examples/manifests/"+machine.before))
			}
			e.become(t, machine.profile, machine.values...)
			e.run(t, machine.parts)
		})
		e.testExamples(t, machine.profile)
	}
	t.Run("default values", e.testLayouts)
}

// part is a separate test on a cluster that other tests use before and after it.
type part struct {
	name string
	run  func(*testing.T, *environment)
}

// long is a part of the long suite alone.
func long(run func(*testing.T, *environment)) func(*testing.T, *environment) {
	return func(t *testing.T, e *environment) {
		notInShort(t)
		run(t, e)
	}
}

// notInShort skips the test in the short suite.
func notInShort(t *testing.T) {
	t.Helper()
	short.Skip(t, "make test-long PARTS=kind-e2e")
}

func (e *environment) run(t *testing.T, parts []part) {
	for _, p := range parts {
		t.Run(p.name, func(t *testing.T) {
			p.run(t, e)
		})
	}
}

// become replaces the workers' hardware and installs the drivers, with the paths of the fake. The drivers are removed when the
// test ends.
func (e *environment) become(t *testing.T, machine string, values ...string) {
	t.Helper()
	e.equip(t, machine)
	arguments := []string{"--values", filepath.Join(e.root, "charts/fake-hardware/gpufabric-values.yaml")}
	for _, value := range values {
		arguments = append(arguments, "--set", value)
	}
	e.install(t, arguments...)
}

// equip replaces the workers' hardware.
func (e *environment) equip(t *testing.T, machine string) {
	t.Helper()
	must(t, e.Equip(t.Context(), e.printer, machine))
	for _, node := range e.Workers() {
		e.eventually(t, node+" to be a "+machine, func(ctx context.Context) (bool, string, error) {
			out, err := docker.Script(ctx, node, "cat /var/lib/fakefabric/state/rendered.json")
			return strings.Contains(out, `"`+machine+`"`), out, err
		})
	}
}

// install installs the drivers until the test ends.
func (e *environment) install(t *testing.T, arguments ...string) {
	t.Helper()
	e.installFrom(t, e.root, arguments...)
}

// installFrom is install with the chart of a checkout.
func (e *environment) installFrom(t *testing.T, checkout string, arguments ...string) {
	t.Helper()
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if _, err := e.Helm(ctx, e.printer, "uninstall", "gpufabric", "--namespace", "gpufabric-system", "--wait", "--timeout",
			patience.String()); err != nil {
			log, _ := e.Kubectl(ctx, nil, "--namespace", "gpufabric-system", "logs", "--selector", "app.kubernetes.io/component=uninstall-check")
			t.Errorf("remove the drivers: %v\n%s", err, log)
			t.Log(e.state(t))
		}
		e.nodesAreClean(ctx, t)
		// Helm does not remove the namespace that it made.
		if _, err := e.Kubectl(ctx, nil, "delete", "namespace", "gpufabric-system", "--ignore-not-found", inTime); err != nil {
			t.Errorf("remove the drivers' namespace: %v", err)
		}
	})
	_, err := e.Helm(t.Context(), e.printer, append([]string{"install", "gpufabric", filepath.Join(checkout, "charts/gpufabric"),
		"--namespace", "gpufabric-system", "--create-namespace", "--wait", "--timeout", patience.String(), "--set", "crds.keep=false"},
		arguments...)...)
	if err != nil {
		pods, _ := e.Kubectl(t.Context(), nil, "--namespace", "gpufabric-system", "get", "pods", "--output", "wide")
		events, _ := e.Kubectl(t.Context(), nil, "--namespace", "gpufabric-system", "get", "events", "--field-selector", "type=Warning")
		t.Fatalf("install the drivers: %v\n%s\n%s", err, pods, events)
	}
}

// nodesAreClean checks that the uninstall has removed what the drivers wrote on their nodes.
func (e *environment) nodesAreClean(ctx context.Context, t *testing.T) {
	t.Helper()
	out, err := e.Kubectl(ctx, nil, "get", "nodes", "--output", "json")
	must(t, err)
	for _, key := range []string{"nvidia.com/gpu.clique", "resource.nvidia.com/computeDomain", "volcano.sh/node-vgpu-register",
		"volcano.sh/node-vgpu-handshake", "vgpu.gpufabric.io/unit", "vgpu.gpufabric.io/mig-slots", "hamivgpu"} {
		if strings.Contains(out, `"`+key+`"`) {
			t.Errorf("the drivers are removed, and a node still has %s", key)
		}
	}
}

// testRDMAPods runs the seed's pods with the seed's configuration of the pool that they request (applied before), without changing a byte
// of either.
func testRDMAPods(t *testing.T, e *environment) {
	for _, node := range e.Workers() {
		e.eventually(t, node+" to have 1000 rdma/hca_shared_devices_a", func(ctx context.Context) (bool, string, error) {
			out, err := e.Kubectl(ctx, nil, "get", "node", node, "--output", `jsonpath={.status.allocatable.rdma/hca_shared_devices_a}`)
			return out == "1k" || out == "1000", out, err
		})
	}
	for _, pod := range []string{"mofed-test-pod", "rdma-server", "rdma-client"} {
		e.apply(t, e.file(t, "examples/manifests/"+pod+".yaml"))
	}
	for _, pod := range []string{"mofed-test-pod", "rdma-server", "rdma-client"} {
		e.kubectl(t, "wait", "pod/"+pod, "--for=condition=Ready", inTime)
		nodes := strings.Fields(e.kubectl(t, "exec", pod, "--", "ls", "/dev/infiniband"))
		kinds := map[string]int{}
		for _, node := range nodes {
			kinds[strings.TrimRight(node, "0123456789")]++
		}
		if want := map[string]int{"uverbs": 1, "umad": 1, "issm": 1, "rdma_cm": 1}; !maps.Equal(kinds, want) {
			t.Errorf("%s has %v in /dev/infiniband, want one HCA's nodes and rdma_cm", pod, nodes)
		}
		// The seed's image sleeps in a shell, which ignores SIGTERM.
		e.kubectl(t, "delete", "pod", pod, "--grace-period=1", inTime)
	}
}

// testTrainingPod runs the seed's pod, which requests nvidia.com/gpu: 1 as for any extended resource, without changing a byte.
func testTrainingPod(t *testing.T, e *environment) {
	e.apply(t, e.file(t, "examples/manifests/cuda-training-pod.yaml"))
	e.kubectl(t, "wait", "pod/cuda-training", "--for=condition=Ready", inTime)
	devices := e.kubectl(t, "exec", "cuda-training", "--", "sh", "-c", "ls /dev | grep -E '^nvidia[0-9]+$'")
	if got := strings.Fields(devices); len(got) != 1 {
		t.Errorf("the pod sees the GPUs %q, want one", got)
	}
	claim := e.kubectl(t, "get", "pod", "cuda-training", "--output", "jsonpath={.status.extendedResourceClaimStatus.resourceClaimName}")
	if claim == "" {
		t.Error("the pod has no claim for its extended resource: something else than DRA gave it the GPU")
	}
	e.kubectl(t, "delete", "pod/cuda-training", "--grace-period=1", inTime)
}

// testSharedGPU plays the scheduler's part for the seed's pod test1, which requests 1024 units of 10 MiB of one GPU.
func testSharedGPU(t *testing.T, e *environment) {
	node := e.Workers()[0]
	// The volume of a new pod has the ConfigMap at once.
	const device = `{apiVersion: v1, kind: ConfigMap, metadata: {name: volcano-vgpu-device-config, namespace: gpufabric-system},
		data: {device-config.yaml: "nvidia: {deviceSplitCount: 10, gpuMemoryFactor: 10}"}}`
	e.apply(t, device)
	e.kubectl(t, "--namespace", "gpufabric-system", "rollout", "restart", "daemonset/gpufabric-vgpu-plugin")
	e.kubectl(t, "--namespace", "gpufabric-system", "rollout", "status", "daemonset/gpufabric-vgpu-plugin", inTime)
	for name, want := range map[string]string{"vgpu-number": "80", "vgpu-memory": "36848", "vgpu-cores": "800"} {
		e.eventually(t, node+" to have "+want+" "+name, func(ctx context.Context) (bool, string, error) {
			out, err := e.Kubectl(ctx, nil, "get", "node", node, "--output", `jsonpath={.status.allocatable.volcano\.sh/`+name+`}`)
			return out == want, out, err
		})
	}
	uuid := e.registered(t, node, ",10,4606,NVIDIA-L40S,true,hami-core:")[0]
	e.counted(t, node)

	var documents []string
	for _, document := range strings.Split(e.file(t, "examples/manifests/vgpu-pods.yaml"), "\n---\n") {
		if strings.Contains(document, "name: test1") {
			documents = append(documents, document)
		}
	}
	if len(documents) != 1 {
		t.Fatalf("%d pods test1 in the seed's manifest, want one", len(documents))
	}
	e.apply(t, documents[0])
	devices := uuid + ",NVIDIA,1024,0:;"
	e.bind(t, "test1", node, devices)
	e.kubectl(t, "wait", "pod/test1", "--for=condition=Ready", inTime)

	inside := e.kubectl(t, "exec", "test1", "--", "sh", "-c", "env; ls /dev; ls -d /tmp/vgpu /tmp/vgpulock")
	for _, want := range []string{"CUDA_DEVICE_MEMORY_LIMIT_0=10240m", "NVIDIA_VISIBLE_DEVICES=" + uuid, "/tmp/vgpulock"} {
		if !strings.Contains(inside, want) {
			t.Errorf("the container has no %s:\n%s", want, inside)
		}
	}
	if gpus := strings.Count(inside, "\nnvidia0\n") + strings.Count(inside, "\nnvidia1\n"); gpus != 1 {
		t.Errorf("the container sees %d of the first two GPUs, want 1:\n%s", gpus, inside)
	}
	e.eventually(t, "the scheduler to hear that the pod has its share", func(ctx context.Context) (bool, string, error) {
		out, err := e.Kubectl(ctx, nil, "get", "pod", "test1", "--output", `jsonpath={.metadata.annotations.volcano\.sh/bind-phase}`)
		return out == "success", out, err
	})
	e.kubectl(t, "delete", "pod/test1", inTime, "--grace-period=1")
	e.eventually(t, "the pod's accounting directory to go", func(ctx context.Context) (bool, string, error) {
		out, err := docker.Script(ctx, node, "ls -A /var/lib/gpufabric/vgpu-plugin/containers")
		return err == nil && strings.TrimSpace(out) == "", out, err
	})
}

// bind does what Volcano's scheduler does with a pod: it writes each container's shares, then binds the pod.
func (e *environment) bind(t *testing.T, pod, node, devices string) {
	t.Helper()
	e.kubectl(t, "annotate", "pod", pod, "volcano.sh/vgpu-node="+node, "volcano.sh/vgpu-ids-new="+devices,
		"volcano.sh/devices-to-allocate="+devices,
		"volcano.sh/bind-phase=allocating")
	binding, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Binding", "metadata": map[string]any{"name": pod},
		"target": map[string]any{"apiVersion": "v1", "kind": "Node", "name": node},
	})
	must(t, err)
	_, err = e.Kubectl(t.Context(), strings.NewReader(string(binding)), "create", "--raw",
		fmt.Sprintf("/api/v1/namespaces/default/pods/%s/binding", pod), "--filename", "-")
	must(t, err)
}
