package draplugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/claimstate"
	"gpufabric.io/drivers/node/ledger"
	"gpufabric.io/drivers/node/metrics"
	"gpufabric.io/drivers/node/options"
)

const driver = "test.example.com"

// testKind is a device kind that does what a test sets.
type testKind struct {
	prepare    func(ctx context.Context, claim *Claim, progress Progress) (*Prepared, error)
	unprepare  func(record claimstate.Record) // nil: goes well
	unprepared []claimstate.Record
}

func (k *testKind) Prepare(ctx context.Context, claim *Claim, progress Progress) (*Prepared, error) {
	return k.prepare(ctx, claim, progress)
}

func (k *testKind) Unprepare(_ context.Context, record claimstate.Record) error {
	if k.unprepare != nil {
		k.unprepare(record)
	}
	k.unprepared = append(k.unprepared, record)
	return nil
}

// inject is a preparation that gives each device an environment variable.
func inject(_ context.Context, claim *Claim, _ Progress) (*Prepared, error) {
	prepared := &Prepared{Data: map[string]string{"made": "yes"}}
	for _, device := range claim.Devices {
		prepared.Edits = append(prepared.Edits, specs.ContainerEdits{Env: []string{"DEVICE=" + device.Device}})
	}
	return prepared, nil
}

func claimOf(uid, device string) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "claim-" + uid, UID: types.UID(uid)},
		Status: resourceapi.ResourceClaimStatus{
			Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
				Results: []resourceapi.DeviceRequestAllocationResult{{Request: "r", Driver: driver, Pool: "pool", Device: device}},
			}},
			ReservedFor: []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "pod-" + uid, UID: "p-" + types.UID(uid)}},
		},
	}
}

type bench struct {
	*Plugin
	kind   *testKind
	events *record.FakeRecorder
	client *fake.Clientset
	dir    string
}

// newBench makes a plugin with its directories but without sockets, as Start does up to the registration.
func newBench(t *testing.T, dir string, writer atomicfile.Writer, objects ...runtime.Object) *bench {
	t.Helper()
	return newBenchOf(t, dir, "pool", writer, objects...)
}

// newBenchOf is newBench for a node with that pool.
func newBenchOf(t *testing.T, dir, pool string, writer atomicfile.Writer, objects ...runtime.Object) *bench {
	t.Helper()
	b := &bench{kind: &testKind{prepare: inject}, events: record.NewFakeRecorder(100), client: fake.NewClientset(objects...), dir: dir}
	config := Config{
		Driver: driver, Pool: pool,
		Node: options.Node{
			NodeName: "node-a", CDIRoot: filepath.Join(dir, "cdi"), StateDir: filepath.Join(dir, "state"),
			ProcDevices: filepath.Join(dir, "proc/devices"), KubeletRoot: filepath.Join(dir, "kubelet"),
		},
		Client: b.client, Preparer: b.kind, Metrics: metrics.New(driver), Recorder: b.events, Writer: writer,
	}
	b.Plugin = &Plugin{config: config, bootID: config.Node.BootID(), report: newReporter(config), ledger: &ledger.Ledger{},
		capabilities: newCapabilities(config)}
	b.ctx, b.cancel = context.WithCancelCause(t.Context())
	if err := b.open(); err != nil {
		t.Fatal(err)
	}
	if err := b.recoverLocal(b.ctx); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bench) mustPrepare(t *testing.T, claim *resourceapi.ResourceClaim) []kubeletplugin.Device {
	t.Helper()
	results, err := b.PrepareResourceClaims(t.Context(), []*resourceapi.ResourceClaim{claim})
	if err != nil || results[claim.UID].Err != nil {
		t.Fatalf("prepare: %v, %v", err, results[claim.UID].Err)
	}
	return results[claim.UID].Devices
}

