package e2e

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"gpufabric.io/tests/docker"
	"gpufabric.io/tests/kindcluster"
)

// driverDelay is how long after the plugins a late driver arrives. A driver container that compiles its modules takes a minute
// or more. The plugins look every 10 s, and every look is the same, so the test waits for a few looks only.
const driverDelay = 25 * time.Second

// testLayouts installs the chart with its default hardware values on machines that have their hardware and driver where real ones have
// them.
func (e *environment) testLayouts(t *testing.T) {
	// Of each seed's manifest the pods that a machine of that model can run.
	rack := []part{
		{"every role runs", testRolesRun},
		{"the seed's manifest runs unchanged and its pod sees channel0", testSeedManifest},
		{"the seed's MPI job runs over two nodes' GPUs and IMEX channels", testMPIJob},
		{"the seed's RDMA pods get their HCA's device nodes and no other's", testRDMAPods},
		{"the seed's training pod gets a GPU through DRA", testTrainingPod},
		{"the driver's program works in a pod", testProgramInPod},
	}
	board := []part{
		{"every role runs", testRolesRun},
		{"the seed's ACK job gets eight GPUs and an HCA through DRA", testACKJob},
		{"a form that no GPU is offered in is named", testFormOfNobody},
	}
	guarded := append(slices.Clone(board), part{"metrics are for those with the right", testGuardedMetrics})
	// The vGPU role takes all GPUs of a node, so it has machines of its own.
	cards := []part{
		{"every role runs", testRolesRun},
		{"a GPU is shared as Volcano's scheduler says", testSharedGPU},
	}
	// In these modes a domain is a channel, and several domains share a node.
	clique := []part{
		{"every role runs", testRolesRun},
		{"the seed's manifest runs unchanged and its pod sees channel0", testSeedManifest},
		{"two domains share a node by a channel each", testChannels},
	}
	service := []part{
		{"every role runs", testRolesRun},
		{"two domains share a node by the nodes' own nvidia-imex", testHostService},
	}
	rackValues := []string{"rdma.enabled=true", "rdma.namespace=kube-system", "gpus.enabled=true"}
	boardValues := []string{"rdma.enabled=true", "rdma.devicePlugin=false", "rdma.extendedResources={" + ackHCA + "}", "gpus.enabled=true"}
	guardedValues := append(slices.Clone(boardValues), "metrics.authentication=true")
	cardsValues := []string{"gpus.enabled=true", "vgpu.enabled=true", playsScheduler}
	const rackBefore = "rdma-devices-configmap.yaml"
	for _, machine := range []struct {
		name, profile string
		// placed is the place of the driver. late: it appears after the plugins have started.
		placed kindcluster.Layout
		late   bool
		// long: it is in the long suite alone.
		long   bool
		values []string
		before string
		parts  []part
	}{
		{"a GB200 with the driver on the host", "gb200-nvl72", kindcluster.LayoutHost, false, true, rackValues, rackBefore, rack},
		{"a GB200 with a driver container that comes late", "gb200-nvl72", kindcluster.LayoutDriverContainer, true, false,
			rackValues, rackBefore, rack},
		{"a GB200 with one IMEX daemon a node", "gb200-nvl72", kindcluster.LayoutHost, false, false,
			[]string{"computeDomains.imex=clique"}, "", clique},
		{"a GB200 with nvidia-imex of its own", "gb200-nvl72", kindcluster.LayoutHost, false, true,
			[]string{"computeDomains.imex=host"}, "", service},
		{"an HGX H100 with the driver on the host", "h100-hgx", kindcluster.LayoutHost, false, true, boardValues, "", board},
		{"an HGX H100 with a driver container", "h100-hgx", kindcluster.LayoutDriverContainer, false, true, guardedValues, "", guarded},
		{"an L40S with the driver on the host", "l40s-8", kindcluster.LayoutHost, false, true, cardsValues, "", cards},
		{"an L40S with a driver container", "l40s-8", kindcluster.LayoutDriverContainer, false, true, cardsValues, "", cards},
	} {
		t.Run(machine.name, func(t *testing.T) {
			if machine.long {
				notInShort(t)
			}
			if machine.before != "" {
				e.apply(t, e.file(t, "examples/manifests/"+machine.before))
			}
			e.equip(t, machine.profile)
			t.Cleanup(func() { must(t, e.Place(context.WithoutCancel(t.Context()), kindcluster.LayoutMoved)) })
			must(t, e.Place(t.Context(), kindcluster.LayoutKernel))
			if !machine.late {
				must(t, e.Place(t.Context(), machine.placed))
			}
			var arguments []string
			for _, value := range machine.values {
				arguments = append(arguments, "--set", value)
			}
			e.install(t, arguments...)
			if machine.late {
				// Only time makes a driver late.
				time.Sleep(driverDelay)
				e.waitsForDriver(t)
				must(t, e.Place(t.Context(), machine.placed))
			}
			e.run(t, machine.parts)
		})
	}
	t.Run("a GB200 with a driver container of Debian 11 and one of Debian 13", e.testForeignLibraries)
}

