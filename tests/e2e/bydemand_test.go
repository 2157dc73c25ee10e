package e2e

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

var byDemandFor = flag.Duration("by-demand", 0, "how long TestLayoutsByDemand has pods of all shapes come and go")

const (
	// migShape is a claim for a MIG device of one profile.
	migShape = `{deviceClassName: mig.nvidia.com, selectors: [{cel: {expression: "device.attributes['gpu.nvidia.com'].profile == '%s'"}}]}`

	// byDemand offers the GPUs of all nodes whole or cut in three profiles.
	byDemand = `
apiVersion: gpufabric.io/v1alpha1
kind: MIGLayout
metadata: {name: by-demand}
spec: {auto: {shapes: [{profile: whole}, {profile: 1g.10gb}, {profile: 2g.20gb}, {profile: 3g.40gb}]}}
`
)

// TestLayoutsByDemand has pods of three MIG profiles and whole GPUs come and go on two nodes of eight H100 whose layouts follow the demand.
// Every pod runs, no two have the same device, and the kubelet reports no claim that prepare refused.
func TestLayoutsByDemand(t *testing.T) {
	if *byDemandFor == 0 {
		t.Skip("skipped: it takes as long as it is given; `make kind-by-demand` gives it ten minutes")
	}
	e := newEnvironmentOf(t, "gpufabric-by-demand", 2, "h100-hgx")
	e.become(t, "h100-hgx", "computeDomains.enabled=false", "gpus.enabled=true", "gpus.layoutsByDemand=true", driverState)
	e.apply(t, byDemand)
	requests := map[string]string{"whole": wholeClaim, "1g": fmt.Sprintf(migShape, "1g.10gb"), "2g": fmt.Sprintf(migShape, "2g.20gb"),
		"3g": fmt.Sprintf(migShape, "3g.40gb")}
	// The compute slices of the pods that run at a time stay below 14 of 16 GPUs': each mix then fits, however the pods before lie.
	slicesOf := map[string]int{"whole": 7, "1g": 1, "2g": 2, "3g": 3}
	const most = 70
	random := rand.New(rand.NewPCG(1, 0)) //nolint:gosec // the same pods in every run
	var pods []string
	shape := map[string]string{}
	used := 0
	for begin, made := time.Now(), 0; time.Since(begin) < *byDemandFor; {
		var added []string
		for _, s := range mixOf(random) {
			if used+slicesOf[s] > most {
				continue
			}
			name := fmt.Sprintf("%s-%d", s, made)
			made++
			used += slicesOf[s]
			shape[name] = s
			_, err := e.Kubectl(t.Context(), strings.NewReader(anywhere(name, requests[s])), "apply", "--filename", "-")
			must(t, err)
			added = append(added, name)
		}
		e.ready(t, added...)
		pods = append(pods, added...)
		e.noTwoHolders(t, pods)
		random.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
		ended := pods[:len(pods)/2]
		pods = slices.Clone(pods[len(pods)/2:])
		for _, name := range ended {
			used -= slicesOf[shape[name]]
		}
		e.kubectl(t, append([]string{"delete", "--wait=true", inTime}, prefixed("pod/", ended)...)...)
		t.Logf("%d pods came, %d run", made, len(pods))
	}
	e.kubectl(t, append([]string{"delete", "--wait=true", inTime}, prefixed("pod/", pods)...)...)
	e.kubectl(t, "delete", "resourceclaimtemplates", "--all")
	for _, selector := range []string{"reason=FailedPrepareDynamicResources", "type=Warning,involvedObject.kind=ResourceClaim"} {
		if refused := e.kubectl(t, "get", "events", "--no-headers", "--ignore-not-found", "--field-selector", selector); refused != "" {
			t.Errorf("claims were refused:\n%s", refused)
		}
	}
}

// mixOf returns the shapes of some pods: now mostly small ones, now whole GPUs.
func mixOf(random *rand.Rand) []string {
	wanted := []string{"1g", "1g", "1g", "1g", "1g", "2g", "2g", "3g", "3g", "whole"}
	if random.IntN(2) == 0 {
		wanted = []string{"whole", "whole", "whole", "whole", "3g", "3g", "2g", "1g"}
	}
	var mix []string
	for range 12 {
		mix = append(mix, wanted[random.IntN(len(wanted))])
	}
	return mix
}

// anywhere is a pod with a claim on any node.
func anywhere(name, request string) string {
	return strings.Replace(holder(name, "", request), "  nodeSelector: {kubernetes.io/hostname: }\n", "", 1)
}

// noTwoHolders fails the test if two pods of a node see the same MIG instance, or one sees the GPU of another.
func (e *environment) noTwoHolders(t *testing.T, pods []string) {
	t.Helper()
	type view struct {
		pod  string
		part bool // it has an instance of the GPU
	}
	views := map[string]view{}
	for _, pod := range pods {
		node := e.kubectl(t, "get", "pod", pod, "--output", "jsonpath={.spec.nodeName}")
		devices := e.seen(t, pod, "main")
		part := slices.ContainsFunc(devices, func(name string) bool { return strings.HasPrefix(name, "nvidia-cap") })
		if len(devices) == 0 {
			t.Errorf("%s sees no device", pod)
		}
		for _, name := range devices {
			gpu := !strings.HasPrefix(name, "nvidia-cap")
			at := node + " " + name
			if other, seen := views[at]; seen && !(gpu && part && other.part) {
				t.Errorf("%s is seen by %s and by %s", at, other.pod, pod)
			}
			views[at] = view{pod, part}
		}
	}
}