func TestPrepareWritesRecordAndSpec(t *testing.T) {
	b := newBench(t, t.TempDir(), atomicfile.Writer{})
	devices := b.mustPrepare(t, claimOf("u1", "d0"))
	want := []kubeletplugin.Device{{Requests: []string{"r"}, PoolName: "pool", DeviceName: "d0",
		CDIDeviceIDs: []string{"k8s.test.example.com/claim=u1-d0"}}}
	if diff := cmp.Diff(want, devices); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
	spec, err := os.ReadFile(b.cdi.Path("u1"))
	if err != nil || !strings.Contains(string(spec), `"DEVICE=d0"`) {
		t.Errorf("CDI spec %s, %v", spec, err)
	}
	if _, err := b.UnprepareResourceClaims(t.Context(), []kubeletplugin.NamespacedObject{{UID: "u1"}}); err != nil {
		t.Fatal(err)
	}
	if b.cdi.Has("u1") || b.state.Len() != 0 || len(b.kind.unprepared) != 1 {
		t.Errorf("left after unprepare: spec %v, records %d, kind unprepared %d", b.cdi.Has("u1"), b.state.Len(), len(b.kind.unprepared))
	}
	if actions := b.client.Actions(); len(actions) != 0 {
		t.Errorf("a claim that goes well costs no API call, made %v", actions)
	}
}

func TestPrepareRunsOncePerClaim(t *testing.T) {
	b := newBench(t, t.TempDir(), atomicfile.Writer{})
	calls := 0
	b.kind.prepare = func(ctx context.Context, claim *Claim, progress Progress) (*Prepared, error) {
		calls++
		return inject(ctx, claim, progress)
	}
	first := b.mustPrepare(t, claimOf("u1", "d0"))
	second := b.mustPrepare(t, claimOf("u1", "d0"))
	if calls != 1 || !cmp.Equal(first, second) {
		t.Errorf("prepared %d times; answers differ by %s", calls, cmp.Diff(first, second))
	}
}

func TestPrepareReportsRemarkOnce(t *testing.T) {
	b := newBench(t, t.TempDir(), atomicfile.Writer{})
	b.kind.prepare = func(ctx context.Context, claim *Claim, progress Progress) (*Prepared, error) {
		prepared, err := inject(ctx, claim, progress)
		prepared.Warnings = []Remark{{Reason: "PaintIsWet", Message: "do not touch"}}
		prepared.Notes = []Remark{{Reason: "PaintIsRed", Message: "as wanted"}}
		return prepared, err
	}
	claim := claimOf("u1", "d0")
	claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "p1"}}
	for range 2 {
		b.mustPrepare(t, claim)
	}
	var got []string
	for range len(b.events.Events) {
		got = append(got, <-b.events.Events)
	}
	warning, note := "Warning PaintIsWet do not touch", "Normal PaintIsRed as wanted"
	if want := []string{warning, warning, note, note}; !slices.Equal(got, want) {
		t.Errorf("Events %q, want %q", got, want)
	}
}

// No Event on a tenant's claim and pods, and no error that the kubelet shows on them, may name another tenant's claims.
func TestWaitDoesNotNameClaimsOfOtherNamespaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		theirs, mine := claimOf("u1", "d0"), claimOf("u2", "d0")
		theirs.Namespace, theirs.Name = "secret", "payroll"
		b := newBench(t, t.TempDir(), atomicfile.Writer{}, theirs, mine)
		b.mustPrepare(t, theirs)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		results, err := b.PrepareResourceClaims(ctx, []*resourceapi.ResourceClaim{mine})
		if err != nil || results["u2"].Err == nil {
			t.Fatalf("a device that is held was given: %v, %v", err, results)
		}
		seen := []string{results["u2"].Err.Error()}
		for len(b.events.Events) > 0 {
			seen = append(seen, <-b.events.Events)
		}
		for _, text := range seen {
			if strings.Contains(text, "secret") || strings.Contains(text, "payroll") || strings.Contains(text, "u1") {
				t.Errorf("%q names another tenant's claim", text)
			}
			if !strings.Contains(text, "a claim of another namespace") {
				t.Errorf("%q does not say that it is held", text)
			}
			t.Logf("attacker sees: %s", text)
		}
	})
}

