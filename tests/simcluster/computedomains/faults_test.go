package computedomains

import (
	"fmt"
	"testing"

	"gpufabric.io/tests/simcluster/audit"
	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/controlplane"
	"gpufabric.io/tests/simcluster/domain"
	"gpufabric.io/tests/simcluster/fixture"
)

func TestPluginKilledWhilePodsRunServesTheNext(t *testing.T) {
	n := shared.Namespace(t)
	n.Domain("d", 1)
	n.Pod("first", "d-channel", cluster.NodeName(5))
	n.AwaitPod("first", fixture.Running)
	n.KillPlugin("compute-domain-plugin", 5)
	n.DeletePod("first")
	n.Pod("second", "d-channel", cluster.NodeName(5))
	n.AwaitPod("second", fixture.Running)
}

func TestPluginKilledBeforeItsFirstClaimServesIt(t *testing.T) {
	n := shared.Namespace(t)
	n.Domain("d", 1)
	n.KillPlugin("compute-domain-plugin", 6)
	n.Pod("member", "d-channel", cluster.NodeName(6))
	n.AwaitPod("member", fixture.Running)
	n.AwaitDomain("d", domain.ReadyOn(1))
}

func TestControllerKilledDuringFormationFinishesIt(t *testing.T) {
	n := shared.Namespace(t)
	const size = 4
	n.Domain("d", size)
	n.KillController()
	for i := range size {
		n.Pod(fmt.Sprintf("member-%d", i), "d-channel", cluster.NodeName(8+i))
	}
	n.KillController()
	n.AwaitDomain("d", domain.ReadyOn(size))
}

func TestServiceAccountsHaveRightsForTheirRequests(t *testing.T) {
	forbidden := map[string]int{}
	if err := audit.Requests(controlplane.AuditLog(shared.Dir), func(r audit.Request) {
		if r.Denied() {
			forbidden[r.String()]++
		}
	}); err != nil {
		t.Fatal(err)
	}
	for request, times := range forbidden {
		t.Errorf("forbidden %d times: %s", times, request)
	}
}
