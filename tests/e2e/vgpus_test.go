package e2e

import (
	"context"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpufabric.io/tests/docker"
)

// churn is short by default, since a batch of 40 takes more than a minute on a busy machine.
var churn = flag.Int("churn", 0, "how many times 40 pods with slices come and go on a node; 0 means twice 10")

// vgpuNamespace is where the chart puts the drivers.
const vgpuNamespace = "gpufabric-system"

// playsScheduler allows these tests, which run as the cluster's administrator, to write which shares a pod has.
const playsScheduler = "vgpu.schedulerAccounts={kubernetes-admin}"

// These tests play the scheduler: they make a pod with its annotations and its node.
const slicePod = `
apiVersion: v1
kind: Pod
metadata:
  name: %[1]s
  labels: {churn: vgpu}
  annotations: {volcano.sh/vgpu-ids-new: "%[3]s", volcano.sh/devices-to-allocate: "%[3]s", volcano.sh/bind-phase: allocating, ` +
	`volcano.sh/vgpu-node: %[2]s}
spec:
  nodeName: %[2]s
  terminationGracePeriodSeconds: 1
  containers:%[4]s
  volumes: [{name: fake, hostPath: {path: /var/lib/fakefabric}}]
---`

// sliceContainer has the fake node's state, which its nvidia-smi reads where a real one queries the kernel.
const sliceContainer = `
  - {name: %s, image: "ubuntu:24.04", command: [sleep, infinity], volumeMounts: [{name: fake, mountPath: /var/lib/fakefabric}],
     resources: {limits: {volcano.sh/vgpu-number: 1}}}`

func slice(name, node, devices string, containers ...string) string {
	var list string
	for _, container := range containers {
		list += fmt.Sprintf(sliceContainer, container)
	}
	return fmt.Sprintf(slicePod, name, node, devices, list)
}

// configure gives the vGPU plugins their two ConfigMaps, and starts them again: a new pod's volume has them at once.
func (e *environment) configure(t *testing.T, device, node string) {
	t.Helper()
	const maps = `{apiVersion: v1, kind: List, items: [
		{apiVersion: v1, kind: ConfigMap, metadata: {name: volcano-vgpu-device-config, namespace: gpufabric-system}, data: ` +
		`{device-config.yaml: %q}},
		{apiVersion: v1, kind: ConfigMap, metadata: {name: volcano-vgpu-node-config, namespace: gpufabric-system}, data: {config.json: %q}}]}`
	e.apply(t, fmt.Sprintf(maps, device, node))
	for _, role := range []string{"vgpu-plugin", "vgpu-monitor"} {
		e.replace(t, role, e.Workers()[0])
	}
}

// replace deletes a role's pod on a node and waits until the next one runs. (The control plane's node has no GPU, so a whole rollout would
// wait for it.)
func (e *environment) replace(t *testing.T, role, node string) {
	t.Helper()
	before := e.pluginOf(t, role, node)
	e.kubectl(t, "--namespace", vgpuNamespace, "delete", "pod", before, "--grace-period=0", "--force")
	e.eventually(t, "another "+role+" on "+node, func(ctx context.Context) (bool, string, error) {
		out, err := e.Kubectl(ctx, nil, "--namespace", vgpuNamespace, "get", "pods", "--selector", "app.kubernetes.io/component="+role,
			"--field-selector", "spec.nodeName="+node,
			"--output", `jsonpath={range .items[*]}{.metadata.name}={.status.containerStatuses[0].ready} {end}`)
		return !strings.Contains(out, before) && strings.Contains(out, "=true"), out, err
	})
}

// registered waits until a node's registration contains a text, and returns the UUIDs of its shared GPUs.
func (e *environment) registered(t *testing.T, node, part string) []string {
	t.Helper()
	var uuids []string
	e.eventually(t, node+" to register "+part, func(ctx context.Context) (bool, string, error) {
		out, err := e.Kubectl(ctx, nil, "get", "node", node, "--output", `jsonpath={.metadata.annotations.volcano\.sh/node-vgpu-register}`)
		uuids = nil
		for card := range strings.SplitSeq(strings.TrimSuffix(out, ":"), ":") {
			uuid, _, _ := strings.Cut(card, ",")
			uuids = append(uuids, uuid)
		}
		return strings.Contains(out, part), out, err
	})
	return uuids
}

