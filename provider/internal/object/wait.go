package object

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/hashicorp/terraform-plugin-log/tflog"

	"gpufabric.io/provider/internal/cluster"
	"gpufabric.io/provider/internal/feed"
)

// Condition looks at an object (nil: it does not exist) and says whether the wait is over; an error ends the wait.
type Condition = feed.Condition

// Gone is the condition that an object does not exist.
func Gone(obj *unstructured.Unstructured) (bool, error) { return obj == nil, nil }

// Established is the condition that the API serves the kind of a CustomResourceDefinition.
func Established(crd *unstructured.Unstructured) (bool, error) {
	if crd == nil {
		return false, nil
	}
	conditions, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
	for _, c := range conditions {
		if m, ok := c.(map[string]any); ok && m["type"] == "Established" && m["status"] == "True" {
			return true, nil
		}
	}
	return false, nil
}

// rewatchDelay is the pause before a watch that broke is set up again.
const rewatchDelay = time.Second

// Wait follows the object by watch until the condition holds and returns it as last seen. When ctx ends first, the error is ctx's and the
// object is still returned, so that the caller can say what was missing.
func (s *Store) Wait(ctx context.Context, key Key, condition Condition) (*unstructured.Unstructured, error) {
	return follow(ctx, s.resource(key), key.Name, condition)
}

// Await is Wait over the watch that all waiters for the kind share, for objects that come in hundreds. since is the object as last read or written
// (nil: none was). Where the kind may not be watched over all namespaces, the object is watched alone.
func (s *Store) Await(ctx context.Context, key Key, since *unstructured.Unstructured, condition Condition) (*unstructured.Unstructured, error) {
	version := ""
	if since != nil {
		version = since.GetResourceVersion()
	}
	last, err := s.client.Feeds.Wait(ctx, s.kind.GVR(), feed.Key(key), version, condition)
	if err != nil && (apierrors.IsForbidden(err) || apierrors.IsNotFound(err)) {
		return s.Wait(ctx, key, condition)
	}
	return last, err
}

// ErrGone is returned by conditions that cannot come true any more because the object was deleted.
var ErrGone = errors.New("the object was deleted while it was waited for")

func follow(ctx context.Context, resource dynamic.ResourceInterface, name string, condition Condition) (*unstructured.Unstructured, error) {
	var last *unstructured.Unstructured
	var rejections feed.Rejections
	for {
		obj, done, err := followOnce(ctx, resource, name, last, condition)
		last = obj
		inVain := rejections.Last(err)
		if done || inVain || (err != nil && !transient(err)) {
			return last, err
		}
		select {
		case <-ctx.Done():
			return last, ctx.Err()
		case <-time.After(rewatchDelay):
		}
	}
}

// followOnce lists the object, then watches from there, until the condition holds or the watch ends.
func followOnce(ctx context.Context, resource dynamic.ResourceInterface, name string, last *unstructured.Unstructured, condition Condition) (*unstructured.Unstructured, bool, error) {
	one := fields.OneTermEqualSelector("metadata.name", name).String()
	list, err := resource.List(ctx, metav1.ListOptions{FieldSelector: one})
	if err != nil {
		return last, false, err
	}
	last = nil
	if len(list.Items) > 0 {
		last = &list.Items[0]
	}
	if done, err := condition(last); done || err != nil {
		return last, true, err
	}
	w, err := resource.Watch(ctx, metav1.ListOptions{FieldSelector: one, ResourceVersion: list.GetResourceVersion()})
	if err != nil {
		return last, false, err
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return last, true, ctx.Err()
		case event, open := <-w.ResultChan():
			if !open {
				return last, false, nil
			}
			switch event.Type {
			case watch.Error:
				return last, false, nil // usually 410 Gone: list again
			case watch.Deleted:
				last = nil
			default:
				obj, ok := event.Object.(*unstructured.Unstructured)
				if !ok {
					continue
				}
				last = obj
			}
			if done, err := condition(last); done || err != nil {
				return last, true, err
			}
		}
	}
}

// transient reports whether a wait should go on after err: an API server that restarts in a long apply is waited for, and credentials that expired in one may
// have been renewed by the next request.
func transient(err error) bool {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	return cluster.IsConnectionLost(err) || apierrors.IsUnauthorized(err) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || apierrors.IsTooManyRequests(err) ||
		apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err)
}

// Delete deletes the object and waits until it is gone; an object that is not there counts as gone. When ctx ends first the object is
// returned as last seen with ctx's error, so that the caller can name the finalizers that hold it.
func (s *Store) Delete(ctx context.Context, key Key) (*unstructured.Unstructured, error) {
	propagation := metav1.DeletePropagationBackground
	err := s.resource(key).Delete(ctx, key.Name, metav1.DeleteOptions{PropagationPolicy: &propagation})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	// Most objects have no finalizer and are gone at once; only the others are watched.
	left, err := s.Get(ctx, key)
	if err != nil || left == nil {
		return nil, err
	}
	last, err := s.Await(ctx, key, left, func(obj *unstructured.Unstructured) (bool, error) {
		return obj == nil || obj.GetUID() != left.GetUID(), nil // another one of the same name is not ours to wait for
	})
	if apierrors.IsNotFound(err) { // the CRD went away, and the object with it
		return nil, nil
	}
	return last, err
}

var crdResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// MissingKindError says that the cluster does not serve a kind.
type MissingKindError struct{ Kind, CRD string }

func (e *MissingKindError) Error() string {
	return fmt.Sprintf("the cluster has no kind %s: CustomResourceDefinition %s is not installed", e.Kind, e.CRD)
}

// isMissingKind tells "no such kind" from "no such object" or "no such namespace": only the former is answered by the API server's
// router, whose plain 404 client-go marks as unexpected.
func isMissingKind(err error) bool {
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) || !apierrors.IsNotFound(err) || status.Status().Details == nil {
		return false
	}
	for _, cause := range status.Status().Details.Causes {
		if cause.Type == metav1.CauseTypeUnexpectedServerResponse {
			return true
		}
	}
	return false
}

// awaitKind waits until the kind's CRD is established.
func (s *Store) awaitKind(ctx context.Context) error {
	tflog.Info(ctx, "the cluster has no kind "+s.kind.Name+" yet: waiting", map[string]any{"for": "CustomResourceDefinition " + s.kind.CRD()})
	_, err := follow(ctx, s.client.Dynamic.Resource(crdResource), s.kind.CRD(), Established)
	if err != nil {
		return &MissingKindError{s.kind.Name, s.kind.CRD()}
	}
	return nil
}
