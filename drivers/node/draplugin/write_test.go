package draplugin

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/claimstate"
)

// The record and the spec are written concurrently, so a crash may leave only one of them.
func TestRecoveryRepairsAMissingRecordOrSpec(t *testing.T) {
	for name, lost := range map[string]func(*bench) string{
		"a record without its spec": func(b *bench) string { return b.cdi.Path("u1") },
		"a spec without its record": func(b *bench) string { return filepath.Join(b.dir, "state/claims/u1.claim") },
	} {
		t.Run(name, func(t *testing.T) {
			dir, claim := t.TempDir(), claimOf("u1", "d0")
			b := newBench(t, dir, atomicfile.Writer{}, claim)
			b.mustPrepare(t, claim)
			if err := os.Remove(lost(b)); err != nil {
				t.Fatal(err)
			}
			again := newBench(t, dir, atomicfile.Writer{}, claim)
			if _, recorded := again.state.Get("u1"); !recorded && again.cdi.Has("u1") {
				t.Error("a spec that belongs to no record is left")
			}
			again.recoverFromAPI(t.Context(), again.state.List())
			again.mustPrepare(t, claim)
			if record, ok := again.state.Get("u1"); !ok || !again.current(record) {
				t.Errorf("the claim is not prepared: %+v", record)
			}
		})
	}
}

// A pod whose claim's record cannot be read runs on, and its containers may restart.
func TestRecoveryKeepsSpecWhenRecordIsSetAside(t *testing.T) {
	dir, claim := t.TempDir(), claimOf("u1", "d0")
	b := newBench(t, dir, atomicfile.Writer{}, claim)
	b.mustPrepare(t, claim)
	if err := os.WriteFile(filepath.Join(dir, "state/claims/u1.claim"), []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		b = newBench(t, dir, atomicfile.Writer{}, claim)
		if !b.cdi.Has("u1") {
			t.Fatal("the claim's CDI spec is gone")
		}
	}
	results, err := b.UnprepareResourceClaims(t.Context(),
		[]kubeletplugin.NamespacedObject{{NamespacedName: types.NamespacedName{Namespace: "default", Name: "claim-u1"}, UID: "u1"}})
	if err != nil || results["u1"] != nil {
		t.Fatalf("unprepare: %v, %v", err, results)
	}
	if b.cdi.Has("u1") {
		t.Error("the claim's CDI spec is left")
	}
}

func TestPrepareRemovesSpecWhenRecordFails(t *testing.T) {
	claim := claimOf("u1", "d0")
	b := newBench(t, t.TempDir(), atomicfile.Writer{Before: func(s atomicfile.Step, path string) error {
		if s == atomicfile.StepSync && filepath.Ext(path) == ".claim" {
			return errors.New("the disk is full")
		}
		return nil
	}}, claim)
	results, _ := b.PrepareResourceClaims(t.Context(), []*resourceapi.ResourceClaim{claim})
	if err := results["u1"].Err; err == nil || !strings.Contains(err.Error(), "the disk is full") {
		t.Errorf("error %v", err)
	}
	if b.cdi.Has("u1") || b.state.Len() != 0 {
		t.Errorf("left: spec %t, records %d", b.cdi.Has("u1"), b.state.Len())
	}
	if len(b.kind.unprepared) != 1 || b.kind.unprepared[0].UID != "u1" {
		t.Errorf("the kind, which takes the claim for prepared, was asked to unprepare %v", b.kind.unprepared)
	}
}

func TestStopWaitsForTheKubeletsCalls(t *testing.T) {
	b := newBench(t, t.TempDir(), atomicfile.Writer{})
	begun, end := make(chan struct{}), make(chan struct{})
	b.kind.prepare = func(ctx context.Context, claim *Claim, progress Progress) (*Prepared, error) {
		close(begun)
		<-end
		return inject(ctx, claim, progress)
	}
	answered := make(chan error, 1)
	go func() {
		results, err := b.PrepareResourceClaims(context.Background(), []*resourceapi.ResourceClaim{claimOf("u1", "d0")})
		answered <- errors.Join(err, results["u1"].Err)
	}()
	<-begun
	stopped := make(chan struct{})
	go func() {
		b.Stop()
		close(stopped)
	}()
	select {
	case <-stopped:
		t.Fatal("stopped while a claim was being prepared")
	case <-time.After(50 * time.Millisecond):
	}
	close(end)
	<-stopped
	if err := <-answered; err != nil {
		t.Errorf("the call that was under way: %v", err)
	}
	if _, err := b.PrepareResourceClaims(t.Context(), []*resourceapi.ResourceClaim{claimOf("u2", "d1")}); !errors.Is(err, errStopped) {
		t.Errorf("a call after the end: %v", err)
	}
	if _, err := b.UnprepareResourceClaims(t.Context(), []kubeletplugin.NamespacedObject{{UID: "u1"}}); !errors.Is(err, errStopped) {
		t.Errorf("a call after the end: %v", err)
	}
}

// Recovery and reports read the state's records while a claim is being prepared.
func TestStateCopiesRecordsForReaders(t *testing.T) {
	b := newBench(t, t.TempDir(), atomicfile.Writer{})
	var intended claimstate.Record
	b.kind.prepare = func(ctx context.Context, claim *Claim, progress Progress) (*Prepared, error) {
		if err := progress.Intend(map[string]string{"effect": "half"}); err != nil {
			return nil, err
		}
		intended, _ = b.state.Get(claim.UID)
		return inject(ctx, claim, progress)
	}
	b.mustPrepare(t, claimOf("u1", "d0"))
	kept, _ := b.state.Get("u1")
	if len(intended.Devices) != 1 || intended.Devices[0].CDIDeviceIDs != nil || len(kept.Devices[0].CDIDeviceIDs) != 1 {
		t.Errorf("the record of the intent reads %+v by now, the one kept %+v", intended.Devices, kept.Devices)
	}
}
