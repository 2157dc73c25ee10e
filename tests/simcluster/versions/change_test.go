//go:build versions

package versions

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/controlplane"
	"gpufabric.io/tests/simcluster/fixture"
)

// The control plane is upgraded and rolled back while pods hold a GPU, a domain's channel and a NIC. The plugins read the API server's
// version every two minutes.
func TestPodsKeepDevicesWhileKubernetesIsUpgradedAndRolledBack(t *testing.T) {
	own := os.Getenv("SIMCLUSTER_KUBERNETES")
	if own == "" || own >= "1.36" {
		t.Skipf("skipped: it goes from a version before 1.36 to 1.36 and back, and SIMCLUSTER_KUBERNETES is %q", own)
	}
	n := shared.Namespace(t)
	n.Template("gpu", "gpu.nvidia.com", "")
	n.ClaimPod("gpu", cluster.NodeName(formsNode), "gpu")
	n.Domain("d", 1)
	n.Pod("channel", "d-channel", cluster.NodeName(formsNode))
	n.Pool("held", `{resourceName: held, rdmaHcaMax: 3, selectors: {vendors: ["15b3"]}}`)
	n.AwaitAllocatable(cluster.NodeName(formsNode), "rdma/held", 1)
	n.LimitPod("nic", cluster.NodeName(formsNode), "rdma/held: 1")
	held := map[string]string{}
	uids := map[string]*corev1.Pod{}
	for _, name := range []string{"gpu", "channel", "nic"} {
		uids[name] = n.AwaitPod(name, fixture.Running)
		held[name] = fmt.Sprint(n.DevicePaths(name))
	}
	untouched := func(when string) {
		t.Helper()
		for name, was := range uids {
			pod := n.AwaitPod(name, fixture.Running)
			if pod.UID != was.UID || pod.Status.ContainerStatuses[0].RestartCount != was.Status.ContainerStatuses[0].RestartCount {
				t.Errorf("%s: pod %s is another, or was restarted", when, name)
			}
			if got := fmt.Sprint(n.DevicePaths(name)); got != held[name] {
				t.Errorf("%s: pod %s has %s, before %s", when, name, got, held[name])
			}
		}
	}
	// A claim for a MIG placement can be served by 1.36 alone, beside the GPU that is held.
	n.Template("small", "mig.nvidia.com", small)
	n.ClaimPod("part", cluster.NodeName(formsNode), "small")
	n.AwaitPod("part", unschedulable)

	change(t, "", nil)
	n.AwaitPod("part", fixture.Running)
	untouched("after the upgrade")
	n.DeletePod("part")

	change(t, own, nil)
	awaitNode(t, formsNode, func(node *corev1.Node) *corev1.NodeCondition {
		for i, c := range node.Status.Conditions {
			if c.Type == "GPUForms" && c.Reason == "NeedsKubernetesFeature" {
				return &node.Status.Conditions[i]
			}
		}
		return nil
	})
	untouched("after the rollback")
	n.ClaimPod("again", cluster.NodeName(formsNode), "small")
	n.AwaitPod("again", unschedulable)
	for name := range uids {
		n.DeletePod(name)
	}
	n.DeletePod("again")
	fill(t, n, cluster.NodeName(formsNode), gpusPerNode)
}

// An administrator switches gates: the API server is restarted, and its version stays. The plugins detect the new connection.
func TestNodeNamesTheGatesAgainAfterTheyWereSwitchedOnAndOff(t *testing.T) {
	own := os.Getenv("SIMCLUSTER_KUBERNETES")
	if own == "" || own >= "1.36" {
		t.Skipf("skipped: it switches gates that are off before 1.36, and SIMCLUSTER_KUBERNETES is %q", own)
	}
	for _, on := range []bool{true, false} {
		var gates map[string]bool
		if on {
			gates = map[string]bool{taints: true, shares: true}
		}
		change(t, own, gates)
		awaitNode(t, formsNode, func(node *corev1.Node) *corev1.NodeCondition {
			for i, c := range node.Status.Conditions {
				if c.Type == "GPUForms" && strings.Contains(c.Message, shares) != on && strings.Contains(c.Message, counters) {
					return &node.Status.Conditions[i]
				}
			}
			return nil
		})
	}
}

// change starts the control plane with the programs of another version, or with other feature gates.
func change(t *testing.T, version string, gates map[string]bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	binaries, err := controlplane.BinariesOf(ctx, version)
	if err != nil {
		t.Fatal(err)
	}
	if err := shared.Plane.Change(ctx, binaries, gates); err != nil {
		t.Fatal(err)
	}
}