// counted waits until the kubelet of a node counts the shares that the node's plugin registers: it refuses pods bound to the node that come
// before, for good. The node's status may still show the count of an earlier plugin, so this one has to have sent its lists first.
func (e *environment) counted(t *testing.T, node string) {
	t.Helper()
	plugin := e.pluginOf(t, "vgpu-plugin", node)
	e.eventually(t, "the kubelet of "+node+" to have the lists of "+plugin, func(ctx context.Context) (bool, string, error) {
		out, err := e.scrape(ctx, plugin, 8080)
		return has(out, `gpufabric_device_plugin_list_sends_total{resource="volcano.sh/vgpu-number"}`,
			`gpufabric_device_plugin_list_sends_total{resource="volcano.sh/vgpu-memory"}`), out, err
	})
	e.eventually(t, "the kubelet of "+node+" to count what the node registers", func(ctx context.Context) (bool, string, error) {
		out, err := e.Kubectl(ctx, nil, "get", "node", node, "--output",
			`jsonpath={.status.allocatable.volcano\.sh/vgpu-number} {.status.allocatable.volcano\.sh/vgpu-memory} `+
				`{.metadata.annotations.volcano\.sh/node-vgpu-register}`)
		fields := strings.Fields(out)
		if err != nil || len(fields) != 3 {
			return false, out, err
		}
		number, memory := 0, 0
		for card := range strings.SplitSeq(strings.TrimSuffix(fields[2], ":"), ":") {
			parts := strings.Split(card, ",")
			if len(parts) < 3 {
				return false, out, nil
			}
			slots, _ := strconv.Atoi(parts[1])
			units, _ := strconv.Atoi(parts[2])
			number, memory = number+slots, memory+units
		}
		return fields[0] == fmt.Sprint(number) && fields[1] == fmt.Sprint(memory), out, nil
	})
}

// pluginOf is the pod of a role on a node. Helm's wait lets a DaemonSet have one pod that does not run yet.
func (e *environment) pluginOf(t *testing.T, role, node string) string {
	t.Helper()
	var name string
	e.eventually(t, "one "+role+" to run on "+node, func(ctx context.Context) (bool, string, error) {
		out, err := e.Kubectl(ctx, nil, "--namespace", vgpuNamespace, "get", "pods", "--selector", "app.kubernetes.io/component="+role,
			"--field-selector", "spec.nodeName="+node+",status.phase=Running", "--output",
			`jsonpath={range .items[*]}{.metadata.name}={.metadata.deletionTimestamp}{"\n"}{end}`)
		pod, deleted, _ := strings.Cut(out, "=")
		name = pod
		return err == nil && pod != "" && strings.TrimSpace(deleted) == "", out, err
	})
	return name
}

// scrape reads a pod's metrics through the API server.
func (e *environment) scrape(ctx context.Context, pod string, port int) (string, error) {
	return e.Kubectl(ctx, nil, "get", "--raw", fmt.Sprintf("/api/v1/namespaces/%s/pods/%s:%d/proxy/metrics", vgpuNamespace, pod, port))
}

