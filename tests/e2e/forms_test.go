package e2e

import (
	"context"
	"flag"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gpufabric.io/tests/docker"
)

var earlier = flag.String("earlier", "", "a checkout of an earlier version, built: TestFormsChangeWhileClaimsHaveGPUs upgrades from it")

// Claims for a GPU in each form.
const (
	wholeClaim = `{deviceClassName: gpu.nvidia.com}`
	shareClaim = `{deviceClassName: gpu-share.gpufabric.io, capacity: {requests: {memory: 20Gi, cores: "30"}}}`
	migClaim   = `{deviceClassName: mig.nvidia.com, selectors: [{cel: {expression: "device.attributes['gpu.nvidia.com'].profile == ` +
		`'1g.10gb'"}}]}`
)

// holder is a pod on a node with a claim.
func holder(name, node, request string) string {
	return fmt.Sprintf(`
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: %[1]s}
spec: {spec: {devices: {requests: [{name: gpu, exactly: %[3]s}]}}}
---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s}
spec:
  nodeSelector: {kubernetes.io/hostname: %[2]s}
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: "ubuntu:22.04", command: [sleep, infinity], resources: {claims: [{name: gpu}]}}]
  resourceClaims: [{name: gpu, resourceClaimTemplateName: %[1]s}]
`, name, node, request)
}

// TestFormsChangeWhileClaimsHaveGPUs upgrades four nodes of another build, which offer every form of every GPU, to nodes of one form each,
// with claims of every form held.
func TestFormsChangeWhileClaimsHaveGPUs(t *testing.T) {
	if *earlier == "" {
		t.Skip("skipped: it wants a built checkout of an earlier version and four workers; `make kind-upgrade` makes both (10 minutes)")
	}
	e := newEnvironmentOf(t, "gpufabric-forms", 4, "h100-hgx")
	must(t, e.ServeEarlier(t.Context(), *earlier, "earlier"))
	values := []string{"--values", filepath.Join(e.root, "charts/fake-hardware/gpufabric-values.yaml"), "--set", "gpus.enabled=true", "--set",
		driverState}
	e.installFrom(t, *earlier, append(values, "--set", "image.tag=earlier")...)

	forms := []struct{ name, label, request string }{
		{"whole", "", wholeClaim},
		{"shareable", "shareable", shareClaim},
		{"mig", "mig_1g.10gb_2g.20gb", migClaim},
		{"flexible", "flexible", ""}, // all three
	}
	held := map[string]string{} // pods from before the upgrade and their nodes
	for i, node := range e.Workers() {
		e.kubectl(t, "label", "node", node, "gpufabric.io/gpu-forms=flexible")
		for _, form := range forms[:3] {
			pod := fmt.Sprintf("held-%s-%d", form.name, i)
			held[pod] = node
			e.apply(t, holder(pod, node, form.request))
		}
	}
	before := map[string]string{}
	for pod := range held {
		e.ready(t, pod)
		before[pod] = e.standing(t, pod)
	}

	for i, node := range e.Workers() {
		label := "gpufabric.io/gpu-forms-" // removes it
		if forms[i].label != "" {
			label = "gpufabric.io/gpu-forms=" + forms[i].label
		}
		e.kubectl(t, "label", "--overwrite", "node", node, label)
	}
	_, err := e.Helm(t.Context(), e.printer, append([]string{"upgrade", "gpufabric", filepath.Join(e.root, "charts/gpufabric"), "--namespace",
		"gpufabric-system",
		"--wait", "--timeout", patience.String(), "--reset-then-reuse-values", "--set", "image.tag="}, values...)...)
	must(t, err)
	e.kubectl(t, "--namespace", "gpufabric-system", "rollout", "status", "daemonset/gpufabric-gpu-plugin", inTime)

	t.Run("claims of every form stay and their pods run on", func(t *testing.T) {
		for pod, was := range before {
			if now := e.standing(t, pod); now != was {
				t.Errorf("%s was %s before the upgrade and is %s", pod, was, now)
			}
		}
	})
	t.Run("each node says its form", func(t *testing.T) {
		for i, node := range e.Workers() {
			want := "asked for: " + strings.ReplaceAll(strings.TrimPrefix(forms[i].label, "mig_"), "_", " ")
			if forms[i].label == "" {
				want = "asked for: whole"
			}
			e.eventually(t, node+" to say its form", func(ctx context.Context) (bool, string, error) {
				out, err := e.Kubectl(ctx, nil, "get", "node", node, "--output", `jsonpath={.status.conditions[?(@.type=="GPUForms")]}`)
				return strings.Contains(out, strings.Fields(want)[2]) && strings.Contains(out, "asked for"), out, err
			})
		}
	})
	t.Run("each node serves new claims of its form", func(t *testing.T) {
		for i, node := range e.Workers() {
			for j, form := range forms[:3] {
				if i == j || forms[i].name == "flexible" {
					pod := fmt.Sprintf("new-%s-%d", form.name, i)
					e.apply(t, holder(pod, node, form.request))
					e.ready(t, pod)
					e.kubectl(t, "delete", "pod", pod, inTime)
				}
			}
		}
	})
	t.Run("what was held is given back", func(t *testing.T) {
		var uids []string
		for pod := range held {
			uids = append(uids, e.claimUIDs(t, pod)...)
		}
		for pod := range held {
			e.kubectl(t, "delete", "pod", pod, inTime, "--wait=false")
		}
		e.vanish(t, "what the old version prepared", func(ctx context.Context) ([]string, error) { return e.traces(ctx, uids...) })
		for _, node := range e.Workers() {
			e.eventually(t, "no MIG instance on "+node, func(ctx context.Context) (bool, string, error) {
				out, err := e.smi(ctx, node, "mig", "-lgi")
				return has(out, "No ", "found"), out, err
			})
		}
	})
}

