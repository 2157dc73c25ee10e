// Package selection is a node's view of cluster-wide objects that select nodes by their labels.
package selection

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// Node is the node with this view, and the access to the API server.
type Node struct {
	Name    string
	Core    kubernetes.Interface
	Dynamic dynamic.Interface
	// Self is the node's own object. The caller of Self must run it; nil: each Watch watches the node by itself.
	Self cache.SharedIndexInformer
}

// Self watches one node's object.
func Self(core kubernetes.Interface, name string) cache.SharedIndexInformer {
	return informers.NewSharedInformerFactoryWithOptions(core, 0, informers.WithTweakListOptions(func(l *metav1.ListOptions) {
		l.FieldSelector = fields.OneTermEqualSelector("metadata.name", name).String()
	})).Core().V1().Nodes().Informer()
}

// Labels calls changed with the node's labels when they are first known and whenever they change, until ctx ends. A missing node
// has no labels. n.Self must be set.
func Labels(ctx context.Context, n Node, changed func(labels.Set)) error {
	wake := make(chan struct{}, 1)
	note := func() {
		select {
		case wake <- struct{}{}:
		default: // a token is there already
		}
	}
	registration, err := n.Self.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { note() }, UpdateFunc: func(any, any) { note() }, DeleteFunc: func(any) { note() },
	})
	if err != nil {
		return err
	}
	defer func() { _ = n.Self.RemoveEventHandler(registration) }()
	if !cache.WaitFor(ctx, "", n.Self.HasSyncedChecker()) {
		return nil
	}
	var last labels.Set
	for first := true; ; {
		now := labels.Set{}
		if object, found, _ := n.Self.GetStore().GetByKey(n.Name); found {
			now = object.(*corev1.Node).Labels
		}
		if first || !maps.Equal(now, last) {
			first, last = false, now
			changed(now)
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return nil
		}
	}
}

// Watch calls changed with the objects of a kind that select the node, sorted by name, when they are first known and whenever they
// change, until ctx ends. selector returns an object's selector; an object without one selects every node. Without the kind's CRD
// there are no objects, and Watch waits for it.
func Watch[T any](ctx context.Context, n Node, kind schema.GroupVersionResource, selector func(*T) *metav1.LabelSelector,
	changed func([]T)) error {
	return WatchLabelled(ctx, n, kind, "", selector, changed)
}

// WatchLabelled is Watch for the objects that a label selector of the API matches; the others are not sent to the node.
func WatchLabelled[T any](ctx context.Context, n Node, kind schema.GroupVersionResource, labelled string,
	selector func(*T) *metav1.LabelSelector, changed func([]T)) error {
	wanted, err := labels.Parse(labelled)
	if err != nil {
		return fmt.Errorf("watch %s: %w", kind.Resource, err)
	}
	objects := dynamicinformer.NewFilteredDynamicInformer(n.Dynamic, kind, "", 0, cache.Indexers{}, func(l *metav1.ListOptions) {
		l.LabelSelector = labelled
	}).Informer()
	nodes := n.Self
	if nodes == nil {
		nodes = Self(n.Core, n.Name)
	}
	err = objects.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		if apierrors.IsNotFound(err) {
			klog.FromContext(ctx).V(2).Info("The API server does not serve the kind; waiting for its CRD", "kind", kind.Resource)
			return
		}
		cache.DefaultWatchErrorHandler(ctx, r, err)
	})
	if err != nil {
		return err
	}
	v := &view[T]{node: n.Name, labelled: wanted, selector: selector, changed: changed, last: "none told yet"}
	var synced []cache.DoneChecker
	for _, informer := range []cache.SharedIndexInformer{objects, nodes} {
		handler := cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { v.update(objects, nodes) },
			UpdateFunc: func(any, any) { v.update(objects, nodes) },
			DeleteFunc: func(any) { v.update(objects, nodes) },
		}
		registration, err := informer.AddEventHandler(handler)
		if err != nil {
			return err
		}
		synced = append(synced, registration.HasSyncedChecker(), informer.HasSyncedChecker())
	}
	var wg sync.WaitGroup
	if n.Self == nil {
		wg.Go(func() { nodes.RunWithContext(ctx) })
	}
	wg.Go(func() { objects.RunWithContext(ctx) })
	wg.Go(func() { // The events of the first lists may all come before both lists count as complete.
		if cache.WaitFor(ctx, "", synced...) {
			v.update(objects, nodes)
		}
	})
	wg.Wait()
	return nil
}

// view is the last result.
type view[T any] struct {
	node     string
	labelled labels.Selector // as the watch's: an object whose labels change is no news to another watch
	selector func(*T) *metav1.LabelSelector
	changed  func([]T)

	mu   sync.Mutex
	last string
}

// update reports the objects if they have changed. Informers call it on every event, including a node's heartbeats.
func (v *view[T]) update(objects, nodes cache.SharedIndexInformer) {
	if !objects.HasSynced() || !nodes.HasSynced() {
		return // reported once both lists are complete
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	self := &corev1.Node{}
	if object, found, _ := nodes.GetStore().GetByKey(v.node); found {
		self = object.(*corev1.Node)
	}
	stored := objects.GetStore().List()
	slices.SortFunc(stored, func(a, b any) int {
		return strings.Compare(a.(*unstructured.Unstructured).GetName(), b.(*unstructured.Unstructured).GetName())
	})
	var selected []T
	var fingerprint strings.Builder
	fingerprint.WriteString(string(self.UID) + ": ") // a Node's reports are removed with it
	for _, item := range stored {
		object := item.(*unstructured.Unstructured)
		parsed := new(T)
		// A selector that cannot be read was accepted by an API server without the webhook; it selects no node.
		if object.GetDeletionTimestamp() != nil || !v.labelled.Matches(labels.Set(object.GetLabels())) ||
			runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, parsed) != nil || !matches(v.selector(parsed), self.Labels) {
			continue
		}
		selected = append(selected, *parsed)
		fmt.Fprintf(&fingerprint, "%s/%s/%d ", object.GetName(), object.GetUID(), object.GetGeneration())
	}
	if now := fingerprint.String(); now != v.last {
		v.last = now
		v.changed(selected)
	}
}

func matches(selector *metav1.LabelSelector, nodeLabels labels.Set) bool {
	if selector == nil {
		return true
	}
	s, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && s.Matches(nodeLabels)
}
