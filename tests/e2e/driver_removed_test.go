package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"gpufabric.io/tests/docker"
)

// removeDriver removes the files of a node's driver, as its uninstall does, and returns a function that puts them back. They are put back
// when the test ends, too.
func (e *environment) removeDriver(t *testing.T, node string) (putBack func()) {
	t.Helper()
	const root = "/var/lib/fakefabric/driver"
	_, err := docker.Script(t.Context(), node, "mv --no-target-directory "+root+" "+root+".removed")
	must(t, err)
	back := func(ctx context.Context) {
		t.Helper()
		_, err := docker.Script(ctx, node, "test ! -e "+root+".removed || mv --no-target-directory "+root+".removed "+root)
		must(t, err)
	}
	t.Cleanup(func() { back(context.WithoutCancel(t.Context())) })
	return func() {
		t.Helper()
		back(t.Context())
	}
}

// testDriverRemoved removes the driver of a node under pods with whole GPUs, MIG instances and shares.
func testDriverRemoved(t *testing.T, e *environment) {
	node := e.Workers()[1]
	var claims []string
	for _, i := range []int{0, 3, 5} {
		claims = append(claims, deafClaim(fmt.Sprintf("driver-whole-%d", i), wholeGPU(i)))
	}
	claims = append(claims,
		deafClaim("driver-whole-1", wholeGPU(1)), deafClaim("driver-mig-1", migOf(e.gpuUUID(t, node, 1))),
		deafClaim("driver-whole-4", wholeGPU(4)), deafClaim("driver-mig-4", migOf(e.gpuUUID(t, node, 4))),
		deafClaim("driver-share-0", shareOf(0)), deafClaim("driver-share-3", shareOf(3)),
		deafClaim("driver-whole-2", wholeGPU(2)), deafClaim("driver-whole-6", wholeGPU(6)), deafClaim("driver-whole-7", wholeGPU(7)))
	e.apply(t, strings.Join(claims, "\n"))
	e.outlivesDriver(t, node, []string{"gpu-plugin"},
		[]succession{
			{"a whole GPU", "driver-whole-5", "driver-whole-5"},
			{"a MIG instance, then its GPU", "driver-mig-4", "driver-whole-4"},
			{"a share, then its GPU", "driver-share-3", "driver-whole-3"},
		},
		[]succession{
			{"a whole GPU", "driver-whole-2", "driver-whole-2"},
			{"a MIG instance, then its GPU", "driver-mig-1", "driver-whole-1"},
			{"a share, then its GPU", "driver-share-0", "driver-whole-0"},
		}, "driver-whole-6", "driver-whole-7")
	e.eventually(t, "no GPU of "+node+" to be tainted or cut", func(ctx context.Context) (bool, string, error) {
		taints := e.taints(t, node)
		instances, err := e.smi(ctx, node, "mig", "-lgi")
		return len(taints) == 0 && has(instances, "No ", "found"), fmt.Sprintf("taints %v, instances:\n%s", taints, instances), err
	})
}

// testDriverRemovedUnderChannel is the same for a whole GPU and an IMEX channel.
func testDriverRemovedUnderChannel(t *testing.T, e *environment) {
	node := e.Workers()[1]
	e.domains(t, "driver-a", "driver-b")
	e.gpuUUID(t, node, 0)
	var claims []string
	for i := range 4 {
		claims = append(claims, deafClaim(fmt.Sprintf("driver-whole-%d", i), wholeGPU(i)))
	}
	e.apply(t, strings.Join(claims, "\n"))
	e.outlivesDriver(t, node, []string{"gpu-plugin", "compute-domain-plugin"},
		[]succession{{"a whole GPU", "driver-whole-0", "driver-whole-0"}},
		[]succession{
			{"a whole GPU", "driver-whole-1", "driver-whole-1"},
			{"an IMEX channel", "driver-a", "driver-b"},
		}, "driver-whole-2", "driver-whole-3")
}

