package bench

import (
	"context"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"gpufabric.io/tests/simcluster/domain"
)

// domainWatch knows all ComputeDomains, and when each became Ready with all nodes of its rack, by this process's clock.
type domainWatch struct {
	mu      sync.Mutex
	ready   map[string]time.Time // by namespace/name
	present map[string]bool
	changed chan struct{} // has a token when something has changed
}

// watchDomains follows them until ctx ends, and returns when it has seen what there is.
func watchDomains(ctx context.Context, objects dynamic.Interface) (*domainWatch, error) {
	w := &domainWatch{ready: map[string]time.Time{}, present: map[string]bool{}, changed: make(chan struct{}, 1)}
	saw := func(object any) {
		if read, ok := object.(*unstructured.Unstructured); ok {
			w.saw(domain.Read(read))
		}
	}
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: domain.In(objects, ""), ObjectType: &unstructured.Unstructured{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc: saw, UpdateFunc: func(_, object any) { saw(object) },
			DeleteFunc: func(object any) {
				if last, ok := object.(cache.DeletedFinalStateUnknown); ok {
					object = last.Obj
				}
				if read, ok := object.(*unstructured.Unstructured); ok {
					w.gone(read.GetNamespace() + "/" + read.GetName())
				}
			},
		},
	})
	go informer.RunWithContext(ctx) // ends with the measurement
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return nil, context.Cause(ctx)
	}
	return w, nil
}

func (w *domainWatch) saw(d domain.Domain) {
	w.mu.Lock()
	key := d.Namespace + "/" + d.Name
	w.present[key] = true
	if _, was := w.ready[key]; !was && domain.ReadyOn(RackSize)(d) {
		w.ready[key] = time.Now()
	}
	w.mu.Unlock()
	w.tell()
}

func (w *domainWatch) gone(key string) {
	w.mu.Lock()
	delete(w.ready, key)
	delete(w.present, key)
	w.mu.Unlock()
	w.tell()
}

func (w *domainWatch) tell() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// left is how many domains a namespace has.
func (w *domainWatch) left(namespace string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	count := 0
	for key := range w.present {
		if strings.HasPrefix(key, namespace+"/") {
			count++
		}
	}
	return count
}

// await waits until done returns true of the times at which domains became Ready. failed reports what else ends the wait.
func (w *domainWatch) await(ctx context.Context, done func(ready map[string]time.Time) bool, failed func() error) error {
	looks := time.NewTicker(time.Second) // a process that ended makes no domain change
	defer looks.Stop()
	for {
		w.mu.Lock()
		ready := make(map[string]time.Time, len(w.ready))
		for key, at := range w.ready {
			ready[key] = at
		}
		w.mu.Unlock()
		if done(ready) {
			return nil
		}
		if err := failed(); err != nil {
			return err
		}
		select {
		case <-w.changed:
		case <-looks.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
