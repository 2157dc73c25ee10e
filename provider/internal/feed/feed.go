// Package feed lets any number of waiters follow objects with one list and one watch for each kind, so that an apply of hundreds of objects does
// not open hundreds of watches.
package feed

import (
	"context"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
)

// Key names an object; Namespace is empty for a cluster-wide kind.
type Key struct{ Namespace, Name string }

// Condition looks at an object (nil: it does not exist) and says whether the wait is over; an error ends the wait.
type Condition func(obj *unstructured.Unstructured) (done bool, err error)

const (
	// linger is how long a kind is still watched after its last waiter left: in an apply the next one is not far.
	linger = 30 * time.Second
	// retryDelay is the pause before a list or watch that failed is tried again.
	retryDelay = time.Second
)

// Set holds the feeds of one cluster.
type Set struct {
	client dynamic.Interface
	mu     sync.Mutex
	feeds  map[schema.GroupVersionResource]*feed
}

// NewSet returns a set without feeds.
func NewSet(client dynamic.Interface) *Set {
	return &Set{client: client, feeds: map[schema.GroupVersionResource]*feed{}}
}

// Wait follows an object until the condition holds, and returns it as last seen. The condition is not asked before the feed has reached the resource
// version since (empty: any), so that an object just written is never taken for missing. When ctx ends first the error is ctx's. An Unauthorized error says
// that the server has rejected the credentials for a while; a Forbidden one that the kind may not be listed and watched over all namespaces: the caller may
// then watch the object alone.
func (s *Set) Wait(ctx context.Context, gvr schema.GroupVersionResource, key Key, since string, condition Condition) (*unstructured.Unstructured, error) {
	f := s.join(gvr) //nolint:contextcheck // the feed outlives the waiter that starts it
	defer s.leave(f)
	var last *unstructured.Unstructured
	for {
		obj, reached, changed, refused := f.look(key, since)
		if refused != nil {
			return last, refused
		}
		if reached {
			last = obj
			if done, err := condition(obj); done || err != nil {
				return last, err
			}
		}
		select {
		case <-ctx.Done():
			return last, ctx.Err()
		case <-changed:
		}
	}
}

func (s *Set) join(gvr schema.GroupVersionResource) *feed {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, ok := s.feeds[gvr]
	if !ok {
		ctx, cancel := context.WithCancel(context.Background())
		f = &feed{gvr: gvr, resource: s.client.Resource(gvr), stop: cancel, objects: map[Key]*unstructured.Unstructured{}, changed: map[Key]chan struct{}{}}
		s.feeds[gvr] = f
		go f.run(ctx) // ends when the last waiter has been gone for a while
	}
	f.waiters++
	if f.idle != nil {
		f.idle.Stop()
		f.idle = nil
	}
	return f
}

func (s *Set) leave(f *feed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.waiters--; f.waiters > 0 {
		return
	}
	f.idle = time.AfterFunc(linger, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if f.waiters == 0 && s.feeds[f.gvr] == f {
			delete(s.feeds, f.gvr)
			f.stop()
		}
	})
}

// feed is one kind: its objects as last heard of, and who waits for which.
type feed struct {
	gvr      schema.GroupVersionResource
	resource dynamic.NamespaceableResourceInterface
	stop     context.CancelFunc
	waiters  int         // guarded by Set.mu
	idle     *time.Timer // guarded by Set.mu

	mu      sync.Mutex
	objects map[Key]*unstructured.Unstructured
	version uint64 // resource version up to which objects are right; 0 before the first list
	refused error  // the server does not let us watch the kind
	changed map[Key]chan struct{}
	any     chan struct{} // closed when version or refused changes without an event for a key
}

// look returns the object, whether the feed has reached since, and a channel that is closed at the next change.
func (f *feed) look(key Key, since string) (obj *unstructured.Unstructured, reached bool, changed <-chan struct{}, refused error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	obj = f.objects[key]
	wanted, _ := strconv.ParseUint(since, 10, 64) // not a number: any version will do
	reached = f.version > 0 && (f.version >= wanted || versionOf(obj) >= wanted)
	if !reached {
		if f.any == nil {
			f.any = make(chan struct{})
		}
		return obj, false, f.any, f.refused
	}
	if f.changed[key] == nil {
		f.changed[key] = make(chan struct{})
	}
	return obj, true, f.changed[key], f.refused
}

func (f *feed) run(ctx context.Context) {
	var rejections Rejections
	for ctx.Err() == nil {
		f.follow(ctx, &rejections)
		select {
		case <-ctx.Done():
		case <-time.After(retryDelay):
		}
	}
}

func (f *feed) follow(ctx context.Context, rejections *Rejections) {
	list, err := f.resource.List(ctx, metav1.ListOptions{})
	inVain := rejections.Last(err)
	if err != nil {
		// A kind that is missing, like one that is forbidden, is no reason to wait: the caller decides.
		if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || inVain {
			f.refuse(err)
		}
		return
	}
	f.replace(list)
	w, err := f.resource.Watch(ctx, metav1.ListOptions{ResourceVersion: list.GetResourceVersion(), AllowWatchBookmarks: true})
	if err != nil {
		if apierrors.IsForbidden(err) {
			f.refuse(err)
		}
		return
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		obj, ok := event.Object.(*unstructured.Unstructured)
		if !ok || event.Type == watch.Error {
			return // usually 410 Gone: list again
		}
		f.take(event.Type, obj)
	}
}

func (f *feed) refuse(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refused = err
	f.wakeAll()
}

func (f *feed) replace(list *unstructured.UnstructuredList) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refused = nil
	f.objects = make(map[Key]*unstructured.Unstructured, len(list.Items))
	for i := range list.Items {
		f.objects[keyOf(&list.Items[i])] = &list.Items[i]
	}
	f.version = number(list.GetResourceVersion())
	f.wakeAll()
}

func (f *feed) take(event watch.EventType, obj *unstructured.Unstructured) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.version = max(f.version, versionOf(obj))
	key := keyOf(obj)
	switch event {
	case watch.Bookmark:
	case watch.Deleted:
		delete(f.objects, key)
	default:
		f.objects[key] = obj
	}
	if c := f.changed[key]; c != nil {
		close(c)
		delete(f.changed, key)
	}
	if f.any != nil {
		close(f.any)
		f.any = nil
	}
}

// wakeAll is called with mu held.
func (f *feed) wakeAll() {
	for key, c := range f.changed {
		close(c)
		delete(f.changed, key)
	}
	if f.any != nil {
		close(f.any)
		f.any = nil
	}
}

func keyOf(obj *unstructured.Unstructured) Key { return Key{obj.GetNamespace(), obj.GetName()} }

func versionOf(obj *unstructured.Unstructured) uint64 {
	if obj == nil {
		return 0
	}
	return number(obj.GetResourceVersion())
}

// number reads a resource version. Kubernetes defines their order within one resource.
func number(version string) uint64 {
	n, _ := strconv.ParseUint(version, 10, 64)
	return n
}
