package plugin

import (
	"context"
	"io"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	clienttesting "k8s.io/client-go/testing"

	"gpufabric.io/drivers/gpu/gputest"
)

// half is a claim for half of a GPU's cores.
func half(uid, gpu string) device {
	return device{name: gpu, share: uid, capacity: map[string]string{"memory": "10Gi", "cores": "50"}}
}

func fullAfter(after time.Duration) func(*Options) {
	return func(o *Options) { o.FullAfter = after }
}

// sliceChanges counts the writes of ResourceSlices so far. An update that repeats the one before does not count: the slice controller sends
// one when its cache lags behind its own write, and an API server stores nothing for it.
func (b *bench) sliceChanges() int {
	b.Helper()
	n := 0
	written := map[string]resourceapi.ResourceSliceSpec{}
	for _, action := range b.client.Actions() {
		write, ok := action.(clienttesting.CreateAction) // an update has its methods too
		if !ok || action.GetResource().Resource != "resourceslices" {
			continue
		}
		s, ok := write.GetObject().(*resourceapi.ResourceSlice)
		if !ok {
			b.Fatalf("a write of a slice has the object %T", write.GetObject())
		}
		if !equality.Semantic.DeepEqual(written[s.Name], s.Spec) {
			n++
		}
		if action.GetVerb() == "update" {
			written[s.Name] = s.Spec
		}
	}
	return n
}

func TestSharedGPUIsWithdrawnWhileItIsFull(t *testing.T) {
	b := newBench(t, gputest.New(t, 2), withForms(`{"default": {"form": "shareable"}}`), fullAfter(200*time.Millisecond))
	b.awaitPublished("gpu-0 gpu-1")
	before := b.sliceChanges()
	first, second := b.claim("u1", nil, half("s1", "gpu-0")), b.claim("u2", nil, half("s2", "gpu-0"))
	b.mustPrepare(first)
	b.mustPrepare(b.claim("u3", nil, half("s3", "gpu-1"))) // half of this one is left
	b.mustPrepare(second)
	b.awaitPublished("gpu-1")
	if got := b.sliceChanges() - before; got != 1 {
		t.Errorf("%d changes of slices for one GPU that is full, want one", got)
	}
	before = b.sliceChanges()
	if problem := b.unprepare(first); problem != "" {
		t.Fatal(problem)
	}
	b.awaitPublished("gpu-0 gpu-1")
	if got := b.sliceChanges() - before; got != 1 {
		t.Errorf("%d changes of slices for one share that ends, want one", got)
	}
}

func TestFullSharedGPUIsWithdrawnAgainAfterRestart(t *testing.T) {
	b := newBench(t, gputest.New(t, 2), withForms(`{"default": {"form": "shareable"}}`), fullAfter(100*time.Millisecond))
	b.mustPrepare(b.claim("u1", nil, half("s1", "gpu-0")))
	b.mustPrepare(b.claim("u2", nil, half("s2", "gpu-0")))
	b.awaitPublished("gpu-1")
	b.stop()
	b.start()
	b.await(func() bool {
		s := b.running().serving.Load()
		return s != nil && len(s.kind.Hardware().Offer.Full) == 1
	}, "the restarted role to find the GPU full")
	b.awaitPublished("gpu-1")
}

func TestFullSharedGPUIsPublishedWithItsTaints(t *testing.T) {
	b := newBench(t, gputest.New(t, 2), withForms(`{"default": {"form": "shareable"}}`), fullAfter(100*time.Millisecond))
	b.mustPrepare(b.claim("u1", nil, half("s1", "gpu-0")))
	b.mustPrepare(b.claim("u2", nil, half("s2", "gpu-0")))
	b.awaitPublished("gpu-1")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- order(ctx, b.options.StateDir, "drain", io.Discard) }() // waits for the claims
	b.awaitPublished("(gpu-0) (gpu-1)")
	cancel()
	<-ended
	if err := order(t.Context(), b.options.StateDir, "undrain", io.Discard); err != nil {
		t.Fatal(err)
	}
	b.awaitPublished("gpu-1")
}

func TestFullSharedGPUStaysPublishedByDefault(t *testing.T) {
	b := newBench(t, gputest.New(t, 1), withForms(`{"default": {"form": "shareable"}}`))
	b.awaitPublished("gpu-0")
	b.mustPrepare(b.claim("u1", nil, half("s1", "gpu-0")))
	before := b.sliceChanges()
	b.mustPrepare(b.claim("u2", nil, half("s2", "gpu-0")))
	kind := b.running().serving.Load().kind
	held, _ := kind.Use()
	if exhausted := kind.Hardware().Pool.Exhausted(held); len(exhausted) != 1 {
		t.Fatalf("full are %v, want one GPU", exhausted)
	}
	if got := b.sliceChanges() - before; got != 0 || b.published() != "gpu-0" {
		t.Errorf("%d changes of slices, published are %q", got, b.published())
	}
}
