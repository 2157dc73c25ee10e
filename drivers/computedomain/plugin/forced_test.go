package plugin

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/node/occupancy/occupancytest"
)

// TestPrepareGivesAChannelOnceWhenPodsAreForceDeleted takes the node's IMEX session from pods whose containers are processes in the
// kernel's cgroups and run on. The kubelet unprepares the claim while they run, as its reconcile loop does.
func TestPrepareGivesAChannelOnceWhenPodsAreForceDeleted(t *testing.T) {
	n := newMixedNode(t, false)
	pods := occupancytest.Real(t, filepath.Join(n.dir, "cgroup"))
	// A claim of the session's domain, before the scheduler has seen that the node shares its channel or after it.
	alone := func(name string) *resourceapi.ResourceClaim {
		claim := channelClaim("user", v1beta1.AllocationModeSingle)
		claim.Name, claim.UID = name, types.UID(name)
		return claim
	}
	for _, kind := range []struct {
		name, id    string
		first, next func(name string) *resourceapi.ResourceClaim
	}{
		{"a channel", "alone", alone, alone},
		{"a domain's channel, then one of the clique's", "own", ownClaim, sharedClaim},
		{"a channel of the clique's, then a domain's", "shared", sharedClaim, ownClaim},
	} {
		t.Run(kind.name, func(t *testing.T) {
			unprepare := func(uid types.UID) error {
				results, err := n.plugin.UnprepareResourceClaims(t.Context(), []kubeletplugin.NamespacedObject{{UID: uid}})
				return errors.Join(err, results[uid])
			}
			pods.On(t).Taken(func(_ int, pod string) {
				claim := kind.first(kind.id + "-" + pod)
				claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: pod, UID: types.UID(pod)}}
				if result := n.prepare(t, claim); result.Err != nil {
					t.Fatal(result.Err)
				}
			}, func(pod string) error {
				return unprepare(types.UID(kind.id + "-" + pod))
			}, func(try int) {
				claim := kind.next(fmt.Sprintf("%s-next-%d", kind.id, try))
				result := n.prepare(t, claim)
				if err := errors.Join(result.Err, unprepare(claim.UID)); err != nil {
					t.Errorf("the next claim: %v", err)
				}
			})
		})
	}
}
