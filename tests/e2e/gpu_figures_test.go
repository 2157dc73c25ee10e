package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestGPUFiguresAreMeasuredInKind measures how long a user waits for pods with GPUs on one node with eight GPUs, and for the same pods
// without GPUs. Most of the time is the work of the kubelet and the container runtime. It measures no other driver.
func TestGPUFiguresAreMeasuredInKind(t *testing.T) {
	if *runs == 0 {
		t.Skip("skipped: a measurement, not a test; run it with -run TestGPUFiguresAreMeasuredInKind -runs 5 (a minute a run)")
	}
	e := newEnvironment(t)
	e.become(t, "h100-hgx", "gpus.enabled=true")
	e.apply(t, gpuTemplate("figures-1", 1)+"---\n"+gpuTemplate("figures-7", 7))
	f := &figures{}
	for range *runs {
		for _, with := range []struct{ template, words string }{{"figures-1", "with a GPU each"}, {"", "without claims"}} {
			f.clock("a pod "+strings.Replace(with.words, " each", "", 1)+", created to Ready", func() { e.figurePods(t, with.template, 1) })
			e.removeFigurePods(t)
			f.clock("8 pods at once "+with.words+", created to all Ready", func() { e.figurePods(t, with.template, 8) })
			e.removeFigurePods(t)
		}
		f.add("a GPU's pod deleted with grace 0 to the next pod Ready, all other GPUs in use", e.reuse(t))
		e.removeFigurePods(t)
		f.write(t)
	}
}

func gpuTemplate(name string, count int) string {
	return fmt.Sprintf(`apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: %s}
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, count: %d}}]}}}
`, name, count)
}

// figurePod is a pod that sleeps; without a template it has no claim.
func (e *environment) figurePod(name, template string) string {
	claims, resources := "", ""
	if template != "" {
		claims = fmt.Sprintf("\n  resourceClaims: [{name: gpu, resourceClaimTemplateName: %s}]", template)
		resources = "\n      resources: {claims: [{name: gpu}]}"
	}
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {figure: pod}}
spec:
  nodeSelector: {kubernetes.io/hostname: %s}
  containers:
    - name: main
      image: ubuntu:22.04
      command: [sleep, "9999"]%s%s
---
`, name, e.Workers()[0], resources, claims)
}

// figurePods creates pods at once and returns when all are ready.
func (e *environment) figurePods(t *testing.T, template string, count int) {
	t.Helper()
	var manifest strings.Builder
	for i := range count {
		manifest.WriteString(e.figurePod(fmt.Sprintf("figure-%d", i), template))
	}
	e.apply(t, manifest.String())
	e.kubectl(t, "wait", "pods", "--selector=figure=pod", "--for=condition=Ready", inTime)
}

func (e *environment) removeFigurePods(t *testing.T) {
	t.Helper()
	e.kubectl(t, "delete", "pods", "--selector=figure=pod", "--grace-period=1", inTime)
	e.kubectl(t, "wait", "resourceclaims", "--all", "--for=delete", inTime)
}

// reuse deletes a pod with a GPU by force, while another pod waits for that GPU.
func (e *environment) reuse(t *testing.T) time.Duration {
	t.Helper()
	e.apply(t, e.figurePod("figure-rest", "figures-7")+e.figurePod("figure-first", "figures-1"))
	e.kubectl(t, "wait", "pods", "--selector=figure=pod", "--for=condition=Ready", inTime)
	e.apply(t, e.figurePod("figure-next", "figures-1"))
	began := time.Now()
	e.kubectl(t, "delete", "pod", "figure-first", "--grace-period=0", "--force", "--wait=false")
	e.kubectl(t, "wait", "pod/figure-next", "--for=condition=Ready", inTime)
	return time.Since(began)
}
