// Package object manages one custom resource for Terraform: applied by server-side apply under one field manager, awaited by watch,
// deleted until it is gone.
package object

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/dynamic"

	"gpufabric.io/provider/internal/cluster"
	"gpufabric.io/provider/internal/feed"
)

// FieldManager owns the fields that Terraform sets.
const FieldManager = "terraform-provider-gpufabric"

// Kind is a kind of custom resource.
type Kind struct {
	Group, Version, Name, Plural string
	Namespaced                   bool
}

// GVR returns the resource the API serves the kind under.
func (k Kind) GVR() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: k.Group, Version: k.Version, Resource: k.Plural}
}

// APIVersion returns group/version, or the version alone in the core group.
func (k Kind) APIVersion() string {
	return schema.GroupVersion{Group: k.Group, Version: k.Version}.String()
}

// CRD returns the name of the kind's CustomResourceDefinition.
func (k Kind) CRD() string { return k.Plural + "." + k.Group }

// Key names an object; Namespace is empty for a cluster-wide kind.
type Key = feed.Key

// Read reads an object into its API type.
func Read[T any](obj *unstructured.Unstructured) (*T, error) {
	into := new(T)
	text, err := obj.MarshalJSON()
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s has a form that this provider does not support: %w", obj.GetKind(), obj.GetName(), err)
	}
	return into, nil
}

// Store reads and writes the objects of one kind.
type Store struct {
	client *cluster.Client
	kind   Kind
}

// NewStore returns the store of a kind.
func NewStore(client *cluster.Client, kind Kind) *Store { return &Store{client, kind} }

func (s *Store) resource(key Key) dynamic.ResourceInterface {
	r := s.client.Dynamic.Resource(s.kind.GVR())
	if s.kind.Namespaced {
		return r.Namespace(key.Namespace)
	}
	return r
}

// New returns an empty object of the kind, to be filled and applied.
func (s *Store) New(key Key) *unstructured.Unstructured {
	obj := &unstructured.Unstructured{Object: map[string]any{}}
	obj.SetAPIVersion(s.kind.APIVersion())
	obj.SetKind(s.kind.Name)
	obj.SetName(key.Name)
	if s.kind.Namespaced {
		obj.SetNamespace(key.Namespace)
	}
	return obj
}