func TestPrepareWaitsForLateUnprepareOfLastClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		last, next := claimOf("u1", "d0"), claimOf("u2", "d0")
		b := newBench(t, t.TempDir(), atomicfile.Writer{}, last)
		b.mustPrepare(t, last)
		done := make(chan error, 1)
		go func() {
			results, _ := b.PrepareResourceClaims(t.Context(), []*resourceapi.ResourceClaim{next})
			done <- results["u2"].Err
		}()
		time.Sleep(5 * time.Second) // the test's clock, not the machine's
		synctest.Wait()
		if event := <-b.events.Events; !strings.Contains(event, "DeviceInUse") || !strings.Contains(event, "claim default/claim-u1") {
			t.Errorf("event %q does not name the holder", event)
		}
		if _, err := b.UnprepareResourceClaims(t.Context(), []kubeletplugin.NamespacedObject{{UID: "u1"}}); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Errorf("the next claim failed: %v", err)
		}
	})
}

// A wait that outlasts one of the kubelet's calls writes nothing to the claim, unless it goes on.
func TestPrepareReportsWaitOnlyWhenItLasts(t *testing.T) {
	for name, c := range map[string]struct {
		calls      int // of 45 s, with 75 s between them, as the kubelet does
		conditions int
		events     int
	}{
		"one call":            {calls: 1, conditions: 0, events: 2},
		"two calls":           {calls: 2, conditions: 0, events: 4},
		"eight minutes' wait": {calls: 4, conditions: 1, events: 10},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				claim := claimOf("u1", "d0")
				b := newBench(t, t.TempDir(), atomicfile.Writer{}, claim)
				percent := 0
				b.kind.prepare = func(ctx context.Context, _ *Claim, progress Progress) (*Prepared, error) {
					for range 3 { // other messages for the same reason, at once
						percent++
						progress.Waiting("WaitingForPaint", fmt.Sprintf("the paint is %d %% dry", percent))
					}
					<-ctx.Done()
					return nil, Refuse("WaitingForPaint", "the paint is %d %% dry", percent)
				}
				for range c.calls {
					ctx, cancel := context.WithTimeout(t.Context(), 45*time.Second)
					results, _ := b.PrepareResourceClaims(ctx, []*resourceapi.ResourceClaim{claim})
					cancel()
					if results["u1"].Err == nil {
						t.Fatal("no error")
					}
					time.Sleep(75 * time.Second) // the test's clock, not the machine's
				}
				patches := 0
				for _, action := range b.client.Actions() {
					if action.GetVerb() == "patch" {
						patches++
					}
				}
				if patches != c.conditions || len(b.events.Events) != c.events {
					t.Errorf("%d patches and %d events, want %d and %d", patches, len(b.events.Events), c.conditions, c.events)
				}
			})
		})
	}
}

