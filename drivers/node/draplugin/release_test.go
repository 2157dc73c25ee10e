package draplugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"

	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/occupancy"
)

// pods are the cgroups of pods on a node, in files.
type pods struct {
	t    *testing.T
	root string
}

// podsOn gives a bench a cgroup tree of version 2.
func podsOn(t *testing.T, b *bench) pods {
	t.Helper()
	p := pods{t: t, root: filepath.Join(b.dir, "cgroup")}
	if err := os.MkdirAll(p.root, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(p.root, "cgroup.controllers"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	b.cgroups.Root = p.root
	t.Cleanup(func() { b.cancel(nil); b.wg.Wait() })
	return p
}

func (p pods) at(uid types.UID) string {
	return filepath.Join(p.root, "kubepods/burstable/pod"+string(uid))
}

// run starts a container of a pod; end ends it.
func (p pods) run(uid types.UID) {
	p.t.Helper()
	container := filepath.Join(p.at(uid), "c0ffee")
	if err := os.MkdirAll(container, 0o755); err != nil {
		p.t.Fatal(err)
	}
	p.write(filepath.Join(container, "cgroup.procs"), "1\n2\n3\n")
	p.write(filepath.Join(p.at(uid), occupancy.Events), "populated 1\n")
}

func (p pods) end(uid types.UID) {
	p.t.Helper()
	if err := os.MkdirAll(p.at(uid), 0o755); err != nil {
		p.t.Fatal(err)
	}
	p.write(filepath.Join(p.at(uid), occupancy.Events), "populated 0\n")
}

func (p pods) write(path, text string) {
	p.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		p.t.Fatal(err)
	}
}

// deleteClaim deletes a claim from the API, as follows a pod that is deleted by force.
func (b *bench) deleteClaim(t *testing.T, claim *resourceapi.ResourceClaim) {
	t.Helper()
	if err := b.client.ResourceV1().ResourceClaims(claim.Namespace).Delete(t.Context(), claim.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// askUnprepare calls unprepare as the kubelet does, and returns the claim's error.
func (b *bench) askUnprepare(t *testing.T, uid types.UID) error {
	t.Helper()
	results, err := b.UnprepareResourceClaims(t.Context(), []kubeletplugin.NamespacedObject{{UID: uid}})
	if err != nil {
		t.Fatal(err)
	}
	return results[uid]
}

// A tenant's pod was deleted by force and ignores SIGTERM. The API has forgotten it and its claim, and the scheduler gives the device to
// the next claim.
func TestPrepareWaitsForTheContainerWhenItsPodIsForceDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine, next := claimOf("u1", "d0"), claimOf("u2", "d0")
		b := newBench(t, t.TempDir(), atomicfile.Writer{}, mine, next)
		p := podsOn(t, b)
		p.run("p-u1")
		b.mustPrepare(t, mine)
		b.deleteClaim(t, mine)
		ctx, cancel := context.WithTimeout(t.Context(), 45*time.Second)
		defer cancel()
		results, err := b.PrepareResourceClaims(ctx, []*resourceapi.ResourceClaim{next})
		if err = errors.Join(err, results["u2"].Err); err == nil {
			t.Fatal("the next claim got the device while the first one's container runs")
		}
		for _, want := range []string{"container c0ffee (3 processes)", "pod default/pod-u1 (UID p-u1)", "42s after the release"} {
			if reasonOf(err) != "DeviceInUse" || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v does not say %q", reasonOf(err), err, want)
			}
		}
		if len(b.kind.unprepared) != 0 || !b.cdi.Has("u1") {
			t.Errorf("undone under the container: %v, spec kept %t", b.kind.unprepared, b.cdi.Has("u1"))
		}
		t.Logf("attacker sees: %v", err)
		done := make(chan time.Time, 1)
		go func() {
			b.mustPrepare(t, next)
			done <- time.Now()
		}()
		time.Sleep(20 * time.Second) // the test's clock
		select {
		case <-done:
			t.Fatal("the next claim got the device while the first one's container runs")
		default:
		}
		p.end("p-u1")
		ended := time.Now()
		if got := (<-done).Sub(ended); got > 2*time.Second {
			t.Errorf("the next claim was prepared %s after the container's end", got)
		}
		if len(b.kind.unprepared) != 1 || b.kind.unprepared[0].UID != "u1" {
			t.Errorf("unprepared %v, want u1", b.kind.unprepared)
		}
	})
}