// standing identifies a pod's containers and devices: a pod that was restarted, or has other devices, has another value.
func (e *environment) standing(t *testing.T, pod string) string {
	t.Helper()
	about := e.kubectl(t, "get", "pod", pod, "--output",
		"jsonpath={.metadata.uid} {.status.phase} {.status.containerStatuses[0].restartCount} {.status.resourceClaimStatuses}")
	devices := e.seen(t, pod, "main")
	slices.Sort(devices)
	return fmt.Sprint(about, devices)
}

// TestRuntimeWithoutCDIIsReported disables CDI in the container runtime of one node.
func TestRuntimeWithoutCDIIsReported(t *testing.T) {
	if *earlier == "" {
		t.Skip("skipped: a part of `make kind-upgrade`, since it waits for two minutes")
	}
	e := newEnvironmentOf(t, "gpufabric-forms", 4, "h100-hgx")
	node := e.Workers()[0]
	e.install(t, "--values", filepath.Join(e.root, "charts/fake-hardware/gpufabric-values.yaml"), "--set", "gpus.enabled=true", "--set",
		driverState)
	configure := func(ctx context.Context, command string) {
		t.Helper()
		_, err := docker.Script(ctx, node, command+"\nsystemctl restart containerd")
		must(t, err)
	}
	// Bring-up writes the same section.
	configure(t.Context(), `cp /etc/containerd/config.toml /tmp/config.toml
sed -i 's/^\( *\)\[plugins."io.containerd.grpc.v1.cri"\]$/&\n\1enable_cdi = false/' /etc/containerd/config.toml
grep -q enable_cdi /etc/containerd/config.toml`)
	t.Cleanup(func() {
		configure(context.WithoutCancel(t.Context()), "mv /tmp/config.toml /etc/containerd/config.toml")
	})
	e.apply(t, holder("without-cdi", node, wholeClaim))
	e.eventually(t, "an Event on the node", func(ctx context.Context) (bool, string, error) {
		out, err := e.Kubectl(ctx, nil, "get", "events", "--all-namespaces", "--field-selector",
			"involvedObject.kind=Node,involvedObject.name="+node+",type=Warning", "--output",
			`jsonpath={range .items[*]}{.reason}: {.message}{"\n"}{end}`)
		return has(out, "ContainerRuntimeReadsNoCDI", "default/without-cdi", "enable_cdi"), out, err
	})
	log := e.kubectl(t, "--namespace", "gpufabric-system", "logs", "--selector", "app.kubernetes.io/component=gpu-plugin", "--prefix",
		"--tail=-1")
	if !strings.Contains(log, "CDI specs are not read") {
		t.Errorf("no plugin's log says it:\n%s", log)
	}
	testRolesRun(t, e)
	for _, other := range e.Workers()[1:] {
		if out := e.kubectl(t, "get", "events", "--all-namespaces", "--field-selector",
			"involvedObject.name="+other+",reason=ContainerRuntimeReadsNoCDI", "--output", "name"); out != "" {
			t.Errorf("%s has CDI, and it is reported too: %s", other, out)
		}
	}
}
