package draplugin

import (
	"context"
	"os"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"gpufabric.io/drivers/node/atomicfile"
)

// A plugin that is killed during an unprepare leaves a record without a spec, of a claim that the API still has. After the restart, the
// kubelet's second unprepare may come while recovery reads the claim. Recovery must not bring back what that call removed, since it would
// then stay for ever.
func TestRecoveryKeepsClaimUnpreparedDuringLookup(t *testing.T) {
	dir, claim := t.TempDir(), claimOf("u1", "d0")
	b := newBench(t, dir, atomicfile.Writer{}, claim)
	b.mustPrepare(t, claim)
	if err := os.Remove(b.cdi.Path("u1")); err != nil {
		t.Fatal(err)
	}
	again := newBench(t, dir, atomicfile.Writer{}, claim)
	lookedUp := false
	again.client.PrependReactor("get", "resourceclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
		lookedUp = true
		results, err := again.UnprepareResourceClaims(t.Context(), []kubeletplugin.NamespacedObject{{UID: "u1"}})
		if err != nil || results["u1"] != nil {
			t.Errorf("unprepare: %v, %v", err, results["u1"])
		}
		return false, nil, nil
	})
	again.recoverFromAPI(t.Context(), again.state.List())
	if _, recorded := again.state.Get("u1"); !lookedUp || recorded || again.cdi.Has("u1") {
		t.Errorf("looked up: %t; has a record: %t, a spec: %t; want none", lookedUp, recorded, again.cdi.Has("u1"))
	}
	again.mustPrepare(t, claimOf("u2", "d0"))
	if len(again.kind.unprepared) != 1 {
		t.Errorf("unprepared %d claims, want the one", len(again.kind.unprepared))
	}
}

// moved is a claim after its allocation was removed and made again. A claim that outlives its pods keeps its UID.
func moved(uid, pool, device string) *resourceapi.ResourceClaim {
	claim := claimOf(uid, device)
	claim.Status.Allocation.Devices.Results[0].Pool = pool
	return claim
}

// While a node was away, the successor of a claim's pod got the claim on another node. The first node never gets another request to
// unprepare it.
func TestRecoveryUnpreparesClaimAllocatedElsewhere(t *testing.T) {
	for name, boot := range map[string]string{"in the same boot": "boot-1", "after a reboot": "boot-2"} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			writeBootID(t, dir, "boot-1")
			newBench(t, dir, atomicfile.Writer{}).mustPrepare(t, claimOf("u1", "d0"))
			writeBootID(t, dir, boot)
			again := newBench(t, dir, atomicfile.Writer{}, moved("u1", "pool of another node", "d0"))
			podsOn(t, again).end("p-u1")
			again.kind.prepare = func(context.Context, *Claim, Progress) (*Prepared, error) {
				t.Error("another node's device was prepared here")
				return &Prepared{}, nil
			}
			again.recoverFromAPI(t.Context(), again.state.List())
			if again.state.Len() != 0 || again.cdi.Has("u1") || len(again.kind.unprepared) != 1 {
				t.Errorf("records %d, spec %t, unprepared %d times; want all undone once", again.state.Len(), again.cdi.Has("u1"),
					len(again.kind.unprepared))
			}
			if holders := again.ledger.Holders("pool/d0"); len(holders) != 0 {
				t.Errorf("the device is held by %v", holders)
			}
		})
	}
}

func TestPrepareRepeatsForAnotherAllocation(t *testing.T) {
	b := newBench(t, t.TempDir(), atomicfile.Writer{})
	podsOn(t, b).end("p-u1")
	b.mustPrepare(t, claimOf("u1", "d0"))
	devices := b.mustPrepare(t, moved("u1", "pool", "d1"))
	if len(devices) != 1 || devices[0].DeviceName != "d1" || len(b.kind.unprepared) != 1 || b.kind.unprepared[0].Devices[0].Device != "d0" {
		t.Errorf("answer %+v after unpreparing %+v; want d1 after d0", devices, b.kind.unprepared)
	}
	b.mustPrepare(t, claimOf("u2", "d0"))
}

func TestPrepareFreesDeviceWhenItsClaimIsElsewhere(t *testing.T) {
	fastest := time.Hour // one that waits in vain takes holdPatience each time; a busy machine may take as long now and then
	for range 10 {
		b := newBench(t, t.TempDir(), atomicfile.Writer{}, moved("u1", "pool of another node", "d0"))
		podsOn(t, b).end("p-u1")
		b.mustPrepare(t, claimOf("u1", "d0"))
		began := time.Now()
		b.mustPrepare(t, claimOf("u2", "d0"))
		if fastest = min(fastest, time.Since(began)); fastest < holdPatience {
			return
		}
	}
	t.Errorf("took %s at least", fastest)
}
