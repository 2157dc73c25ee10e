// Package feed is how the provider watches objects. Any number of waiters share one list and one watch for each scope, so that an
// apply of hundreds of objects does not open hundreds of watches.
package feed

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
)

// Key names an object; Namespace is empty for a cluster-wide kind.
type Key struct{ Namespace, Name string }

// String returns namespace/name, or the name alone.
func (k Key) String() string {
	if k.Namespace == "" {
		return k.Name
	}
	return k.Namespace + "/" + k.Name
}

// Scope is the range of one list and one watch.
type Scope struct {
	Resource  schema.GroupVersionResource
	Namespace string // empty: all namespaces, or a cluster-wide kind
	Name      string // empty: every object
}

// options select the scope's objects.
func (s Scope) options() metav1.ListOptions {
	if s.Name == "" {
		return metav1.ListOptions{}
	}
	return metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", s.Name).String()}
}

// Condition checks an object (nil: it does not exist) and reports whether the wait is over; an error ends the wait.
type Condition func(obj *unstructured.Unstructured) (done bool, err error)

const (
	// linger is how long a kind is still watched after the last waiter left: in an apply the next one comes soon.
	linger = 30 * time.Second
	// retryDelay is the pause before a failed list or watch is retried.
	retryDelay = time.Second
)

// Set holds the feeds of one cluster.
type Set struct {
	client dynamic.Interface
	mu     sync.Mutex
	feeds  map[Scope]*feed
}

// NewSet returns a set without feeds.
func NewSet(client dynamic.Interface) *Set {
	return &Set{client: client, feeds: map[Scope]*feed{}}
}

// Wait follows an object of a scope until the condition holds, and returns it as last seen. It does not check the condition before
// the feed has reached the resource version since (empty: any), so that an object that was just written never counts as missing.
// When ctx ends first the error is ctx's. A final answer of the server ends the wait: Forbidden where the scope may not be listed
// and watched (the caller may then watch the object alone), NotFound where the kind is missing, Unauthorized where the credentials
// have been rejected for a while.
func (s *Set) Wait(ctx context.Context, scope Scope, key Key, since string, condition Condition) (*unstructured.Unstructured, error) {
	f := s.join(scope) //nolint:contextcheck // the feed outlives the waiter that starts it
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

func (s *Set) join(scope Scope) *feed {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, ok := s.feeds[scope]
	if !ok {
		ctx, cancel := context.WithCancel(context.Background())
		f = &feed{
			scope:    scope,
			resource: s.resource(scope),
			stop:     cancel,
			objects:  map[Key]*unstructured.Unstructured{},
			changed:  map[Key]chan struct{}{},
		}
		s.feeds[scope] = f
		go f.run(ctx) // ends when the last waiter has left, or a while after that
	}
	f.waiters++
	if f.idle != nil {
		f.idle.Stop()
		f.idle = nil
	}
	return f
}

func (s *Set) resource(scope Scope) dynamic.ResourceInterface {
	if scope.Namespace == "" {
		return s.client.Resource(scope.Resource)
	}
	return s.client.Resource(scope.Resource).Namespace(scope.Namespace)
}

func (s *Set) leave(f *feed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.waiters--; f.waiters > 0 {
		return
	}
	if f.scope.Name != "" { // no other waiter will need this object
		s.end(f)
		return
	}
	f.idle = time.AfterFunc(linger, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if f.waiters == 0 {
			s.end(f)
		}
	})
}

// end must be called with mu held.
func (s *Set) end(f *feed) {
	if s.feeds[f.scope] == f {
		delete(s.feeds, f.scope)
		f.stop()
	}
}

// feed is one scope: its objects as last seen, and its waiters.
type feed struct {
	scope    Scope
	resource dynamic.ResourceInterface
	stop     context.CancelFunc
	waiters  int         // guarded by Set.mu
	idle     *time.Timer // guarded by Set.mu

	mu      sync.Mutex
	objects map[Key]*unstructured.Unstructured
	listed  bool
	version uint64 // resource version up to which objects are current
	refused error  // the server does not let us watch the scope
	changed map[Key]chan struct{}
	any     chan struct{} // closed when version or refused changes without an event for a key
}

// look returns the object, whether the feed has reached since, and a channel that is closed at the next change.
func (f *feed) look(key Key, since string) (obj *unstructured.Unstructured, reached bool, changed <-chan struct{}, refused error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	obj = f.objects[key]
	wanted, _ := strconv.ParseUint(since, 10, 64) // not a number: any version will do
	reached = f.listed && (f.version >= wanted || versionOf(obj) >= wanted)
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

// follow lists, then watches from there until the watch ends.
func (f *feed) follow(ctx context.Context, rejections *Rejections) {
	list, err := f.resource.List(ctx, f.scope.options())
	if rejections.Last(err) || final(err) {
		f.refuse(err)
	}
	if err != nil {
		return
	}
	f.replace(list)
	options := f.scope.options()
	options.ResourceVersion, options.AllowWatchBookmarks = list.GetResourceVersion(), true
	w, err := f.resource.Watch(ctx, options)
	if final(err) {
		f.refuse(err)
	}
	if err != nil {
		return
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case event, open := <-w.ResultChan():
			obj, ok := event.Object.(*unstructured.Unstructured)
			if !open || !ok || event.Type == watch.Error {
				return // usually 410 Gone: list again
			}
			f.take(event.Type, obj)
		}
	}
}

// final reports whether an error is an answer that the server will give again. Wait continues where an API server restarts in a
// long apply, requests a pause, or cannot be reached. Rejected credentials are left to Rejections.
func final(err error) bool {
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) {
		return false
	}
	switch code := status.Status().Code; code {
	case http.StatusUnauthorized, http.StatusRequestTimeout, http.StatusGone, http.StatusTooManyRequests:
		return false
	default:
		return code >= 400 && code < 500
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
	f.listed, f.version = true, number(list.GetResourceVersion())
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

// wakeAll must be called with mu held.
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