// testForeignLibraries has on each worker a driver container of another release than the image's: its programs are linked with a C library
// of their own (2.31 and 2.41), and no other loader starts them.
func (e *environment) testForeignLibraries(t *testing.T) {
	notInShort(t)
	if runtime.GOARCH != "amd64" {
		t.Skipf("skipped: the launcher of linked programs is for amd64, and this machine is %s", runtime.GOARCH)
	}
	libraries := []string{debianPackage(t, "libc6_2.31"), debianPackage(t, "libc6_2.41")}
	e.equip(t, "gb200-nvl72")
	t.Cleanup(func() { must(t, e.Place(context.WithoutCancel(t.Context()), kindcluster.LayoutMoved)) })
	must(t, e.Place(t.Context(), kindcluster.LayoutKernel))
	must(t, e.PlaceForeign(t.Context(), libraries...))
	for i, node := range e.Workers() {
		// If the machine's own loader can start it, the C libraries are too similar for this test.
		mixed := "LD_LIBRARY_PATH=$(dirname $(find /run/nvidia/driver -name libc.so.6)) /run/nvidia/driver/usr/bin/nvidia-smi -L"
		if out, err := docker.Script(t.Context(), node, mixed); err == nil {
			t.Errorf("%s: its own loader starts a program with the C library of %s:\n%s", node, filepath.Base(libraries[i]), out)
		}
	}
	e.install(t, "--set", "gpus.enabled=true")
	e.run(t, []part{
		{"every role runs", testRolesRun},
		{"each node's own nvidia-imex serves a domain of two nodes", testDomainOfTwo},
		{"each node's own MPS control daemon serves a pod", testMPSOnEach},
	})
}

// debianPackage is a package that tests/nvidia-programs has unpacked; without it the test is skipped.
func debianPackage(t *testing.T, name string) string {
	t.Helper()
	directory := os.Getenv("GPUFABRIC_NVIDIA_PROGRAMS")
	if directory == "" {
		cache, err := os.UserCacheDir()
		must(t, err)
		directory = filepath.Join(cache, "gpufabric/nvidia")
	}
	found, err := filepath.Glob(filepath.Join(directory, name+"*"))
	if err != nil || len(found) == 0 {
		t.Skipf("skipped: no %s in %s (make nvidia-programs fetches it from a Debian mirror)", name, directory)
	}
	return slices.Max(found)
}

// testDomainOfTwo forms a compute domain of both workers.
func testDomainOfTwo(t *testing.T, e *environment) {
	const domain = `
apiVersion: resource.nvidia.com/v1beta1
kind: ComputeDomain
metadata: {name: quickstart}
spec: {numNodes: 2, channel: {resourceClaimTemplate: {name: quickstart-channel}}}
`
	e.apply(t, domain)
	testTwoNodeDomain(t, e)
	uid := e.domain(t, "quickstart").Metadata.UID
	e.kubectl(t, "delete", "pod/member-a", "pod/member-b", "computedomain/quickstart", inTime)
	e.nothingLeft(t, uid)
}

// testMPSOnEach has a claim with MPS on each worker: gpu-plugin runs the control daemon of the node's own driver.
func testMPSOnEach(t *testing.T, e *environment) {
	const manifest = `
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: behind-mps}
spec:
  spec:
    devices:
      requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]
      config:
        - opaque:
            driver: gpu.nvidia.com
            parameters: {apiVersion: resource.nvidia.com/v1beta1, kind: GpuConfig, sharing: {strategy: MPS}}
`
	const pod = `
---
apiVersion: v1
kind: Pod
metadata: {name: behind-mps-%d}
spec:
  terminationGracePeriodSeconds: 1
  nodeSelector: {kubernetes.io/hostname: %s}
  containers: [{name: main, image: "ubuntu:22.04", command: [sleep, infinity], resources: {claims: [{name: gpu}]}}]
  resourceClaims: [{name: gpu, resourceClaimTemplateName: behind-mps}]
`
	all := manifest
	for i, node := range e.Workers() {
		all += fmt.Sprintf(pod, i, node)
	}
	e.apply(t, all)
	for i := range e.Workers() {
		name := fmt.Sprintf("behind-mps-%d", i)
		e.ready(t, name)
		if out := e.kubectl(t, "exec", name, "--", "ls", "/tmp/nvidia-mps"); !has(out, "control") {
			t.Errorf("%s finds no MPS control daemon:\n%s", name, out)
		}
		e.kubectl(t, "delete", "pod/"+name, inTime)
	}
}

