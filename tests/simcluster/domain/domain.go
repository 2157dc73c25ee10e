// Package domain reads ComputeDomains as tests and people see them: from the API, without the drivers' own types.
package domain

import (
	"context"
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// Resource is the kind's resource.
var Resource = schema.GroupVersionResource{Group: "resource.nvidia.com", Version: "v1beta1", Resource: "computedomains"}

// Ready is the status of a domain, or of a node in it, that works.
const Ready = "Ready"

// Domain is one ComputeDomain.
type Domain struct {
	Namespace, Name, UID, Status string
	// Ready is the number of ready nodes; Wanted is spec.numNodes.
	Ready, Wanted int
	Nodes         []Node
	// Conditions are its conditions' messages by type, those that are not True.
	Conditions map[string]string
	// Degraded is the reason and message of the condition Degraded while it is True.
	Degraded string
}

// Node is one entry of a domain's status.nodes.
type Node struct {
	Name, Address, Clique, Status string
	Index                         int64
}

// ReadyOn is for Await: it reports whether a domain is Ready with exactly that many ready nodes.
func ReadyOn(count int) func(Domain) bool {
	return func(d Domain) bool { return d.Status == Ready && d.Ready == count }
}

// Read takes a Domain from an object as the API returns it.
func Read(object *unstructured.Unstructured) Domain {
	d := Domain{Namespace: object.GetNamespace(), Name: object.GetName(), UID: string(object.GetUID()), Conditions: map[string]string{}}
	d.Status = text(object.Object, "status", "status")
	wanted, _, _ := unstructured.NestedInt64(object.Object, "spec", "numNodes")
	d.Wanted = int(wanted)
	nodes, _, _ := unstructured.NestedSlice(object.Object, "status", "nodes")
	for _, entry := range nodes {
		fields, ok := entry.(map[string]any)
		if !ok {
			continue
		}
		n := Node{Name: text(fields, "name"), Address: text(fields, "ipAddress"), Clique: text(fields, "cliqueID"),
			Status: text(fields, "status")}
		n.Index, _, _ = unstructured.NestedInt64(fields, "index")
		if n.Status == Ready {
			d.Ready++
		}
		d.Nodes = append(d.Nodes, n)
	}
	conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	for _, entry := range conditions {
		fields, ok := entry.(map[string]any)
		if !ok {
			continue
		}
		words := text(fields, "reason") + ": " + text(fields, "message")
		switch yes := text(fields, "status") == "True"; {
		case !yes:
			d.Conditions[text(fields, "type")] = words
		case text(fields, "type") == "Degraded":
			d.Degraded = words
		}
	}
	return d
}

func text(object map[string]any, path ...string) string {
	value, _, _ := unstructured.NestedString(object, path...)
	return value
}

// List reads all domains.
func List(ctx context.Context, objects dynamic.Interface) ([]Domain, error) {
	list, err := objects.Resource(Resource).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the compute domains: %w", err)
	}
	domains := make([]Domain, 0, len(list.Items))
	for i := range list.Items {
		domains = append(domains, Read(&list.Items[i]))
	}
	return domains, nil
}

// Await watches a domain until done returns true, and returns the domain. The error describes its last state.
func Await(ctx context.Context, objects dynamic.Interface, namespace, name string, done func(Domain) bool) (Domain, error) {
	var last Domain
	_, err := watchtools.UntilWithSync(ctx, one(objects, namespace, name), &unstructured.Unstructured{}, nil,
		func(event watch.Event) (bool, error) {
			object, ok := event.Object.(*unstructured.Unstructured)
			if !ok || event.Type == watch.Deleted {
				return false, nil
			}
			last = Read(object)
			return done(last), nil
		})
	if err != nil {
		return last, fmt.Errorf("wait for compute domain %s/%s: %w; it is %q with %d of %d nodes ready %v", namespace, name, context.Cause(ctx),
			last.Status, last.Ready, last.Wanted, last.Conditions)
	}
	return last, nil
}

// AwaitGone watches until a domain's object is gone. The error has its conditions.
func AwaitGone(ctx context.Context, objects dynamic.Interface, namespace, name string) error {
	var last Domain
	_, err := watchtools.UntilWithSync(ctx, one(objects, namespace, name), &unstructured.Unstructured{},
		func(store cache.Store) (bool, error) { return len(store.List()) == 0, nil },
		func(event watch.Event) (bool, error) {
			if object, ok := event.Object.(*unstructured.Unstructured); ok {
				last = Read(object)
			}
			return event.Type == watch.Deleted, nil
		})
	if err != nil {
		return fmt.Errorf("wait for the end of compute domain %s/%s: %w; it is %q %v", namespace, name, context.Cause(ctx), last.Status,
			last.Conditions)
	}
	return nil
}

// one lists and watches a single domain.
func one(objects dynamic.Interface, namespace, name string) cache.ListerWatcher {
	return selected(objects, namespace, fields.OneTermEqualSelector("metadata.name", name))
}

// In lists and watches the domains of a namespace.
func In(objects dynamic.Interface, namespace string) cache.ListerWatcher {
	return selected(objects, namespace, fields.Everything())
}

func selected(objects dynamic.Interface, namespace string, selector fields.Selector) cache.ListerWatcher {
	resource := objects.Resource(Resource).Namespace(namespace)
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.FieldSelector = selector.String()
			return resource.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.FieldSelector = selector.String()
			return resource.Watch(ctx, options)
		},
	}
}

// AwaitNone watches until list returns no object; object is an example of its kind.
func AwaitNone(ctx context.Context, list cache.ListerWatcher, object runtime.Object) error {
	left := map[string]bool{}
	_, err := watchtools.UntilWithSync(ctx, list, object, func(store cache.Store) (bool, error) {
		for _, key := range store.ListKeys() {
			left[key] = true
		}
		return len(left) == 0, nil
	}, func(event watch.Event) (bool, error) {
		key, err := cache.MetaNamespaceKeyFunc(event.Object)
		if err != nil {
			return false, err
		}
		if left[key] = true; event.Type == watch.Deleted {
			delete(left, key)
		}
		return len(left) == 0, nil
	})
	if err != nil && len(left) > 0 {
		return fmt.Errorf("%d are left, such as %v: %w", len(left), slices.Sorted(maps.Keys(left))[0], context.Cause(ctx))
	}
	return err
}
