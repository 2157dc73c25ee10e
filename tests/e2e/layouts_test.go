package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"gpufabric.io/tests/kindcluster"
)

// driverDelay is how long after the plugins a late driver arrives. A driver container that compiles its modules takes a minute or more; the
// plugins look every 10 s and do not care which look it is, so more than a few looks would only take the test's time.
const driverDelay = 25 * time.Second

// testLayouts installs the chart with its default hardware values on machines that have their hardware and driver where real ones have
// them.
//
//shows:chart-defaults
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
	}
	// The vGPU role takes all GPUs of a node, so it has machines of its own.
	cards := []part{
		{"every role runs", testRolesRun},
		{"a GPU is shared as Volcano's scheduler says", testSharedGPU},
	}
	rackValues := []string{"rdma.enabled=true", "rdma.namespace=kube-system", "gpus.enabled=true"}
	boardValues := []string{"rdma.enabled=true", "rdma.devicePlugin=false", "rdma.extendedResources={" + ackHCA + "}", "gpus.enabled=true"}
	cardsValues := []string{"gpus.enabled=true", "vgpu.enabled=true"}
	const rackBefore = "rdma-devices-configmap.yaml"
	for _, machine := range []struct {
		name, profile string
		// placed is where the driver lies; late: it comes when the plugins are there already.
		placed kindcluster.Layout
		late   bool
		values []string
		before string
		parts  []part
	}{
		{"a GB200 with the driver on the host", "gb200-nvl72", kindcluster.LayoutHost, false, rackValues, rackBefore, rack},
		{"a GB200 with a driver container that comes late", "gb200-nvl72", kindcluster.LayoutDriverContainer, true, rackValues, rackBefore, rack},
		{"an HGX H100 with the driver on the host", "h100-hgx", kindcluster.LayoutHost, false, boardValues, "", board},
		{"an HGX H100 with a driver container", "h100-hgx", kindcluster.LayoutDriverContainer, false, boardValues, "", board},
		{"an L40S with the driver on the host", "l40s-8", kindcluster.LayoutHost, false, cardsValues, "", cards},
		{"an L40S with a driver container", "l40s-8", kindcluster.LayoutDriverContainer, false, cardsValues, "", cards},
	} {
		t.Run(machine.name, func(t *testing.T) {
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
				// Nothing but time makes a driver late.
				time.Sleep(driverDelay)
				e.waitsForDriver(t)
				must(t, e.Place(t.Context(), machine.placed))
			}
			e.run(t, machine.parts)
		})
	}
}

// waitsForDriver looks at plugins on nodes whose driver is not there yet: they run, and say what they wait for.
func (e *environment) waitsForDriver(t *testing.T) {
	t.Helper()
	testRolesRun(t, e)
	log := e.kubectl(t, "--namespace", "gpufabric-system", "logs", "--selector", "app.kubernetes.io/component=gpu-plugin", "--prefix")
	if waiting := strings.Count(log, "waiting for the NVIDIA driver"); waiting < len(e.Workers()) {
		t.Errorf("%d of %d GPU plugins say that they wait for the driver:\n%s", waiting, len(e.Workers()), log)
	}
}

// testRolesRun looks at every pod of the chart: on a host each container has to start, and to go on. Helm's wait lets a DaemonSet have one
// pod that does not run yet.
func testRolesRun(t *testing.T, e *environment) {
	for _, namespace := range []string{"gpufabric-system", "kube-system"} {
		eventually(t, "every pod of the chart in "+namespace+" to run without a restart", func(ctx context.Context) (bool, string, error) {
			out, err := e.Kubectl(ctx, nil, "--namespace", namespace, "get", "pods", "--selector", "app.kubernetes.io/name=gpufabric", "--output",
				`jsonpath={range .items[*]}{.metadata.name} {.status.phase} {.status.containerStatuses[0].restartCount}{"\n"}{end}`)
			lines := strings.FieldsFunc(out, func(r rune) bool { return r == '\n' })
			late := slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return strings.HasSuffix(line, " Running 0") })
			return err == nil && len(late) == 0 && (namespace != "gpufabric-system" || len(lines) > 0), strings.Join(late, ", "), err
		})
	}
}

// testProgramInPod asks the driver's own program inside a pod, which finds its library through what CDI put there.
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
	e.kubectl(t, "wait", "pod/smi", "--for=condition=Ready", "--timeout=120s")
	if list := e.kubectl(t, "exec", "smi", "--", "nvidia-smi", "-L"); strings.Count(list, "GPU ") != 1 {
		t.Errorf("nvidia-smi -L says\n%s\nwant one GPU", list)
	}
}