// The kubelet's reconcile loop unprepares the claim of a pod that was deleted by force, before its containers have ended.
func TestUnprepareReturnsAnErrorWhileAContainerRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		claim := claimOf("u1", "d0")
		b := newBench(t, t.TempDir(), atomicfile.Writer{}, claim)
		p := podsOn(t, b)
		p.run("p-u1")
		b.mustPrepare(t, claim)
		err := b.askUnprepare(t, "u1")
		if err == nil || reasonOf(err) != "DeviceStillUsed" || !strings.Contains(err.Error(), "pod default/pod-u1 (UID p-u1)") {
			t.Errorf("unprepared under a container: %v", err)
		}
		if _, recorded := b.state.Get("u1"); !recorded || len(b.kind.unprepared) != 0 || !b.cdi.Has("u1") {
			t.Errorf("undone under a container: %v, record %t, spec %t", b.kind.unprepared, recorded, b.cdi.Has("u1"))
		}
		time.Sleep(11 * time.Second)
		synctest.Wait()
		seen := 0
		for len(b.events.Events) > 0 {
			if event := <-b.events.Events; strings.Contains(event, "DeviceStillUsed") && strings.Contains(event, "p-u1") {
				seen++
			}
		}
		if seen != 3 { // on the node, the claim and the pod
			t.Errorf("%d Events name the pod, want 3", seen)
		}
		p.end("p-u1")
		time.Sleep(time.Second)
		synctest.Wait()
		if _, recorded := b.state.Get("u1"); recorded || len(b.kind.unprepared) != 1 {
			t.Errorf("a second after the container's end: record %t, unprepared %v", recorded, b.kind.unprepared)
		}
		if err := b.askUnprepare(t, "u1"); err != nil {
			t.Errorf("the kubelet's next call: %v", err)
		}
	})
}

func TestUnprepareWaitsBrieflyForAContainerThatIsEnding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, t.TempDir(), atomicfile.Writer{})
		p := podsOn(t, b)
		p.run("p-u1")
		b.mustPrepare(t, claimOf("u1", "d0"))
		go func() {
			time.Sleep(time.Second)
			p.end("p-u1")
		}()
		if err := b.askUnprepare(t, "u1"); err != nil {
			t.Error(err)
		}
	})
}

// Two pods use one claim. The kubelet unprepares it once, when the second has ended; the first was deleted by force and still runs.
func TestUnprepareWaitsForEveryPodOfAClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		claim := claimOf("u1", "d0")
		b := newBench(t, t.TempDir(), atomicfile.Writer{})
		p := podsOn(t, b)
		p.run("p-u1")
		b.mustPrepare(t, claim)
		claim = claim.DeepCopy()
		claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: "two",
			UID: "p-two"})
		p.run("p-two")
		b.mustPrepare(t, claim)
		p.end("p-two")
		if err := b.askUnprepare(t, "u1"); err == nil || strings.Contains(err.Error(), "p-two") || !strings.Contains(err.Error(), "p-u1") {
			t.Errorf("with the first pod's container: %v", err)
		}
		p.end("p-u1")
		if err := b.askUnprepare(t, "u1"); err != nil {
			t.Error(err)
		}
	})
}

func TestReleasingContinuesAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, claim := t.TempDir(), claimOf("u1", "d0")
		b := newBench(t, dir, atomicfile.Writer{})
		p := podsOn(t, b)
		p.run("p-u1")
		b.mustPrepare(t, claim)
		again := newBench(t, dir, atomicfile.Writer{}) // the API has no such claim
		podsOn(t, again)
		again.recoverFromAPI(t.Context(), again.state.List())
		if again.state.Len() != 1 || len(again.kind.unprepared) != 0 || len(again.ledger.Holders("pool/d0")) != 1 {
			t.Fatalf("after a restart nothing is held for the container: unprepared %v", again.kind.unprepared)
		}
		p.end("p-u1")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if again.state.Len() != 0 || len(again.ledger.Holders("pool/d0")) != 0 {
			t.Error("the device is held although its last container has ended")
		}
	})
}

// A claim does not wait for a container that never existed: a node without a cgroup for each pod gives a claim's devices back for the
// kubelet's word, or a while after the claim is gone.
func TestReleaseFreesDeviceAfterPatienceWithoutCgroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, t.TempDir(), atomicfile.Writer{})
		defer func() { b.cancel(nil); b.wg.Wait() }()
		b.mustPrepare(t, claimOf("u1", "d0")) // never in the API
		ctx, cancel := context.WithTimeout(t.Context(), 45*time.Second)
		defer cancel()
		results, _ := b.PrepareResourceClaims(ctx, []*resourceapi.ResourceClaim{claimOf("u2", "d0")})
		if results["u2"].Err == nil {
			t.Error("absence from the API is taken for absence from the node")
		}
		began := time.Now()
		b.mustPrepare(t, claimOf("u2", "d0"))
		if waited := time.Since(began) + 42*time.Second; waited < occupancy.Patience || waited > occupancy.Patience+2*time.Second {
			t.Errorf("freed after %s", waited)
		}
	})
}

func TestReleaseFreesDeviceAtOnceWhenPodHasEnded(t *testing.T) {
	b := newBench(t, t.TempDir(), atomicfile.Writer{})
	p := podsOn(t, b)
	p.run("p-u1")
	b.mustPrepare(t, claimOf("u1", "d0")) // never in the API
	p.end("p-u1")
	b.mustPrepare(t, claimOf("u2", "d0"))
	if len(b.kind.unprepared) != 1 || b.kind.unprepared[0].UID != "u1" {
		t.Errorf("unprepared %v, want u1", b.kind.unprepared)
	}
}