// outlivesDriver removes a node's driver and puts it back. Meanwhile pods with devices can end: those of early under the plugins that had
// the driver open, those of late after these were started again. The next pods get the devices when the driver is back. A pod with a claim
// of stays is not disturbed, and one of waits gets its device only then.
func (e *environment) outlivesDriver(t *testing.T, node string, plugins []string, early, late []succession, stays, waits string) {
	t.Helper()
	first := func(s succession) string { return "had-" + s.first }
	next := func(s succession) string { return "gets-" + s.next }
	all := append(append([]succession{}, early...), late...)
	e.apply(t, politePod("stays", node, stays))
	for _, s := range all {
		e.apply(t, politePod(first(s), node, s.first))
	}
	const state = "jsonpath={.metadata.uid} {.status.phase} {.status.containerStatuses[0].restartCount}"
	e.ready(t, "stays")
	stood, stayed := e.kubectl(t, "get", "pod", "stays", "--output", state), e.devicesOf(t, "stays")
	saw, uids := map[string]string{}, map[string][]string{}
	for _, s := range all {
		e.ready(t, first(s))
		saw[first(s)], uids[first(s)] = e.devicesOf(t, first(s)), e.claimUIDs(t, first(s))
	}
	end := func(when string, some []succession) {
		t.Helper()
		for _, s := range some {
			e.kubectl(t, "delete", "pod", first(s), "--wait=false")
		}
		for _, s := range some {
			if _, err := e.Kubectl(t.Context(), nil, "wait", "pod/"+first(s), "--for=delete", inTime); err != nil {
				t.Log(e.state(t))
				t.Fatalf("%s: its pod does not end %s: %v", s.device, when, err)
			}
		}
	}

	putBack := e.removeDriver(t, node)
	end("when the driver was removed", early)
	for _, role := range plugins {
		before := e.pluginOf(t, role, node)
		e.kubectl(t, "--namespace", vgpuNamespace, "delete", "pod", before, inTime)
		e.kubectl(t, "--namespace", vgpuNamespace, "rollout", "status", "daemonset/gpufabric-"+role, inTime)
	}
	end("under plugins that never had the driver", late)
	e.apply(t, politePod("waits", node, waits))
	e.eventually(t, "a new claim to wait for the driver", func(ctx context.Context) (bool, string, error) {
		out, err := e.Kubectl(ctx, nil, "get", "events", "--field-selector=involvedObject.name=waits", "--output",
			`jsonpath={range .items[*]}{.reason}: {.message}{"\n"}{end}`)
		return strings.Contains(out, "WaitingForDriver"), out, err
	})
	if phase := e.kubectl(t, "get", "pod", "waits", "--output", "jsonpath={.status.phase}"); phase != "Pending" {
		t.Errorf("a new pod is %s without a driver", phase)
	}
	if now := e.kubectl(t, "get", "pod", "stays", "--output", state); now != stood {
		t.Errorf("the pod that stays is %q without a driver, before %q", now, stood)
	}

	putBack()
	e.eventually(t, "the node's driver to be used again", func(ctx context.Context) (bool, string, error) {
		out, err := e.Kubectl(ctx, nil, "get", "node", node, "--output",
			`jsonpath={range .status.conditions[?(@.type=="GPUDriver")]}{.status} {.reason}: {.message}{end}`)
		return strings.HasPrefix(out, "True "), out, err
	})
	e.hasten(t, "waits")
	e.ready(t, "waits") // so the kubelet has the plugin that has the driver
	for _, s := range all {
		e.apply(t, politePod(next(s), node, s.next))
	}
	for _, s := range all {
		e.ready(t, next(s))
		if got := e.devicesOf(t, next(s)); got != saw[first(s)] {
			t.Errorf("%s: the next pod sees %q, want %q", s.device, got, saw[first(s)])
		}
		e.vanish(t, "what the node stored of "+s.device, func(ctx context.Context) ([]string, error) { return e.traces(ctx, uids[first(s)]...) })
	}
	if now, devices := e.kubectl(t, "get", "pod", "stays", "--output", state), e.devicesOf(t, "stays"); now != stood || devices != stayed {
		t.Errorf("the pod that stays is %q and sees %q, before %q and %q", now, devices, stood, stayed)
	}
	pods := []string{"delete", "pod", "stays", "waits", inTime}
	for _, s := range all {
		pods = append(pods, next(s))
	}
	e.kubectl(t, pods...)
}