// waitsForDriver checks the plugins on nodes whose driver is not there yet: they run, and report what they wait for.
func (e *environment) waitsForDriver(t *testing.T) {
	t.Helper()
	testRolesRun(t, e)
	e.eventually(t, "the GPU plugins of all workers to say that they wait for the driver", func(ctx context.Context) (bool, string, error) {
		log, err := e.Kubectl(ctx, nil, "--namespace", "gpufabric-system", "logs", "--selector", "app.kubernetes.io/component=gpu-plugin",
			"--prefix", "--tail=-1")
		return strings.Count(log, "waiting for the NVIDIA driver") >= len(e.Workers()), log, err
	})
}

// testRolesRun checks every pod of the chart: on a host each container has to start, and to stay up. Helm's wait allows a
// DaemonSet one pod that does not run yet.
func testRolesRun(t *testing.T, e *environment) {
	e.rolesRun(t, map[string]role{})
}

// role is a pod of the chart: its phase, its container's restarts, and how the container's last process ended.
type role struct{ phase, restarts, ended string }

// crashed reports whether the last process ended by itself with an error. A kubelet on a slow machine ends a process whose probe took too
// long, with SIGTERM or in the end with SIGKILL: that depends on the machine, and is not an error of the role.
func (r role) crashed() bool {
	return r.ended != "/" && r.ended != "Completed/0" && r.ended != "Error/137" && r.ended != "Error/143"
}

// rolesRun waits until every pod of the chart runs, and fails for one that crashed since before. A pod that did not exist before counts as
// never restarted.
func (e *environment) rolesRun(t *testing.T, before map[string]role) {
	t.Helper()
	e.eventually(t, "every pod of the chart to run without a crash", func(ctx context.Context) (bool, string, error) {
		roles, err := e.roles(ctx)
		var late []string
		for name, now := range roles {
			restarted := now.restarts != cmp.Or(before[name].restarts, "0")
			if now.phase != "Running" || restarted && now.crashed() {
				late = append(late, fmt.Sprintf("%s is %s with %s restarts, its last process ended with %s", name, now.phase, now.restarts, now.ended))
			}
		}
		slices.Sort(late)
		return err == nil && len(late) == 0 && len(roles) > 0, strings.Join(late, ", "), err
	})
}

// roles are the chart's pods by name.
func (e *environment) roles(ctx context.Context) (map[string]role, error) {
	roles := map[string]role{}
	for _, namespace := range []string{"gpufabric-system", "kube-system"} {
		out, err := e.Kubectl(ctx, nil, "--namespace", namespace, "get", "pods", "--selector", "app.kubernetes.io/name=gpufabric", "--output",
			roleFormat)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(out) {
			name, now := parseRole(line)
			roles[name] = now
		}
	}
	return roles, nil
}

const roleFormat = `jsonpath={range .items[*]}{.metadata.name} {.status.phase} {.status.containerStatuses[0].restartCount} ` +
	`{.status.containerStatuses[0].lastState.terminated.reason}/{.status.containerStatuses[0].lastState.terminated.exitCode}{"\n"}{end}`

// parseRole reads a line of roleFormat. A pod whose container does not exist yet has neither restarts nor an end.
func parseRole(line string) (name string, r role) {
	fields := strings.Fields(line)
	r = role{restarts: "none", ended: fields[len(fields)-1]}
	if name = fields[0]; len(fields) > 2 { // the end is there always
		r.phase = fields[1]
	}
	if len(fields) > 3 {
		r.restarts = fields[2]
	}
	return name, r
}

func TestRoleCrashedReportsOnlyOwnErrors(t *testing.T) {
	for line, want := range map[string]bool{
		"gpu-plugin-x Running 0 /":             false,
		"gpu-plugin-x Running 1 Completed/0":   false,
		"gpu-plugin-x Running 1 Error/137":     false, // the kubelet killed it
		"gpu-plugin-x Running 1 Error/1":       true,
		"gpu-plugin-x Running 1 Error/2":       true, // a panic
		"gpu-plugin-x Running 1 OOMKilled/137": true,
		"gpu-plugin-x Pending  /":              false,
	} {
		name, r := parseRole(line)
		if name != "gpu-plugin-x" || r.crashed() != want || r.phase != strings.Fields(line)[1] {
			t.Errorf("%q: %s %+v crashed: %t, want %t", line, name, r, r.crashed(), want)
		}
	}
}

// testProgramInPod runs the driver's own program inside a pod. The program finds its library through the files that CDI put
// there.
func testProgramInPod(t *testing.T, e *environment) {
	const manifest = `
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: smi}
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}}}
---
apiVersion: v1
kind: Pod
metadata: {name: smi}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: %q, command: [sleep, infinity], resources: {claims: [{name: gpu}]}}]
  resourceClaims: [{name: gpu, resourceClaimTemplateName: smi}]
`
	e.apply(t, fmt.Sprintf(manifest, "ubuntu:22.04"))
	e.kubectl(t, "wait", "pod/smi", "--for=condition=Ready", inTime)
	if list := e.kubectl(t, "exec", "smi", "--", "nvidia-smi", "-L"); strings.Count(list, "GPU ") != 1 {
		t.Errorf("nvidia-smi -L says\n%s\nwant one GPU", list)
	}
}
