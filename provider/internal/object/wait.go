package object

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hashicorp/terraform-plugin-log/tflog"

	"gpufabric.io/provider/internal/feed"
)

// Condition checks an object (nil: it does not exist) and reports whether the wait is over; an error ends the wait.
type Condition = feed.Condition

// Gone is the condition that an object does not exist.
func Gone(obj *unstructured.Unstructured) (bool, error) { return obj == nil, nil }

// Established is the condition that the API serves the kind of a CustomResourceDefinition.
func Established(crd *unstructured.Unstructured) (bool, error) {
	if crd == nil {
		return false, nil
	}
	definition, err := Read[apiextensionsv1.CustomResourceDefinition](crd)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(definition.Status.Conditions, func(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
		return c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue
	}), nil
}

// Wait follows one object, with its own watch, until the condition holds, and returns it as last seen. When ctx ends first, the
// error is ctx's and the object is still returned, so that the caller can report the missing part.
func (s *Store) Wait(ctx context.Context, key Key, condition Condition) (*unstructured.Unstructured, error) {
	if !s.kind.Namespaced {
		key.Namespace = ""
	}
	return s.client.Feeds.Wait(ctx, feed.Scope{Resource: s.kind.GVR(), Namespace: key.Namespace, Name: key.Name}, key, "", condition)
}

// Await is Wait with the watch that all waiters for the kind share, for objects that come in hundreds. since is the object as last
// read or written (nil: neither). Where the kind may not be watched in all namespaces, the object is watched alone.
func (s *Store) Await(
	ctx context.Context,
	key Key,
	since *unstructured.Unstructured,
	condition Condition,
) (*unstructured.Unstructured, error) {
	version := ""
	if since != nil {
		version = since.GetResourceVersion()
	}
	last, err := s.client.Feeds.Wait(ctx, feed.Scope{Resource: s.kind.GVR()}, key, version, condition)
	if err != nil && (apierrors.IsForbidden(err) || apierrors.IsNotFound(err)) {
		return s.Wait(ctx, key, condition)
	}
	return last, err
}

// ErrGone is returned by conditions that can no longer come true because the object was deleted.
var ErrGone = errors.New("the object was deleted during the wait")

// Delete deletes the object that a record identifies (the zero record: any) and waits until it is gone; a missing object counts as
// gone. Another object of the name is left alone: *ReplacedError. When ctx ends first the object is returned as last seen with ctx's
// error, so that the caller can name the finalizers that hold it.
func (s *Store) Delete(ctx context.Context, key Key, record Record) (*unstructured.Unstructured, error) {
	propagation := metav1.DeletePropagationBackground
	for {
		found, err := s.Get(ctx, key)
		if err != nil || found == nil {
			return nil, err
		}
		if !record.Holds(found) {
			return nil, s.replaced(key, record, found)
		}
		options := metav1.DeleteOptions{PropagationPolicy: &propagation, Preconditions: exactly(found)}
		err = s.resource(key).Delete(ctx, key.Name, options)
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		if err == nil {
			return s.awaitGone(ctx, key, found.GetUID())
		}
		if !apierrors.IsConflict(err) || ctx.Err() != nil { // a conflict: the object changed since it was read
			return nil, err
		}
	}
}

// awaitGone waits until the object of a UID is gone.
func (s *Store) awaitGone(ctx context.Context, key Key, uid types.UID) (*unstructured.Unstructured, error) {
	// Most objects have no finalizer and are gone at once; only the others are watched.
	left, err := s.Get(ctx, key)
	if err != nil || left == nil || left.GetUID() != uid {
		return nil, err
	}
	last, err := s.Await(ctx, key, left, func(obj *unstructured.Unstructured) (bool, error) {
		return obj == nil || obj.GetUID() != uid, nil // another one of the same name is not ours to wait for
	})
	if apierrors.IsNotFound(err) { // the CRD went away, and the object with it
		return nil, nil
	}
	return last, err
}

// CRDKind is the kind of kinds.
var CRDKind = Kind{Group: "apiextensions.k8s.io", Version: "v1", Name: "CustomResourceDefinition", Plural: "customresourcedefinitions"}

// MissingKindError means that the cluster does not serve a kind.
type MissingKindError struct{ Kind, CRD string }

func (e *MissingKindError) Error() string {
	return fmt.Sprintf("the cluster has no kind %s: CustomResourceDefinition %s is not installed", e.Kind, e.CRD)
}

// isMissingKind distinguishes "no such kind" from "no such object" or "no such namespace": only the first is answered by the API
// server's router, whose plain 404 client-go marks as unexpected.
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
	_, err := NewStore(s.client, CRDKind).Wait(ctx, Key{Name: s.kind.CRD()}, Established)
	if err != nil {
		return &MissingKindError{s.kind.Name, s.kind.CRD()}
	}
	return nil
}
