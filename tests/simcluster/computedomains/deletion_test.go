package computedomains

import (
	"fmt"
	"testing"

	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/domain"
	"gpufabric.io/tests/simcluster/fixture"
)

func TestDeletedDomainIsRemovedCompletely(t *testing.T) {
	n := shared.Namespace(t)
	const size = 3
	n.Domain("d", size)
	for i := range size {
		n.Pod(fmt.Sprintf("member-%d", i), "d-channel", cluster.NodeName(i))
	}
	uid := n.AwaitDomain("d", domain.ReadyOn(size)).UID
	if left, err := n.LeftOf(t.Context(), uid); err != nil || len(left) == 0 {
		t.Fatalf("while the domain works nothing of it is found (%v): the search would not find what is left, either", err)
	}
	for i := range size {
		n.DeletePod(fmt.Sprintf("member-%d", i))
	}
	n.DeleteDomain("d")
	n.AwaitNothingLeft(uid)
}

func TestDeletionEndsWithTheDomainsPods(t *testing.T) {
	n := shared.Namespace(t)
	n.Domain("d", 1)
	n.Pod("member", "d-channel", "")
	n.AwaitPod("member", fixture.Running)
	uid := n.AwaitDomain("d", domain.ReadyOn(1)).UID
	n.StartDeletingDomain("d")
	n.DeletePod("member")
	n.AwaitDomainGone("d")
	n.AwaitNothingLeft(uid)
}