// Get returns the object, or nil when it does not exist (or its kind does not).
func (s *Store) Get(ctx context.Context, key Key) (*unstructured.Unstructured, error) {
	obj, err := s.resource(key).Get(ctx, key.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return obj, err
}

// pageSize bounds one answer of the API server.
const pageSize = 250

// Each calls visit for every object of the kind in a namespace (empty: all) with the labels, page by page, until visit returns false.
func (s *Store) Each(ctx context.Context, namespace, labelSelector string, visit func(*unstructured.Unstructured) bool) error {
	var resource dynamic.ResourceInterface = s.client.Dynamic.Resource(s.kind.GVR())
	if namespace != "" {
		resource = s.client.Dynamic.Resource(s.kind.GVR()).Namespace(namespace)
	}
	options := metav1.ListOptions{LabelSelector: labelSelector, Limit: pageSize}
	for {
		page, err := resource.List(ctx, options)
		if err != nil {
			return err
		}
		for i := range page.Items {
			if !visit(&page.Items[i]) {
				return nil
			}
		}
		if options.Continue = page.GetContinue(); options.Continue == "" {
			return nil
		}
	}
}

// ExistsError means that an object to be created exists already and is not this state's.
type ExistsError struct {
	Kind     string
	Key      Key
	Managers []string
	// Owner is the mark of the Terraform state that holds the object, empty for none; Release the command that releases it.
	Owner, Release string
	// Creating is whether the object's creation is under way or was cut off elsewhere.
	Creating bool
}

func (e *ExistsError) Error() string {
	return fmt.Sprintf("%s %s exists already, managed by %s", e.Kind, e.Key, strings.Join(e.Managers, ", "))
}

// Create applies an object that must not exist yet, as a new owner's, with a mark that Settle removes. It adopts an object that an
// earlier process of the same origin created and could not record. While the kind's CRD is missing Create waits for it, so that the
// order of resources in one apply does not matter. Errors: *ExistsError, *ConflictError, *MissingKindError, or the API server's.
func (s *Store) Create(ctx context.Context, obj *unstructured.Unstructured, origin *Origin, force bool) (
	applied *unstructured.Unstructured, settle func(context.Context) error, err error) {
	key := Key{Namespace: obj.GetNamespace(), Name: obj.GetName()}
	found, err := s.Get(ctx, key)
	if err != nil {
		return nil, nil, err
	}
	if found != nil && found.GetDeletionTimestamp() != nil {
		if _, err := s.Wait(ctx, key, Gone); err != nil {
			return nil, nil, fmt.Errorf("wait for the old %s %s, which is being deleted: %w", s.kind.Name, key, err)
		}
		found = nil
	}
	if found != nil {
		mark := found.GetAnnotations()[CreationAnnotation]
		if !origin.Abandoned(mark) {
			exists := &ExistsError{Kind: s.kind.Name, Key: key, Managers: managers(found), Creating: mark != ""}
			if owner := found.GetAnnotations()[OwnerAnnotation]; owner != Released {
				exists.Owner, exists.Release = owner, releaseCommand(s.kind, key)
			}
			return nil, nil, exists
		}
		obj.SetUID(found.GetUID())
	}
	owner := NewOwner()
	mark, end := origin.Begin(owner)
	annotate(obj, OwnerAnnotation, owner)
	annotate(obj, CreationAnnotation, mark)
	applied, err = s.Apply(ctx, obj, force)
	if isMissingKind(err) {
		if err = s.awaitKind(ctx); err == nil {
			applied, err = s.Apply(ctx, obj, force)
		}
	}
	if err != nil {
		end()
		return nil, nil, err
	}
	return applied, func(ctx context.Context) error {
		defer end()
		return s.unmark(ctx, applied)
	}, nil
}

// unmark removes the mark of a creation, unless the object is gone.
func (s *Store) unmark(ctx context.Context, obj *unstructured.Unstructured) error {
	patch := fmt.Sprintf(`{"metadata":{"uid":%q,"annotations":{%q:null}}}`, obj.GetUID(), CreationAnnotation)
	key := Key{Namespace: obj.GetNamespace(), Name: obj.GetName()}
	_, err := s.resource(key).Patch(ctx, key.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: FieldManager})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// Update applies an object that a state records. A field that somebody edited is set back, one that somebody added to the spec is
// removed, and both are named in reverted; a field that another manager applies is a *ConflictError, unless force takes it over. Errors:
// *ReplacedError for another object of the name, *ConflictError, or the API server's. applied is nil where nothing was written: the
// object does not exist, or the error came first. An error beside applied came after the write, and applied is the object as it is then.
func (s *Store) Update(ctx context.Context, obj *unstructured.Unstructured, record Record, force bool) (
	applied *unstructured.Unstructured, reverted []Conflict, err error) {
	key := Key{Namespace: obj.GetNamespace(), Name: obj.GetName()}
	found, err := s.Get(ctx, key)
	if err != nil || found == nil {
		return nil, nil, err
	}
	if !record.Holds(found) {
		return nil, nil, s.replaced(key, record, found)
	}
	if record.Owner == "" {
		record.Owner = NewOwner()
	}
	obj.SetUID(found.GetUID())
	annotate(obj, OwnerAnnotation, record.Owner)
	if err := s.refuse(ctx, found, obj, force); err != nil {
		return nil, nil, err
	}
	if patched(found) {
		if err := s.declare(ctx, key); err != nil {
			return nil, nil, err
		}
	}
	applied, err = s.Apply(ctx, obj, force)
	var conflict *ConflictError
	if errors.As(err, &conflict) && !conflict.applied() {
		applied, err = s.Apply(ctx, obj, true)
		reverted = slices.DeleteFunc(conflict.Conflicts, func(c Conflict) bool { return c.Field == ".metadata.annotations."+OwnerAnnotation })
	}
	if rejects(err) && len(foreignFields(found, obj)) > 0 {
		var removed []Conflict
		if exchanged, fields, failed := s.exchange(ctx, found, obj); !rejects(failed) {
			applied, removed, err = exchanged, fields, failed
		}
		reverted = append(reverted, removed...)
	}
	if err != nil {
		return applied, nil, err
	}
	left, withdrawn, err := s.withdraw(ctx, applied, obj, force)
	if err != nil {
		return applied, reverted, err
	}
	return left, append(reverted, withdrawn...), nil
}

// Add applies an object, new or old, without waiting for its kind: a missing one is a *MissingKindError at once.
func (s *Store) Add(ctx context.Context, obj *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	applied, err := s.Apply(ctx, obj, false)
	if isMissingKind(err) {
		return nil, &MissingKindError{s.kind.Name, s.kind.CRD()}
	}
	return applied, err
}

// Apply writes the fields in obj by server-side apply and returns the object as stored. Fields applied earlier and now absent are
// removed; a field that another manager owns with another value is a *ConflictError, unless force takes it over.
func (s *Store) Apply(ctx context.Context, obj *unstructured.Unstructured, force bool) (*unstructured.Unstructured, error) {
	key := Key{Namespace: obj.GetNamespace(), Name: obj.GetName()}
	applied, err := s.resource(key).Apply(ctx, key.Name, obj, metav1.ApplyOptions{FieldManager: FieldManager, Force: force})
	if apierrors.IsConflict(err) {
		return nil, conflict(s.kind.Name, key, err)
	}
	return applied, err
}

// Conflict is one field that someone else owns. Applied is whether that manager declares the field by server-side apply, as GitOps
// controllers do; otherwise it wrote it once.
type Conflict struct {
	Field, Manager string
	Applied        bool
}

// ConflictError reports which fields of an object others own.
type ConflictError struct {
	Kind      string
	Key       Key
	Conflicts []Conflict
}

func (e *ConflictError) Error() string {
	lines := make([]string, len(e.Conflicts))
	for i, c := range e.Conflicts {
		lines[i] = fmt.Sprintf("%s is owned by %s", c.Field, c.Manager)
	}
	return fmt.Sprintf("apply %s %s: %s", e.Kind, e.Key, strings.Join(lines, "; "))
}

// applied reports whether a field belongs to a manager that applies it.
func (e *ConflictError) applied() bool {
	return slices.ContainsFunc(e.Conflicts, func(c Conflict) bool { return c.Applied })
}

// conflict parses owner and field from the API server's answer; it returns an answer in another form unchanged.
func conflict(kind string, key Key, err error) error {
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) || status.Status().Details == nil {
		return err
	}
	result := &ConflictError{Kind: kind, Key: key}
	for _, cause := range status.Status().Details.Causes {
		if cause.Type == metav1.CauseTypeFieldManagerConflict {
			owner := strings.TrimPrefix(cause.Message, "conflict with ")
			// The API server adds "using VERSION" for managers that wrote by update or patch.
			result.Conflicts = append(result.Conflicts, Conflict{cause.Field, owner, !strings.Contains(owner, " using ")})
		}
	}
	if len(result.Conflicts) == 0 {
		return err
	}
	return result
}

func managers(obj *unstructured.Unstructured) []string {
	var list []string
	for _, m := range obj.GetManagedFields() {
		if m.Subresource == "" {
			list = append(list, fmt.Sprintf("%q", m.Manager))
		}
	}
	if len(list) == 0 {
		return []string{"an unknown client"}
	}
	return list
}
