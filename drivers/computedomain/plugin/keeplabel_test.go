package plugin

import (
	"context"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/hardware/nvml"
)

// relabel changes the domain's label as another writer.
func (n *testNode) relabel(t *testing.T, domain string) {
	t.Helper()
	object, err := n.client.CoreV1().Nodes().Get(t.Context(), nodeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if object.Labels == nil {
		object.Labels = map[string]string{}
	}
	object.Labels[v1beta1.LabelComputeDomain] = domain
	if domain == "" {
		delete(object.Labels, v1beta1.LabelComputeDomain)
	}
	if object, err = n.client.CoreV1().Nodes().Update(t.Context(), object, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	n.node.labels.Set(labelsOf(object))
}

func (n *testNode) awaitLabel(t *testing.T, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if got, ok := n.node.labels.Await(ctx, func(l nodeLabels) bool { return l.domain == types.UID(want) }); !ok {
		t.Errorf("the label is %q, want %q", got.domain, want)
	}
}

func TestKeepLabelFollowsClaims(t *testing.T) {
	n := newTestNode(t, inFabric)
	n.settle = 50 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); n.keepLabel(ctx) }()
	defer func() { cancel(); <-done }()
	n.daemonIs(true)
	n.relabel(t, "of-a-claim-whose-record-was-lost")
	n.awaitLabel(t, "")
	claim := channelClaim("user", v1beta1.AllocationModeSingle)
	if result := n.prepare(t, claim); result.Err != nil {
		t.Fatal(result.Err)
	}
	n.relabel(t, "")
	n.awaitLabel(t, string(domainUID))
	n.relabel(t, "of-another")
	n.awaitLabel(t, string(domainUID))
	n.unprepare(t, claim)
	n.awaitLabel(t, "")
}

func TestKeepLabelKeepsTheLabelWhenClaimsAreUnknown(t *testing.T) {
	n := newTestNode(t, inFabric)
	n.settle = time.Millisecond
	n.holdings.doubt()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	n.relabel(t, "of-a-claim-whose-record-lies-aside")
	n.keepLabel(ctx)
	if label := n.label(t, v1beta1.LabelComputeDomain); label == "" {
		t.Error("the label of a job that may run was taken off")
	}
}

func TestPreparerPreparesADaemonAgainInAnotherClique(t *testing.T) {
	n := newTestNode(t, inFabric)
	claim := daemonClaim(system)
	if _, err := n.client.ResourceV1().ResourceClaims(system).Create(t.Context(), claim, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if result := n.prepare(t, claim); result.Err != nil {
		t.Fatal(result.Err)
	}
	n.plugin.Renew(t.Context())
	if env := n.injected(t).Env; !slices.Contains(env, "CLIQUE_ID="+cliqueID) {
		t.Fatalf("environment %q", env)
	}
	n.fabric.Set(fabric{known: true, state: nvml.Joining})
	n.plugin.Renew(t.Context()) // no effect yet: the node is on its way
	n.fabric.Set(fabric{known: true, state: nvml.Joined, clique: "another.1"})
	n.plugin.Renew(t.Context())
	if env := n.injected(t).Env; !slices.Contains(env, "CLIQUE_ID=another.1") {
		t.Errorf("environment %q", env)
	}
}

func TestPreparerWaitsForTheDriver(t *testing.T) {
	n := newTestNode(t, fabric{known: true, state: nvml.NoFabric, problem: "the node has 4 NVIDIA GPUs", problemKind: problemNoDriver})
	n.daemonIs(true)
	time.AfterFunc(100*time.Millisecond, func() { n.fabric.Set(fabric{known: true, state: nvml.Joining}) })
	time.AfterFunc(200*time.Millisecond, func() { n.fabric.Set(inFabric) })
	result := n.prepare(t, channelClaim("user", v1beta1.AllocationModeSingle))
	if result.Err != nil || len(result.Devices[0].CDIDeviceIDs) != 1 {
		t.Errorf("result %+v", result)
	}
}
