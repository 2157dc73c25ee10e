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
// rolls back and upgrades again, with claims of every form, a domain and a unit of a pool held.
func TestFormsChangeWhileClaimsHaveGPUs(t *testing.T) {
	if *earlier == "" {
		t.Skip("skipped: it wants a built checkout of an earlier version and four workers; `make kind-upgrade` makes both (15 minutes)")
	}
	e := newEnvironmentOf(t, "gpufabric-forms", 4, profile)
	must(t, e.ServeEarlier(t.Context(), *earlier, "earlier"))
	e.apply(t, e.file(t, "examples/manifests/rdma-devices-configmap.yaml"))
	values := []string{"--values", filepath.Join(e.root, "charts/fake-hardware/gpufabric-values.yaml"), "--set", "gpus.enabled=true", "--set",
		"rdma.enabled=true,rdma.namespace=kube-system", "--set", driverState}
	e.installFrom(t, *earlier, append(values, "--set", "image.tag=earlier")...)

	forms := []struct{ name, label, request string }{
		{"whole", "", wholeClaim},
		{"shareable", "shareable", shareClaim},
		{"mig", "mig_1g.23gb_2g.47gb", fmt.Sprintf(migShape, "1g.23gb")},
		{"flexible", "flexible", ""}, // all three
	}
	var held []string // pods from before the upgrade that have claims
	for i, node := range e.Workers() {
		e.kubectl(t, "label", "node", node, "gpufabric.io/gpu-forms=flexible")
		for _, form := range forms[:3] {
			pod := fmt.Sprintf("held-%s-%d", form.name, i)
			held = append(held, pod)
			e.apply(t, holder(pod, node, form.request))
		}
	}
	e.apply(t, `{apiVersion: resource.nvidia.com/v1beta1, kind: ComputeDomain, metadata: {name: held},
		spec: {numNodes: 2, channel: {resourceClaimTemplate: {name: held-channel}}}}`)
	e.kubectl(t, "wait", "resourceclaimtemplate/held-channel", "--for=create", inTime)
	for i, node := range e.Workers()[:2] {
		pod := fmt.Sprintf("held-member-%d", i)
		held = append(held, pod)
		e.apply(t, memberOf(pod, node, "held-channel"))
	}
	e.apply(t, unitOf("held-unit", e.Workers()[0]))
	before := map[string]string{}
	for _, pod := range append(slices.Clone(held), "held-unit") {
		e.ready(t, pod)
		before[pod] = e.standing(t, pod)
	}
	daemons := e.daemons(t)
	if len(daemons) != 2 {
		t.Fatalf("%d pods with IMEX daemons run, want one for each of the domain's two nodes", len(daemons))
	}

	for i, node := range e.Workers() {
		label := "gpufabric.io/gpu-forms-" // removes it
		if forms[i].label != "" {
			label = "gpufabric.io/gpu-forms=" + forms[i].label
		}
		e.kubectl(t, "label", "--overwrite", "node", node, label)
	}
	upgrade := append([]string{"upgrade", "gpufabric", filepath.Join(e.root, "charts/gpufabric"), "--reset-then-reuse-values", "--set",
		"image.tag="}, values...)
	for _, step := range []struct {
		name string
		helm []string
	}{{"upgrade", upgrade}, {"rollback", []string{"rollback", "gpufabric", "1"}}, {"second upgrade", upgrade}} {
		t.Run(step.name, func(t *testing.T) {
			_, err := e.Helm(t.Context(), e.printer,
				append(slices.Clone(step.helm), "--namespace", "gpufabric-system", "--wait", "--timeout", patience.String())...)
			must(t, err)
			e.rolledOut(t)
			for pod, was := range before {
				if now := e.standing(t, pod); now != was {
					t.Errorf("%s was %s before the %s and is %s", pod, was, step.name, now)
				}
			}
			if now := e.daemons(t); !slices.Equal(now, daemons) {
				t.Errorf("the IMEX daemons' pods were %v before the %s and are %v", daemons, step.name, now)
			}
			if domain := e.domain(t, "held"); domain.Status.Status != "Ready" || len(domain.Status.Nodes) != 2 {
				t.Errorf("after the %s the domain is %+v, want it ready on two nodes", step.name, domain.Status)
			}
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
			e.apply(t, unitOf("new-unit", e.Workers()[0]))
			e.ready(t, "new-unit")
			e.kubectl(t, "delete", "pod", "new-unit", "--grace-period=1", inTime)
		})
	}

	t.Run("an upgrade whose image is missing stops at one node", func(t *testing.T) {
		_, err := e.Helm(t.Context(), e.printer, "upgrade", "gpufabric", filepath.Join(e.root, "charts/gpufabric"), "--reset-then-reuse-values",
			"--set", "image.tag=missing", "--namespace", "gpufabric-system")
		must(t, err)
		for role, namespace := range nodeRoles() {
			set := "daemonset/gpufabric-" + role
			e.eventually(t, set+" to wait for the image on a node", func(ctx context.Context) (bool, string, error) {
				out, err := e.Kubectl(ctx, nil, "--namespace", namespace, "get", "pods", "--selector", "app.kubernetes.io/component="+role,
					"--output", "jsonpath={.items[*].status.containerStatuses[*].state.waiting.reason}")
				return strings.Contains(out, "ImagePullBackOff"), out, err
			})
			if counts := e.kubectl(t, "--namespace", namespace, "get", set, "--output",
				"jsonpath={.status.updatedNumberScheduled} {.status.numberUnavailable}"); counts != "1 1" {
				t.Errorf("%s has %s pods of the release and unavailable ones, want one of five nodes", set, counts)
			}
		}
		_, err = e.Helm(t.Context(), e.printer, "rollback", "gpufabric", "--namespace", "gpufabric-system", "--wait", "--timeout",
			patience.String())
		must(t, err)
		e.rolledOut(t)
		for pod, was := range before {
			if now := e.standing(t, pod); now != was {
				t.Errorf("%s was %s before and is %s", pod, was, now)
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
	t.Run("what was held is given back", func(t *testing.T) {
		uids := append(e.claimUIDs(t, held...), e.domain(t, "held").Metadata.UID)
		for pod := range before {
			e.kubectl(t, "delete", "pod", pod, "--grace-period=1", "--wait=false")
		}
		e.kubectl(t, "delete", "computedomain", "held", inTime)
		e.nothingLeft(t, uids...)
		for _, node := range e.Workers() {
			e.eventually(t, "no MIG instance on "+node, func(ctx context.Context) (bool, string, error) {
				out, err := e.smi(ctx, node, "mig", "-lgi")
				return has(out, "No ", "found"), out, err
			})
		}
	})
}

// nodeRoles are the namespaces of this test's node plugins.
func nodeRoles() map[string]string {
	return map[string]string{"gpu-plugin": "gpufabric-system", "compute-domain-plugin": "gpufabric-system", "rdma-plugin": "kube-system"}
}

// rolledOut waits until each node has the plugins of the present release.
func (e *environment) rolledOut(t *testing.T) {
	t.Helper()
	for role, namespace := range nodeRoles() {
		e.kubectl(t, "--namespace", namespace, "rollout", "status", "daemonset/gpufabric-"+role, inTime)
	}
}

// unitOf is a pod on a node with a unit of the seed's pool.
func unitOf(name, node string) string {
	return fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s}, spec: {nodeSelector: {kubernetes.io/hostname: %s}, containers: [
		{name: c, image: "rdma-test:v1", command: [sleep, infinity], resources: {limits: {%s: 1}}}]}}`, name, node, sharedHCA)
}

// standing identifies a pod's container and devices: a pod that was restarted, or has other devices, has another value.
func (e *environment) standing(t *testing.T, pod string) string {
	t.Helper()
	about := e.kubectl(t, "get", "pod", pod, "--output",
		"jsonpath={.metadata.uid} {.status.phase} {.status.containerStatuses[0].restartCount} {.status.resourceClaimStatuses}")
	return about + " " + e.kubectl(t, "exec", pod, "--", "sh", "-c", "ls /dev /dev/nvidia-caps* /dev/infiniband 2>/dev/null || true")
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
