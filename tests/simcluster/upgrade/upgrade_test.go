//go:build upgrade

package upgrade

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/domain"
	"gpufabric.io/tests/simcluster/fixture"
)

var (
	wholeGPU = regexp.MustCompile(`^/dev/nvidia\d+$`)
	alone    = regexp.MustCompile(`^/dev/(nvidia-caps-imex-channels/channel\d+|nvidia-caps/nvidia-cap\d+|infiniband/uverbs\d+)$`)
)

// The forms of claims. A pod is named after the template of its claim.
const (
	whole = "whole"
	slice = "slice"
	share = "share"
	nic   = "nic"
)

func forms() []string { return []string{whole, slice, share, nic} }

// TestUpgradeAndRollbackKeepPodsWithClaims holds a GPU, a MIG instance, a share and a NIC on each node, by DRA, and domains with daemons of
// their own and of their clique.
func TestUpgradeAndRollbackKeepPodsWithClaims(t *testing.T) {
	const nodes = 3
	g := start(t, fixture.Options{Nodes: nodes, Values: map[string]any{
		"computeDomains": map[string]any{"imex": "domain"},
		"gpus":           map[string]any{"enabled": true, "forms": map[string]any{"default": map[string]any{"form": "flexible"}}},
		"rdma":           map[string]any{"enabled": true, "devicePlugin": false}, // DRA cannot allocate what a device plugin counts
	}})
	g.Pool("alone", `{resourceName: alone, mode: Exclusive, selectors: {vendors: ["15b3"]}}`)
	g.Template(whole, "gpu.nvidia.com", "")
	g.Template(slice, "mig.nvidia.com", "device.attributes['gpu.nvidia.com'].profile == '1g.23gb'")
	g.Template(nic, "rdma.gpufabric.io", "device.attributes['rdma.gpufabric.io'].?pool.orValue('') == 'rdma/alone'")
	g.Apply(`
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: share}
spec: {spec: {devices: {requests: [{name: share, exactly: {deviceClassName: gpu-share.gpufabric.io,
  capacity: {requests: {memory: 20Gi, cores: "30"}}}}]}}}
`)
	for i := range nodes {
		for _, form := range forms() {
			g.ClaimPod(named(form, i), cluster.NodeName(i), form)
		}
	}
	for i := range nodes {
		for _, form := range forms() {
			g.hold(named(form, i))
		}
	}
	g.domain("daemons", 2, 0, 1)
	// The domain that has daemons of its own keeps them.
	if err := g.Upgrade(t.Context(), map[string]any{"computeDomains": map[string]any{"imex": "clique"}}); err != nil {
		t.Fatal(err)
	}
	if err := g.AwaitRollouts(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.domain("clique", 1, 2)
	g.assertUntouched("change of computeDomains.imex")

	g.thereAndBack(func(step string) {
		for i := range nodes {
			for _, form := range forms() {
				pod := named("new-"+form, i)
				g.ClaimPod(pod, cluster.NodeName(i), form)
				g.AwaitPod(pod, fixture.Running)
				g.assertNoTwoHolders(step)
				g.remove(pod)
			}
		}
		// One more member of the clique's domain beside a domain with daemons has to wait, and the domains stay Ready.
		g.AwaitDomain("daemons", domain.ReadyOn(2))
		g.AwaitDomain("clique", domain.ReadyOn(1))
		g.Pod("new-member", "clique-channel", cluster.NodeName(2))
		g.AwaitPod("new-member", fixture.Running)
		g.remove("new-member")
	})
	g.releaseAll("daemons", "clique")
}

// TestUpgradeAndRollbackKeepPodsWithCountedDevices holds shares that gpufabric-scheduler has placed, and units of a pool that a device
// plugin counts.
func TestUpgradeAndRollbackKeepPodsWithCountedDevices(t *testing.T) {
	const nodes = 2
	g := start(t, fixture.Options{Nodes: nodes, Profile: "t4-edge", Values: map[string]any{
		"computeDomains": map[string]any{"enabled": false},
		"gpus":           map[string]any{"enabled": true},
		"rdma":           map[string]any{"enabled": true},
		// A simulated node has no container runtime, so no NRI either.
		"vgpu":      map[string]any{"enabled": true, "nriSocket": ""},
		"scheduler": map[string]any{"enabled": true},
	}})
	g.Pool("few", `{resourceName: few, rdmaHcaMax: 30, selectors: {vendors: ["15b3"]}}`)
	for i := range nodes {
		g.AwaitAllocatable(cluster.NodeName(i), "rdma/few", 3)
		g.LimitPod(named("units", i), cluster.NodeName(i), "rdma/few: 2")
		g.hold(named("units", i))
		g.counted(named("share", i), i)
		g.hold(named("share", i))
	}
	g.thereAndBack(func(string) {
		for i := range nodes {
			g.AwaitAllocatable(cluster.NodeName(i), "rdma/few", 3)
			g.LimitPod(named("new-units", i), cluster.NodeName(i), "rdma/few: 1")
			g.AwaitPod(named("new-units", i), fixture.Running)
			g.DeletePod(named("new-units", i))
			g.counted(named("new-share", i), i)
			g.assertNotOverbooked()
		}
		g.returned(nodes)
	})
	g.releaseAll()
}

func named(what string, node int) string { return fmt.Sprintf("%s-%d", what, node) }

// domain makes a domain with a pod on each of the nodes, which import memory, and holds the pods.
func (g *ground) domain(name string, count int, nodes ...int) {
	g.t.Helper()
	g.Domain(name, count)
	for _, i := range nodes {
		g.Pod(named(name, i), name+"-channel", cluster.NodeName(i))
	}
	g.AwaitDomain(name, domain.ReadyOn(count))
	for _, i := range nodes {
		g.imports(g.hold(named(name, i)))
	}
}

// remove deletes a pod, and waits until nothing of its claims is left.
func (g *ground) remove(pod string) {
	g.t.Helper()
	uids := g.claimsOf(g.AwaitPod(pod, fixture.Running))
	g.DeletePod(pod)
	g.AwaitNothingLeft(uids...)
}

// releaseAll deletes the pods that were held, and the domains, and waits until nothing of them is left.
func (g *ground) releaseAll(domains ...string) {
	g.t.Helper()
	var uids []string
	for _, h := range g.held {
		uids = append(uids, g.claimsOf(h.pod)...)
	}
	for _, name := range domains {
		uids = append(uids, g.AwaitDomain(name, func(domain.Domain) bool { return true }).UID)
	}
	if err := g.Empty(g.t.Context()); err != nil {
		g.t.Fatal(err)
	}
	g.AwaitNothingLeft(uids...)
}

// assertNoTwoHolders fails the test if two running pods of a node have the same channel, instance or NIC, or if a whole GPU has two.
func (g *ground) assertNoTwoHolders(step string) {
	g.t.Helper()
	holders := map[string]string{}
	for _, pod := range g.RunningPods() {
		part := !strings.Contains(pod.Name, whole)
		for _, container := range g.TryReceived(&pod) {
			for _, device := range container.Devices {
				if !wholeGPU.MatchString(device.Path) && !alone.MatchString(device.Path) {
					continue
				}
				key := pod.Spec.NodeName + " " + device.Path
				other, taken := holders[key]
				if taken && (alone.MatchString(device.Path) || !part || strings.Contains(other, whole)) {
					g.t.Errorf("%s: %s and %s both have %s", step, other, pod.Name, key)
				}
				holders[key] = pod.Name
			}
		}
	}
}

// counted runs a pod with more than half of a GPU's memory, placed by gpufabric-scheduler.
func (g *ground) counted(name string, node int) {
	g.t.Helper()
	g.Apply(`
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  schedulerName: gpufabric-scheduler
  terminationGracePeriodSeconds: 1
  nodeSelector: {kubernetes.io/hostname: %s}
  containers:
  - {name: main, image: "ubuntu:22.04", resources: {limits: {volcano.sh/vgpu-number: 1, volcano.sh/vgpu-memory: %d}}}
`, name, cluster.NodeName(node), mebibytes)
	g.AwaitPod(name, func(pod *corev1.Pod) bool {
		return fixture.Running(pod) && pod.Annotations["volcano.sh/bind-phase"] == "success"
	})
}

// returned deletes the new shares, and waits until each node's plugin has them back. It takes 90 s, since simulated pods have no cgroups
// that would show that their processes have ended. The scheduler counts them as free at once.
func (g *ground) returned(nodes int) {
	g.t.Helper()
	var records []string
	for i := range nodes {
		pod := g.AwaitPod(named("new-share", i), fixture.Running)
		records = append(records, filepath.Join(cluster.NodeDir(g.Dir, i), "r/var/lib/gpufabric/vgpu-plugin/given", string(pod.UID)+".json"))
		g.DeletePod(pod.Name)
	}
	ctx, cancel := context.WithTimeout(g.t.Context(), fixture.Patience)
	defer cancel()
	// Files have no event that a test could wait for.
	if err := wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true, func(context.Context) (bool, error) {
		return !slices.ContainsFunc(records, func(path string) bool { _, err := os.Stat(path); return err == nil }), nil
	}); err != nil {
		g.t.Errorf("shares of deleted pods are not released: %v (%v)", records, err)
	}
}

// mebibytes is each share's memory, in MiB of 15,360. Two never fit on one GPU.
const mebibytes = 9216

func (g *ground) assertNotOverbooked() {
	g.t.Helper()
	holders := map[string]string{}
	for _, pod := range g.RunningPods() {
		for _, container := range g.TryReceived(&pod) {
			gpu, limit := "", ""
			for _, variable := range container.Env {
				if value, ok := strings.CutPrefix(variable, "NVIDIA_VISIBLE_DEVICES="); ok {
					gpu = value
				}
				if value, ok := strings.CutPrefix(variable, "CUDA_DEVICE_MEMORY_LIMIT_0="); ok {
					limit = value
				}
			}
			if limit != strconv.Itoa(mebibytes)+"m" {
				continue // a pod with units of the pool
			}
			if other, taken := holders[gpu]; taken {
				g.t.Errorf("%s and %s each have more than half of %s", other, pod.Name, gpu)
			}
			holders[gpu] = pod.Name
		}
	}
	if len(holders) < 3 {
		g.t.Errorf("only %d shares were found, of two pods from before and a new one: %v", len(holders), holders)
	}
}
