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

// Released is the value of OwnerAnnotation by which a person ends the hold of the state that has the object.
const Released = "released"

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
	// Unmarked is whether the object was imported without a mark, and not changed since, so that it does not have Owner yet.
	Unmarked bool `json:"unmarked,omitempty"`
}

// RecordOf returns the record of an object as it is marked.
func RecordOf(obj *unstructured.Unstructured) Record {
	return Record{UID: obj.GetUID(), Owner: obj.GetAnnotations()[OwnerAnnotation]}
}

// Import returns the record of an object that a state imports, with an owner that the state's first change writes to the object. An
// object with the mark of a state is a *HeldError: that state would go on to change and delete it.
func (k Kind) Import(obj *unstructured.Unstructured) (Record, error) {
	if mark := obj.GetAnnotations()[OwnerAnnotation]; mark != "" && mark != Released {
		return Record{}, &HeldError{k, Key{Namespace: obj.GetNamespace(), Name: obj.GetName()}, mark}
	}
	return Record{UID: obj.GetUID(), Owner: NewOwner(), Unmarked: true}, nil
}

// Follow returns the record of an object that the record holds, as it was read or written: it may have a new UID, or the mark by now.
func (r Record) Follow(obj *unstructured.Unstructured) Record {
	if now := RecordOf(obj); now.Owner != "" && now.Owner != Released {
		return now
	}
	r.UID = obj.GetUID()
	return r
}

// Holds reports whether obj is the object of the record: it has the recorded owner, or the recorded UID and no owner. So an object that a
// backup restored with its annotations is still the state's, and one that another client created under the same name is not. A mark that
// was released ends the state's hold; a state that imported the object then, and has not changed it yet, holds it by its UID.
func (r Record) Holds(obj *unstructured.Unstructured) bool {
	same := obj.GetUID() == r.UID
	switch mark := obj.GetAnnotations()[OwnerAnnotation]; {
	case r.UID == "":
		return true
	case mark == Released:
		return r.Unmarked && same
	case mark != "" && r.Owner != "":
		return mark == r.Owner
	}
	return same
}

// HeldError means that an object to be imported has the mark of a state.
type HeldError struct {
	Kind  Kind
	Key   Key
	Owner string
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("%s %s belongs to a Terraform state: its annotation %s is %q", e.Kind.Name, e.Key, OwnerAnnotation, e.Owner)
}

// Release returns the command that releases the object's mark.
func (e *HeldError) Release() string {
	return releaseCommand(e.Kind, e.Key)
}

func releaseCommand(kind Kind, key Key) string {
	command := "kubectl annotate --overwrite " + kind.CRD() + " " + key.Name
	if key.Namespace != "" {
		command += " --namespace " + key.Namespace
	}
	return command + " " + OwnerAnnotation + "=" + Released
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
