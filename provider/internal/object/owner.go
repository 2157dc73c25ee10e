package object

import (
	"crypto/rand"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// Annotations by which an object belongs to one Terraform state.
const (
	// OwnerAnnotation holds a random text that the private data of the owning state holds too.
	OwnerAnnotation = "gpufabric.io/terraform-owner"
	// CreationAnnotation holds an Origin as long as the object's creation is not over, and so may not be in a state.
	CreationAnnotation = "gpufabric.io/terraform-creation"
)

// IsOwn reports whether an annotation is one of this package's, which a configuration does not set.
func IsOwn(annotation string) bool {
	return annotation == OwnerAnnotation || annotation == CreationAnnotation
}

// NewOwner returns a random text, 26 characters, that no other state has.
func NewOwner() string { return rand.Text() }

// Record identifies an object in the private data of a state. The zero value is that of a state that recorded none yet.
type Record struct {
	UID   types.UID `json:"uid"`
	Owner string    `json:"owner,omitempty"`
}

// RecordOf returns the record of an object that is taken into a state.
func RecordOf(obj *unstructured.Unstructured) Record {
	return Record{UID: obj.GetUID(), Owner: obj.GetAnnotations()[OwnerAnnotation]}
}

// Holds reports whether obj is the object of the record: it has the recorded owner, or, if one of the two has none, the recorded UID. So an
// object that a backup restored with its annotations is still the state's, and one that another client created under the same name is not.
func (r Record) Holds(obj *unstructured.Unstructured) bool {
	if r.UID == "" {
		return true
	}
	if owner := obj.GetAnnotations()[OwnerAnnotation]; owner != "" && r.Owner != "" {
		return owner == r.Owner
	}
	return obj.GetUID() == r.UID
}

// ReplacedError means that the object of a name is no longer the one that a state recorded.
type ReplacedError struct {
	Kind   string
	Key    Key
	Record Record
	Found  Record
	// Managers are the field managers of the object that was found.
	Managers []string
}

func (e *ReplacedError) Error() string {
	return fmt.Sprintf("%s %s is not the object in the state (UID %s): it has UID %s", e.Kind, e.Key, e.Record.UID, e.Found.UID)
}

func (s *Store) replaced(key Key, record Record, found *unstructured.Unstructured) *ReplacedError {
	return &ReplacedError{s.kind.Name, key, record, RecordOf(found), managers(found)}
}

// exactly limits a deletion to the object as it was read.
func exactly(obj *unstructured.Unstructured) *metav1.Preconditions {
	uid, version := obj.GetUID(), obj.GetResourceVersion()
	return &metav1.Preconditions{UID: &uid, ResourceVersion: &version}
}

func annotate(obj *unstructured.Unstructured, key, value string) {
	annotations := obj.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[key] = value
	obj.SetAnnotations(annotations)
}