func TestPrepareReportsFailureUntilItSucceeds(t *testing.T) {
	claim := claimOf("u1", "d0")
	b := newBench(t, t.TempDir(), atomicfile.Writer{}, claim)
	b.kind.prepare = func(context.Context, *Claim, Progress) (*Prepared, error) {
		return nil, Refuse("WrongColour", "colour is %q, allowed are red and green", "blue")
	}
	results, _ := b.PrepareResourceClaims(t.Context(), []*resourceapi.ResourceClaim{claim})
	if results["u1"].Err == nil {
		t.Fatal("no error")
	}
	for range 2 { // one for the claim, one for the pod
		if event := <-b.events.Events; !strings.Contains(event, corev1.EventTypeWarning) || !strings.Contains(event, "WrongColour") {
			t.Errorf("event %q", event)
		}
	}
	stored, err := b.client.ResourceV1().ResourceClaims("default").Get(t.Context(), claim.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if c := stored.Status.Devices[0].Conditions[0]; c.Status != metav1.ConditionFalse || c.Reason != "WrongColour" ||
		!strings.Contains(c.Message, "red and green") {
		t.Errorf("condition %+v", c)
	}
	b.kind.prepare = inject
	b.mustPrepare(t, stored)
	if stored, err = b.client.ResourceV1().ResourceClaims("default").Get(t.Context(), claim.Name, metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	if c := stored.Status.Devices[0].Conditions[0]; c.Status != metav1.ConditionTrue {
		t.Errorf("condition after success %+v", c)
	}
}

func TestReportKeepsOtherDriversConditions(t *testing.T) {
	claim := claimOf("u1", "d0")
	claim.Status.Devices = []resourceapi.AllocatedDeviceStatus{{Driver: "other.example.com", Pool: "p", Device: "d",
		Data: &runtime.RawExtension{Raw: []byte(`{"b":1,"a":2}`)}}}
	b := newBench(t, t.TempDir(), atomicfile.Writer{}, claim)
	b.kind.prepare = func(context.Context, *Claim, Progress) (*Prepared, error) { return nil, errors.New("no") }
	_, _ = b.PrepareResourceClaims(t.Context(), []*resourceapi.ResourceClaim{claim})
	for _, action := range b.client.Actions() {
		patch, ok := action.(clienttesting.PatchAction)
		if !ok {
			continue
		}
		if text := string(patch.GetPatch()); patch.GetPatchType() != types.MergePatchType || !strings.Contains(text, `{"b":1,"a":2}`) ||
			strings.Contains(text, "allocation") || !strings.Contains(text, driver) {
			t.Errorf("%s: %s", patch.GetPatchType(), text)
		}
		return
	}
	t.Error("nothing was patched")
}

// A claim can be given other devices, of another node, while its failure here is reported.
func TestReportDoesNotWriteAConditionWhenTheClaimWasAllocatedAgain(t *testing.T) {
	claim := claimOf("u1", "d0")
	b := newBench(t, t.TempDir(), atomicfile.Writer{}, claim)
	b.kind.prepare = func(context.Context, *Claim, Progress) (*Prepared, error) { return nil, errors.New("no") }
	patches := 0
	b.client.PrependReactor("patch", "resourceclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
		patches++
		again := claim.DeepCopy()
		again.Status.Allocation.Devices.Results[0].Pool = "another-node"
		if err := b.client.Tracker().Update(resourceapi.SchemeGroupVersion.WithResource("resourceclaims"), again, again.Namespace); err != nil {
			t.Error(err)
		}
		return true, nil, apierrors.NewConflict(resourceapi.Resource("resourceclaims"), claim.Name, errors.New("it was allocated again"))
	})
	_, _ = b.PrepareResourceClaims(t.Context(), []*resourceapi.ResourceClaim{claim})
	if patches != 1 {
		t.Errorf("the condition was written %d times", patches)
	}
}

func TestPrepareFailsOnlyItsClaimOnPanic(t *testing.T) {
	bad, good := claimOf("u1", "d0"), claimOf("u2", "d1")
	b := newBench(t, t.TempDir(), atomicfile.Writer{}, bad, good)
	b.kind.prepare = func(ctx context.Context, claim *Claim, progress Progress) (*Prepared, error) {
		if claim.UID == "u1" {
			var none *Prepared
			return &Prepared{Edits: none.Edits}, nil
		}
		return inject(ctx, claim, progress)
	}
	results, err := b.PrepareResourceClaims(t.Context(), []*resourceapi.ResourceClaim{bad, good})
	if err != nil {
		t.Fatal(err)
	}
	if results["u1"].Err == nil || results["u2"].Err != nil {
		t.Errorf("bad: %v, good: %v", results["u1"].Err, results["u2"].Err)
	}
}

func TestPrepareRepeatsAfterABootOrALostSpec(t *testing.T) {
	for name, disturb := range map[string]func(t *testing.T, b *bench){
		"another boot": func(t *testing.T, b *bench) { writeBootID(t, b.dir, "boot-2") },
		"a lost spec": func(t *testing.T, b *bench) {
			if err := os.Remove(b.cdi.Path("u1")); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, claim := t.TempDir(), claimOf("u1", "d0")
			writeBootID(t, dir, "boot-1")
			b := newBench(t, dir, atomicfile.Writer{}, claim)
			b.mustPrepare(t, claim)
			disturb(t, b)
			again := newBench(t, dir, atomicfile.Writer{}, claim)
			prepared := 0
			again.kind.prepare = func(ctx context.Context, claim *Claim, progress Progress) (*Prepared, error) {
				prepared++
				return inject(ctx, claim, progress)
			}
			again.recoverFromAPI(t.Context(), again.state.List())
			record, ok := again.state.Get("u1")
			if !ok || prepared != 1 || record.BootID != again.bootID || !again.cdi.Has("u1") {
				t.Errorf("prepared %d times after the start, want once: %+v", prepared, record)
			}
			again.recoverFromAPI(t.Context(), again.state.List())
			if prepared != 1 {
				t.Errorf("prepared %d times, want it left alone once it is true", prepared)
			}
		})
	}
}

