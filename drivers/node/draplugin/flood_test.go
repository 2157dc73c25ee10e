package draplugin

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/record"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/node/atomicfile"
)

// series counts the series in a plugin's registry. It fails the test where a label holds a tenant's text.
func (b *bench) series(t *testing.T, word string) int {
	t.Helper()
	families, err := b.config.Metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, family := range families {
		for _, series := range family.GetMetric() {
			count++
			for _, label := range series.GetLabel() {
				if strings.Contains(label.GetValue(), word) {
					t.Errorf("%s has the label %s=%q, which a tenant wrote", family.GetName(), label.GetName(), label.GetValue())
				}
			}
		}
	}
	return count
}

// flood lets the kubelet prepare claims of a namespace. The claims wait, are refused with messages of their own, and are unprepared
// with their pods.
func (b *bench) flood(t *testing.T, from, to int) {
	t.Helper()
	ctx := klog.NewContext(t.Context(), logr.Discard())
	const atOnce = 100 // a node's pods
	for ; from < to; from += atOnce {
		var claims []*resourceapi.ResourceClaim
		var names []kubeletplugin.NamespacedObject
		for i := from; i < from+atOnce; i++ {
			claim := claimOf(fmt.Sprintf("uid-%d", i), fmt.Sprintf("d%d", i%atOnce))
			claim.Namespace = "attacker"
			claim.Name = strings.Repeat("a", validation.DNS1123SubdomainMaxLength-6) + fmt.Sprintf("%06d", i)
			claims = append(claims, claim)
			names = append(names, kubeletplugin.NamespacedObject{UID: claim.UID})
		}
		results, err := b.PrepareResourceClaims(ctx, claims)
		if err != nil {
			t.Fatal(err)
		}
		for uid, result := range results {
			if result.Err == nil {
				t.Fatalf("claim %s is prepared", uid)
			}
		}
		if gone, err := b.UnprepareResourceClaims(ctx, names); err != nil || len(gone) != atOnce {
			t.Fatalf("unprepare: %v, %v", gone, err)
		}
	}
}

func TestPluginReleasesMemoryAfterTenThousandWrongClaims(t *testing.T) {
	b := newBench(t, t.TempDir(), atomicfile.Writer{})
	b.report.config.Recorder = &record.FakeRecorder{} // the recorder bounds Events (package host)
	b.kind.prepare = func(_ context.Context, claim *Claim, progress Progress) (*Prepared, error) {
		progress.Waiting("WaitingForDevice", "attacker's words about "+claim.Name)
		return nil, Refuse("InvalidConfig", "attacker's words about %s\x1b[2J\nanother line", claim.Name)
	}
	b.flood(t, 0, 100)
	first := b.series(t, "attacker")
	b.flood(t, 100, 10_000)
	if after := b.series(t, "aaaa"); after != first {
		t.Errorf("100 claims left %d series, and 10,000 left %d", first, after)
	}
	t.Logf("attacker sees: %d series, as before", first)
	if waits, records := len(b.report.waits.claim), b.state.Len(); waits != 0 || records != 0 {
		t.Errorf("%d waits and %d records are left", waits, records)
	}
	for i := range 100 {
		if holders := b.ledger.Holders(fmt.Sprintf("pool/d%d", i)); len(holders) != 0 {
			t.Errorf("device %d is held by %v", i, holders)
		}
	}
	// And the next tenant's claim is prepared.
	b.kind.prepare = inject
	honest := claimOf("honest", "d0")
	if results, err := b.PrepareResourceClaims(t.Context(), []*resourceapi.ResourceClaim{honest}); err != nil ||
		results[types.UID("honest")].Err != nil {
		t.Errorf("%v, %v", results, err)
	}
}
