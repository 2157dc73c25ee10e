package plugin

import (
	"context"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	k8stesting "k8s.io/client-go/testing"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
)

// watched records which resources the role watches. A fake API server keeps no history: an object that is made between the role's
// list and its watch would never reach it.
type watched struct {
	mu    sync.Mutex
	known map[string]chan struct{}
}

func (w *watched) of(resource string) chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.known == nil {
		w.known = map[string]chan struct{}{}
	}
	if w.known[resource] == nil {
		w.known[resource] = make(chan struct{}, 1)
	}
	return w.known[resource]
}

// forget forgets the watches of a role that ended: the next one lists before it watches, too.
func (w *watched) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.known = nil
}

// collectWatches makes b.watched record each watch once it receives changes. Call it before the role starts.
func (b *bench) collectWatches() {
	b.objects.PrependWatchReactor("*", func(action k8stesting.Action) (bool, watch.Interface, error) {
		w, err := b.objects.Tracker().Watch(action.GetResource(), action.GetNamespace())
		select {
		case b.watched.of(action.GetResource().Resource) <- struct{}{}:
		default: // known already
		}
		return true, w, err
	})
}

// create makes an object of the API group gpufabric.io, once the role watches its resource.
func (b *bench) create(resource, kind, name string, spec map[string]any) {
	b.Helper()
	watching := b.watched.of(resource)
	select {
	case <-watching:
		watching <- struct{}{} // for the next object
	case <-time.After(time.Minute):
		b.Fatalf("the role does not watch %s after a minute", resource)
	}
	b.made++
	metadata := map[string]any{"name": name, "uid": fmt.Sprintf("%s-%d", name, b.made), "generation": int64(1)}
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.SchemeGroupVersion().String(), "kind": kind, "metadata": metadata, "spec": spec,
	}}
	if _, err := b.objects.Resource(v1alpha1.SchemeGroupVersion().WithResource(resource)).Create(context.Background(), object,
		metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
}
