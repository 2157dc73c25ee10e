package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// migByScheduler is a pod of the scheduler's that requests an instance with 9000 MiB, which only the slots of the geometry "mixed" have.
const migByScheduler = `
{apiVersion: v1, kind: Pod, metadata: {name: %s, labels: {instance: large}, annotations: {volcano.sh/vgpu-mode: mig}}, spec: ` +
	`{schedulerName: volcano, terminationGracePeriodSeconds: 1,
  containers: [{name: main, image: %q, imagePullPolicy: %s, command: [sleep, infinity], resources: {limits: ` +
	`{volcano.sh/vgpu-number: 1, volcano.sh/vgpu-memory: 9000}}}]}}
---`

// testOwnSchedulersSlots has our scheduler, which locks nodes here, choose slots on a node where another gave the slot [1-1] of the third
// GPU and an instance without a slot of the first.
func testOwnSchedulersSlots(t *testing.T, e *environment, node string, uuids []string) {
	lock := func(ctx context.Context) (string, error) {
		return e.Kubectl(ctx, nil, "get", "node", node, "--output", "jsonpath={.metadata.annotations.hamivgpu}")
	}

	// The image of this pod does not exist, so the node's plugin never serves it and the lock stays until the pod is gone.
	e.apply(t, fmt.Sprintf(migByScheduler, "stuck", "localhost/nowhere:none", "Never"))
	e.kubectl(t, "wait", "pod/stuck", "--for=condition=PodScheduled", inTime)
	held, err := lock(t.Context())
	must(t, err)
	if at, err := time.Parse(time.RFC3339, held); err != nil || time.Since(at) > patience {
		t.Errorf("the node's lock is %q (%v), want the time at which it was taken", held, err)
	}
	for document := range strings.SplitSeq(e.file(t, "examples/manifests/vgpu-pods.yaml"), "\n---\n") {
		if strings.Contains(document, "name: mig-pod") {
			e.apply(t, document)
		}
	}
	e.waitsFor(t, "mig-pod", "the node is locked (annotation hamivgpu) until a pod before this one has its shares")
	e.kubectl(t, "delete", "pod/stuck", inTime)

	// This is the smallest instance with 3000 MB in the layout of the third GPU. Its memory is that of the instance, not that
	// of the geometry. The scheduler does not have the layout of the first GPU.
	e.kubectl(t, "wait", "pod/mig-pod", "--for=condition=Ready", inTime)
	if got, want := e.sharesOf(t, "mig-pod"), node+" "+uuids[2]+"[1-3],NVIDIA,4864,0:;"; got != want {
		t.Errorf("the seed's pod was given %s, want %s", got, want)
	}
	e.hasInstance(t, "mig-pod", node, "1g.5gb")
	e.eventually(t, "the plugin to take the lock of the pod that it served away", func(ctx context.Context) (bool, string, error) {
		out, err := lock(ctx)
		return out == "", out, err
	})

	// Two such slots are free there. Any of the three pods may be the one that waits, since pods behind the lock come in any
	// order.
	names := []string{"large-0", "large-1", "large-2"}
	var manifest strings.Builder
	for _, name := range names {
		fmt.Fprintf(&manifest, migByScheduler, name, "ubuntu:24.04", "IfNotPresent")
	}
	e.apply(t, manifest.String())
	var left string
	e.eventually(t, "two of the pods to be placed and one to wait", func(ctx context.Context) (bool, string, error) {
		out, err := e.Kubectl(ctx, nil, "get", "pods", "--selector", "instance=large", "--output",
			`jsonpath={range .items[*]}{.metadata.name} {.spec.nodeName} {.status.conditions[?(@.type=="PodScheduled")].message}{"\n"}{end}`)
		placed := 0
		left = ""
		for line := range strings.Lines(out) {
			name, said, _ := strings.Cut(line, " ")
			if strings.HasPrefix(said, node) {
				placed++
			} else if has(said, "1 with a MIG instance that another scheduler gave without a slot", "1 without a MIG instance that large left") {
				left = name
			}
		}
		return placed == 2 && left != "", out, err
	})
	e.kubectl(t, "delete", "pod/sized", inTime)
	given := map[string]string{}
	for _, name := range names {
		e.kubectl(t, "wait", "pod/"+name, "--for=condition=Ready", inTime)
		given[name] = e.sharesOf(t, name)
		e.hasInstance(t, name, node, "2g.10gb")
	}
	if got, want := given[left], node+" "+uuids[0]+"[1-0],NVIDIA,9856,0:;"; got != want {
		t.Errorf("the pod that waited for a GPU without a slot's pod was given %s, want %s", got, want)
	}
	delete(given, left)
	var two []string
	for _, shares := range given {
		two = append(two, shares)
	}
	slices.Sort(two)
	if want := []string{node + " " + uuids[2] + "[1-0],NVIDIA,9856,0:;", node + " " + uuids[2] + "[1-2],NVIDIA,9856,0:;"}; !slices.Equal(two,
		want) {
		t.Errorf("the other two pods were given %v, want %v", two, want)
	}
	e.kubectl(t, append([]string{"delete", "--grace-period=1", inTime, "pod/mig-pod"}, prefixed("pod/", names)...)...)
}

// waitsFor waits until the scheduler gives a reason for a pod that it does not place.
func (e *environment) waitsFor(t *testing.T, pod, words string) {
	t.Helper()
	e.eventually(t, pod+" to wait: "+words, func(ctx context.Context) (bool, string, error) {
		out, err := e.Kubectl(ctx, nil, "get", "pod", pod, "--output", `jsonpath={.status.conditions[?(@.type=="PodScheduled")].message}`)
		return strings.Contains(out, words), out, err
	})
}

// sharesOf returns the node and the shares that the scheduler chose for a pod.
func (e *environment) sharesOf(t *testing.T, pod string) string {
	t.Helper()
	return e.kubectl(t, "get", "pod", pod, "--output",
		`jsonpath={.metadata.annotations.volcano\.sh/vgpu-node} {.metadata.annotations.volcano\.sh/vgpu-ids-new}`)
}

func prefixed(prefix string, names []string) []string {
	var out []string
	for _, name := range names {
		out = append(out, prefix+name)
	}
	return out
}