// testGPUSlices runs what containers with slices see, the monitor, a plugin that is away, and many pods after one another.
func testGPUSlices(t *testing.T, e *environment) {
	node := e.Workers()[0]
	e.configure(t, "nvidia: {deviceSplitCount: 10, gpuMemoryFactor: 10}", `{"nodeconfig": []}`)
	uuids := e.registered(t, node, ",10,4606,NVIDIA-L40S,true,hami-core:")
	e.counted(t, node)

	t.Run("two containers have a share each, and nvidia-smi shows it", func(t *testing.T) {
		e.apply(t, slice("duo", node, uuids[2]+",NVIDIA,1024,0:;"+uuids[3]+",NVIDIA,2048,0:;", "first", "second"))
		e.kubectl(t, "wait", "pod/duo", "--for=condition=Ready", inTime)
		for container, want := range map[string]string{"first": "0MiB /  10240MiB", "second": "0MiB /  20480MiB"} {
			if out := e.kubectl(t, "exec", "duo", "--container", container, "--", "nvidia-smi"); !strings.Contains(out, want) ||
				strings.Count(out, "L40S") != 1 {
				t.Errorf("%s: nvidia-smi does not show one GPU with %s:\n%s", container, want, out)
			}
		}
		monitor := e.pluginOf(t, "vgpu-monitor", node)
		e.eventually(t, "the monitor to show the shares", func(ctx context.Context) (bool, string, error) {
			out, err := e.scrape(ctx, monitor, 9394)
			labels := fmt.Sprintf(`{ctrname="second",deviceuuid="%s",podname="duo",podnamespace="default",vdeviceid="0",zone="vGPU"}`, uuids[3])
			return has(out, `HostGPUMemoryUsage{deviceidx="3",deviceuuid="`+uuids[3]+`",zone="vGPU"}`, "HostCoreUtilization{",
				"vGPU_device_memory_usage_in_bytes"+labels,
				"vGPU_device_memory_limit_in_bytes"+labels+" 2.147483648e+10", "Device_utilization_desc_of_container"+labels), out, err
		})
		e.kubectl(t, "delete", "pod/duo", inTime)
	})

	t.Run("a pod whose plugin was killed after it was scheduled starts when the plugin is back", func(t *testing.T) {
		// The kubelet itself refuses what comes while the plugin is away (UnexpectedAdmissionError); a controller then makes another pod.
		e.replace(t, "vgpu-plugin", node)
		e.counted(t, node)
		e.apply(t, slice("patient", node, uuids[4]+",NVIDIA,1024,0:;", "main"))
		e.kubectl(t, "wait", "pod/patient", "--for=condition=Ready", inTime)
		if out := e.kubectl(t, "exec", "patient", "--", "env"); !has(out, "CUDA_DEVICE_MEMORY_LIMIT_0=10240m", uuids[4]) {
			t.Errorf("the container has not its share:\n%s", out)
		}
		e.kubectl(t, "delete", "pod/patient", inTime)
	})

	t.Run("a container that the runtime makes without the hook starts when the hook is back", func(t *testing.T) {
		testWithoutHook(t, e, node, slice("deaf", node, uuids[5]+",NVIDIA,1024,0:;", "main"), uuids[5])
	})

	t.Run("after pods came and went nobody holds anything", func(t *testing.T) {
		batches, pods := *churn, 40 // a node takes 110 pods at a time
		if batches == 0 {
			batches, pods = 2, 10
		}
		plugin := e.pluginOf(t, "vgpu-plugin", node)
		held := func(want int) {
			t.Helper()
			e.eventually(t, fmt.Sprint(want, " containers to hold shares"), func(ctx context.Context) (bool, string, error) {
				out, err := e.scrape(ctx, plugin, 8080)
				return strings.Contains(out, fmt.Sprintf("\ngpufabric_vgpu_containers %d\n", want)), out, err
			})
		}
		started := time.Now()
		for batch := range batches {
			var manifest string
			for i := range pods {
				manifest += slice(fmt.Sprint("churn-", i), node, fmt.Sprintf("%s,NVIDIA,%d,0:;", uuids[(batch+i)%len(uuids)], 100+10*batch+i), "main")
			}
			e.apply(t, manifest)
			e.kubectl(t, "wait", "pod", "--selector", "churn=vgpu", "--for=condition=Ready", inTime)
			for i := range 3 {
				if out := e.kubectl(t, "exec", fmt.Sprint("churn-", i), "--", "env"); !has(out,
					fmt.Sprintf("CUDA_DEVICE_MEMORY_LIMIT_0=%dm", (100+10*batch+i)*10)) {
					t.Errorf("pod %d has another's share:\n%s", i, out)
				}
			}
			held(pods)
			e.kubectl(t, "delete", "pod", "--selector", "churn=vgpu", inTime)
			held(0)
		}
		measured(t, fmt.Sprint(batches*pods, " pods with slices on a node"), time.Since(started))
		for _, role := range []string{"vgpu-plugin", "vgpu-monitor"} {
			out, err := docker.Script(t.Context(), node, "grep -E 'VmRSS|RssAnon' /proc/$(pgrep -of 'gpufabric-node "+role+"')/status")
			must(t, err)
			t.Logf("measured: resident memory of %s: %s", role, strings.Join(strings.Fields(out), " "))
		}
		e.eventually(t, "the accounting directories to go", func(ctx context.Context) (bool, string, error) {
			out, err := docker.Script(ctx, node, "ls -A /var/lib/gpufabric/vgpu-plugin/containers")
			return err == nil && strings.TrimSpace(out) == "", out, err
		})
	})
}

