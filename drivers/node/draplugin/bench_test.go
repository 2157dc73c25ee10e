package draplugin

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/ledger"
	"gpufabric.io/drivers/node/metrics"
	"gpufabric.io/drivers/node/options"
)

// BenchmarkPrepareAndUnprepare measures the plugin's own part of a claim, every fsync included: it writes a record and a CDI spec,
// and removes both.
func BenchmarkPrepareAndUnprepare(b *testing.B) {
	dir := b.TempDir()
	config := Config{
		Driver: driver,
		Node: options.Node{
			NodeName: "node-a", CDIRoot: filepath.Join(dir, "cdi"), StateDir: filepath.Join(dir, "state"),
			ProcDevices: filepath.Join(dir, "proc/devices"), KubeletRoot: filepath.Join(dir, "kubelet"),
		},
		Client: fake.NewClientset(), Preparer: &testKind{prepare: inject}, Metrics: metrics.New(driver),
		Recorder: record.NewFakeRecorder(1), Writer: atomicfile.Writer{},
	}
	p := &Plugin{config: config, report: newReporter(config), ledger: &ledger.Ledger{}}
	p.ctx, p.cancel = context.WithCancelCause(b.Context())
	if err := p.open(); err != nil {
		b.Fatal(err)
	}
	i := 0
	for b.Loop() {
		i++
		claim := claimOf(fmt.Sprintf("u%d", i), "d0")
		results, err := p.PrepareResourceClaims(b.Context(), []*resourceapi.ResourceClaim{claim})
		if err != nil || results[claim.UID].Err != nil {
			b.Fatal(err, results[claim.UID].Err)
		}
		failed, err := p.UnprepareResourceClaims(b.Context(), []kubeletplugin.NamespacedObject{{UID: claim.UID}})
		if err != nil || failed[claim.UID] != nil {
			b.Fatal(err, failed[claim.UID])
		}
	}
}
