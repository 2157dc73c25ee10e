package draplugin

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/claimstate"
	"gpufabric.io/drivers/node/ledger"
)

// mistake is a bug of a driver that one claim triggers.
func mistake(record claimstate.Record) {
	if record.UID == "u1" {
		panic("a mistake over claim u1")
	}
}

func TestUnprepareFailsOnlyItsClaimOnPanic(t *testing.T) {
	b := newBench(t, t.TempDir(), atomicfile.Writer{})
	b.mustPrepare(t, claimOf("u1", "d0"))
	b.mustPrepare(t, claimOf("u2", "d1"))
	b.kind.unprepare = mistake
	both := []kubeletplugin.NamespacedObject{{UID: "u1"}, {UID: "u2"}}
	results, err := b.UnprepareResourceClaims(t.Context(), both)
	if err != nil || results["u2"] != nil || results["u1"] == nil || !strings.Contains(results["u1"].Error(), "mistake in the driver") ||
		reasonOf(results["u1"]) != "InternalError" {
		t.Fatalf("got %v, %v", results, err)
	}
	// The claim keeps its devices until they can be released.
	if _, recorded := b.state.Get("u1"); !recorded || len(b.ledger.Holders("pool/d0")) != 1 {
		t.Errorf("recorded: %t, held by %v", recorded, b.ledger.Holders("pool/d0"))
	}
	b.kind.unprepare = nil
	if results, err := b.UnprepareResourceClaims(t.Context(), both); err != nil || results["u1"] != nil || b.state.Len() != 0 {
		t.Errorf("the second time: %v, %v, %d records", results, err, b.state.Len())
	}
}

func TestRecoveryContinuesAfterPanicOverDeletedClaim(t *testing.T) {
	dir := t.TempDir()
	b := newBench(t, dir, atomicfile.Writer{})
	b.mustPrepare(t, claimOf("u1", "d0"))
	b.mustPrepare(t, claimOf("u2", "d1"))
	again := newBench(t, dir, atomicfile.Writer{}) // the API server has neither claim
	podsOn(t, again).end("p-u1")
	podsOn(t, again).end("p-u2")
	again.kind.unprepare = mistake
	for uid, fails := range map[string]bool{"u1": true, "u2": false} {
		record, _ := again.state.Get(claimOf(uid, "").UID)
		if err := again.recoverClaim(t.Context(), record); (err != nil) != fails {
			t.Errorf("%s: %v", uid, err)
		}
	}
	if again.state.Len() != 1 {
		t.Errorf("%d records are left, want that of u1", again.state.Len())
	}
}

func TestPrepareFailsClaimOnPanicWhenItCannotBeKept(t *testing.T) {
	b := newBench(t, t.TempDir(), atomicfile.Writer{Before: func(_ atomicfile.Step, path string) error {
		if filepath.Ext(path) == ".claim" {
			return errors.New("the disk is full")
		}
		return nil
	}})
	b.kind.unprepare = mistake
	results, err := b.PrepareResourceClaims(t.Context(), []*resourceapi.ResourceClaim{claimOf("u1", "d0")})
	if err != nil || results["u1"].Err == nil || !strings.Contains(results["u1"].Err.Error(), "the disk is full") ||
		!strings.Contains(results["u1"].Err.Error(), "mistake in the driver") {
		t.Errorf("got %v, %v", results["u1"].Err, err)
	}
}

// carelessKind panics over what it finds at a start.
type carelessKind struct{ testKind }

func (*carelessKind) Holds(AllocatedDevice) []ledger.Reservation { panic("holds") }

func (*carelessKind) Recover(_ context.Context, records []claimstate.Record, _ []types.UID) error {
	if len(records) > 1 {
		panic("recover")
	}
	return nil
}

func TestStartReportsPanicAsError(t *testing.T) {
	b := newBench(t, t.TempDir(), atomicfile.Writer{})
	b.mustPrepare(t, claimOf("u1", "d0"))
	b.ledger.Release("u1")
	b.config.Preparer = &carelessKind{}
	if err := b.recoverLocal(t.Context()); err != nil {
		t.Fatal(err)
	}
	if holders := b.ledger.Holders("pool/d0"); len(holders) != 1 {
		t.Errorf("the device is held by %v, want u1 by its name", holders)
	}
	b.config.Preparer = b.kind
	b.mustPrepare(t, claimOf("u2", "d1"))
	b.config.Preparer = &carelessKind{}
	if err := b.recoverLocal(t.Context()); err == nil || !strings.Contains(err.Error(), "compare claims with hardware") ||
		!strings.Contains(err.Error(), "mistake in the driver") {
		t.Errorf("got %v", err)
	}
}

// A claim may lose its allocation while the plugin reads it.
func TestPrepareReportsClaimWithoutAllocation(t *testing.T) {
	claim := claimOf("u1", "d0")
	claim.Status.Allocation = nil
	b := newBench(t, t.TempDir(), atomicfile.Writer{}, claim)
	results, err := b.PrepareResourceClaims(t.Context(), []*resourceapi.ResourceClaim{claim})
	if err != nil || results["u1"].Err == nil || !strings.Contains(results["u1"].Err.Error(), "not allocated") {
		t.Errorf("got %v, %v", results["u1"].Err, err)
	}
}