// testMIGSlots plays a scheduler that hands out MIG instances of some GPUs and shares of another: by slots of the administrator's
// geometries, and by size. Our own scheduler then chooses among what is left.
func testMIGSlots(t *testing.T, e *environment) {
	node := e.Workers()[0]
	uuids := e.registered(t, node, "NVIDIA-A100-SXM4-40GB,true,hami-core:") // an earlier machine's registration may still be there
	// No claim switches the MIG mode of an A100. An administrator did, and reset the GPU.
	for _, gpu := range []string{"0", "2"} {
		e.inject(t, node, "mig-mode", "gpu="+gpu)
	}
	const geometries = `nvidia:
  deviceSplitCount: 10
  gpuMemoryFactor: 1
  knownMigGeometries:
  - models: [A100-SXM4-40GB]
    allowedGeometries:
    - {group: small, geometries: [{name: 1g.5gb, memory: 5120, count: 7}]}
    - {group: mixed, geometries: [{name: 2g.10gb, memory: 10240, count: 3}, {name: 1g.5gb, memory: 5120, count: 1}]}
`
	// The seed's sizes are in MiB. The kubelet can count three of these GPUs in MiB, but not all eight.
	e.configure(t, geometries, fmt.Sprintf(`{"nodeconfig": [{"name": %q, "operatingmode": "mig", "gpumodes": {%q: "hami-core"}, `+
		`"filterdevices": {"index": [3, 4, 5, 6, 7]}}]}`, node, uuids[1]))
	e.registered(t, node, uuids[0]+",7,40960,NVIDIA-A100-SXM4-40GB,true,mig:"+uuids[1]+",10,40960,NVIDIA-A100-SXM4-40GB,true,hami-core:")
	e.counted(t, node)
	// Like the seed's pod, the pod sized requests 3000 MB of a GPU in mode mig, and gets no slot.
	e.apply(t, slice("sized", node, uuids[0]+",NVIDIA,3000,0:;", "main")+slice("slot", node, uuids[2]+"[1-1],NVIDIA,10240,0:;", "main")+
		slice("software", node, uuids[1]+",NVIDIA,3000,0:;", "main"))
	for _, pod := range []string{"sized", "slot", "software"} {
		e.kubectl(t, "wait", "pod/"+pod, "--for=condition=Ready", inTime)
	}
	var shown string
	e.eventually(t, "the pod to say which instance it has", func(ctx context.Context) (good bool, saw string, err error) {
		shown, err = e.Kubectl(ctx, nil, "get", "pod", "sized", "--output", `jsonpath={.metadata.annotations.vgpu\.gpufabric\.io/mig-instances}`)
		return has(shown, `"profile":"1g.5gb"`, `"askedMiB":3000`, `"memoryMiB":4864`), shown, err
	})
	e.hasInstance(t, "sized", node, "1g.5gb")
	e.hasInstance(t, "slot", node, "2g.10gb")
	if out := e.kubectl(t, "exec", "software", "--", "env"); !has(out, "CUDA_DEVICE_MEMORY_LIMIT_0=3000m",
		"NVIDIA_VISIBLE_DEVICES="+uuids[1]) {
		t.Errorf("the container beside MIG has not its share:\n%s", out)
	}

	// Two pods never have one slot. Where the scheduler gives it to two pods, the second gets an equal slot of that GPU.
	e.apply(t, slice("second", node, uuids[2]+"[1-1],NVIDIA,10240,0:;", "main"))
	e.kubectl(t, "wait", "pod/second", "--for=condition=Ready", inTime)
	e.hasInstance(t, "second", node, "2g.10gb")
	device := func(pod string) string { return e.kubectl(t, "exec", pod, "--", "printenv", "NVIDIA_VISIBLE_DEVICES") }
	if first, second := device("slot"), device("second"); first == second {
		t.Errorf("two pods have the MIG device %s", first)
	}
	e.kubectl(t, "delete", "pod/second", inTime)

	t.Run("our own scheduler chooses slots beside the others', one pod after another",
		func(t *testing.T) { testOwnSchedulersSlots(t, e, node, uuids) })
	e.kubectl(t, "delete", "pod/slot", "pod/software", inTime)
	e.eventually(t, "the instances to be removed with their pods", func(ctx context.Context) (bool, string, error) {
		out, err := e.smi(ctx, node, "-L")
		return err == nil && strings.Contains(out, "A100") && !strings.Contains(out, "MIG "), out, err
	})
}

// hasInstance checks that a pod sees a MIG device of a profile, and nothing else of a GPU.
func (e *environment) hasInstance(t *testing.T, pod, node, profile string) {
	t.Helper()
	seen := e.kubectl(t, "exec", pod, "--", "sh", "-c",
		"echo $NVIDIA_VISIBLE_DEVICES; ls /dev | grep -E '^nvidia[0-9]+$'; ls /dev/nvidia-caps")
	if fields := strings.Fields(seen); len(fields) != 4 || !strings.HasPrefix(fields[0], "MIG-") {
		t.Errorf("%s sees %q, want its MIG device, the parent and the two capabilities that open it", pod, seen)
	} else if out, err := e.smi(t.Context(), node, "-L"); err != nil || !has(out, "MIG "+profile, fields[0]) {
		t.Errorf("no %s of %s on the node (error: %v):\n%s", profile, fields[0], err, out)
	}
}