func TestReleaseFreesDeviceAfterReboot(t *testing.T) {
	dir := t.TempDir()
	writeBootID(t, dir, "boot-1")
	b := newBench(t, dir, atomicfile.Writer{})
	podsOn(t, b).run("p-u1")
	b.mustPrepare(t, claimOf("u1", "d0"))
	writeBootID(t, dir, "boot-2")
	again := newBench(t, dir, atomicfile.Writer{})
	podsOn(t, again).run("p-u1") // a cgroup of that name is of another boot
	again.recoverFromAPI(t.Context(), again.state.List())
	if again.state.Len() != 0 {
		t.Error("a claim of another boot is held")
	}
}

func TestReleasingDevicesAreTaintedAfterAWhileAndNoLongerWhenFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, t.TempDir(), atomicfile.Writer{})
		p := podsOn(t, b)
		sent := make(chan resourceslice.DriverResources, 10)
		b.published.send = func(_ context.Context, r resourceslice.DriverResources) error { sent <- b.withReleasing(r); return nil }
		shared := resourceapi.Device{Name: "d0", AllowMultipleAllocations: ptr.To(true)}
		if err := b.published.publish(t.Context(), resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{
			"pool": {Slices: []resourceslice.Slice{{Devices: []resourceapi.Device{shared, {Name: "d1"}}}}}}}); err != nil {
			t.Fatal(err)
		}
		p.run("p-u1")
		b.mustPrepare(t, claimOf("u1", "d0"))
		if err := b.askUnprepare(t, "u1"); err == nil {
			t.Fatal("unprepared")
		}
		taints := func() [2]int {
			synctest.Wait()
			var last resourceslice.DriverResources
			for len(sent) > 0 {
				last = <-sent
			}
			devices := last.Pools["pool"].Slices[0].Devices
			return [2]int{len(devices[0].Taints), len(devices[1].Taints)}
		}
		time.Sleep(7 * time.Second)
		if got := taints(); got != [2]int{} {
			t.Errorf("taints %v after nine seconds", got)
		}
		time.Sleep(4 * time.Second)
		if got := taints(); got != [2]int{1, 0} {
			t.Errorf("taints %v, want one on d0", got)
		}
		p.end("p-u1")
		time.Sleep(time.Second)
		if got := taints(); got != [2]int{} {
			t.Errorf("taints %v after the release", got)
		}
	})
}

// A server and, one after the other, jobs share a claim for months: it is never unprepared in between.
func TestRecordOfAClaimForgetsPodsThatHaveEnded(t *testing.T) {
	claim := claimOf("u1", "d0")
	b := newBench(t, t.TempDir(), atomicfile.Writer{}, claim)
	p := podsOn(t, b)
	reserve := func(uids ...types.UID) {
		t.Helper()
		claim = claim.DeepCopy()
		claim.Status.ReservedFor = nil
		for _, uid := range uids {
			pod := resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: "pod-" + string(uid), UID: uid}
			claim.Status.ReservedFor = append(claim.Status.ReservedFor, pod)
		}
		b.mustPrepare(t, claim)
	}
	p.run("server")
	reserve("server")
	p.run("forced") // deleted by force, and still there
	reserve("server", "forced")
	for i := range 20 {
		job := types.UID(fmt.Sprint("job-", i))
		p.run(job)
		reserve("server", job)
		if i%2 == 0 {
			p.end(job)
		} else if err := os.RemoveAll(p.at(job)); err != nil {
			t.Fatal(err)
		}
	}
	record, _ := b.state.Get("u1")
	var kept []string
	for _, pod := range record.Pods {
		kept = append(kept, string(pod.UID))
	}
	if got := strings.Join(kept, " "); got != "server forced job-19" {
		t.Errorf("the record has the pods %s", got)
	}
}

// A node was renamed: the kubelet of the new name does not know the pods of the old one, whose containers have their grace period.
func TestPrepareWaitsForContainersOfTheNodesFormerName(t *testing.T) {
	before, next := claimOf("u1", "d0"), claimOf("u2", "d0")
	next.Status.Allocation.Devices.Results[0].Pool = "renamed"
	dir := t.TempDir()
	newBench(t, dir, atomicfile.Writer{}, before, next).mustPrepare(t, before)
	b := newBenchOf(t, dir, "renamed", atomicfile.Writer{}, before, next)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second) // of which the answer has 3
	defer cancel()
	results, err := b.PrepareResourceClaims(ctx, []*resourceapi.ResourceClaim{next})
	if err = errors.Join(err, results["u2"].Err); reasonOf(err) != "DeviceInUse" {
		t.Errorf("got %v, want that the device is held by u1", err)
	}
}
