// Package object manages one custom resource for Terraform: applied by server-side apply under one field manager, awaited by watch,
// deleted until it is gone.
package object

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
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
		return nil, fmt.Errorf("%s %s has another form than this provider knows: %w", obj.GetKind(), obj.GetName(), err)
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

// ExistsError says that an object to be created exists already and is not Terraform's.
type ExistsError struct {
	Kind     string
	Key      Key
	Managers []string
}

func (e *ExistsError) Error() string {
	return fmt.Sprintf("%s %s exists already, managed by %s", e.Kind, e.Key, strings.Join(e.Managers, ", "))
}

// Create applies an object that must not exist yet. It adopts an object that a run of Terraform left behind before it could record
// it in the state (known by the field manager). While the kind's CRD is missing Create waits for it, so that the order of resources
// in one apply does not matter. Errors: *ExistsError, *ConflictError, *MissingKindError, or the API server's.
func (s *Store) Create(ctx context.Context, obj *unstructured.Unstructured, force bool) (*unstructured.Unstructured, error) {
	key := Key{Namespace: obj.GetNamespace(), Name: obj.GetName()}
	found, err := s.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	switch {
	case found != nil && found.GetDeletionTimestamp() != nil:
		if _, err := s.Wait(ctx, key, Gone); err != nil {
			return nil, fmt.Errorf("wait for the old %s %s, which is being deleted: %w", s.kind.Name, key, err)
		}
	case found != nil && !managedByTerraform(found):
		return nil, &ExistsError{s.kind.Name, key, managers(found)}
	}
	applied, err := s.Apply(ctx, obj, force)
	if !isMissingKind(err) {
		return applied, err
	}
	if err := s.awaitKind(ctx); err != nil {
		return nil, err
	}
	return s.Apply(ctx, obj, force)
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

// Conflict is one field that someone else owns.
type Conflict struct{ Field, Manager string }

// ConflictError says which fields of an object others own.
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
			result.Conflicts = append(result.Conflicts, Conflict{cause.Field, owner})
		}
	}
	if len(result.Conflicts) == 0 {
		return err
	}
	return result
}

func managedByTerraform(obj *unstructured.Unstructured) bool {
	for _, m := range obj.GetManagedFields() {
		if m.Manager == FieldManager && m.Operation == metav1.ManagedFieldsOperationApply {
			return true
		}
	}
	return false
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