func TestRecoveryPreparesAgainWhenBootIsUnknown(t *testing.T) {
	for name, boot := range map[string]string{"known then, unknown now": "b1", "unknown then and now": ""} {
		t.Run(name, func(t *testing.T) {
			p := &Plugin{}
			record := claimstate.Record{UID: "u1", Phase: claimstate.Prepared, BootID: boot}
			if p.current(record) {
				t.Error("a boot that cannot be read is taken for the one in which the claim was prepared")
			}
		})
	}
}

func writeBootID(t *testing.T, dir, id string) {
	t.Helper()
	path := filepath.Join(dir, "proc/sys/kernel/random/boot_id")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(id+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

// After a crash at each step of each file that a prepare writes, the plugin must start and the claim must prepare.
func TestPrepareRecoversAfterCrashAtAnyStep(t *testing.T) {
	for _, step := range atomicfile.Steps() {
		for _, extension := range []string{".claim", ".json"} {
			t.Run(string(step)+" "+extension, func(t *testing.T) {
				dir, claim := t.TempDir(), claimOf("u1", "d0")
				crashed := false
				b := newBench(t, dir, atomicfile.Writer{Before: func(s atomicfile.Step, path string) error {
					if s == step && filepath.Ext(path) == extension {
						crashed = true
						return atomicfile.Crash()
					}
					return nil
				}}, claim)
				results, _ := b.PrepareResourceClaims(t.Context(), []*resourceapi.ResourceClaim{claim})
				if !crashed || results["u1"].Err == nil {
					t.Fatalf("crashed %v, result %v", crashed, results["u1"].Err)
				}
				again := newBench(t, dir, atomicfile.Writer{}, claim)
				again.recoverFromAPI(t.Context(), again.state.List())
				again.mustPrepare(t, claim)
				if _, err := again.UnprepareResourceClaims(t.Context(), []kubeletplugin.NamespacedObject{{UID: "u1"}}); err != nil {
					t.Fatal(err)
				}
				for _, sub := range []string{"cdi", "state/claims"} {
					if left, _ := os.ReadDir(filepath.Join(dir, sub)); len(left) != 0 {
						t.Errorf("left in %s: %v", sub, left)
					}
				}
			})
		}
	}
}

func TestUnprepareUndoesIntendedEffectAfterCrash(t *testing.T) {
	dir, claim := t.TempDir(), claimOf("u1", "d0")
	b := newBench(t, dir, atomicfile.Writer{}, claim)
	b.kind.prepare = func(_ context.Context, _ *Claim, progress Progress) (*Prepared, error) {
		if err := progress.Intend(map[string]string{"effect": "half"}); err != nil {
			return nil, err
		}
		return nil, errors.New("killed here")
	}
	_, _ = b.PrepareResourceClaims(t.Context(), []*resourceapi.ResourceClaim{claim})
	again := newBench(t, dir, atomicfile.Writer{})
	podsOn(t, again).end("p-u1")
	again.recoverFromAPI(t.Context(), again.state.List()) // the claim was deleted in between
	if len(again.kind.unprepared) != 1 || string(again.kind.unprepared[0].Data) != `{"effect":"half"}` {
		t.Errorf("unprepared %+v", again.kind.unprepared)
	}
}
