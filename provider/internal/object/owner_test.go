package object

import (
	"context"
	"errors"
	"os"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/provider/internal/apiserver"
	"gpufabric.io/provider/internal/cluster"
)

// TestStoreChangesOnlyObjectsOfItsState tries what states do to each other's objects, against a real API server.
func TestStoreChangesOnlyObjectsOfItsState(t *testing.T) {
	if testing.Short() {
		t.Skip("runs an API server; -short does not")
	}
	server := apiserver.Start(t)
	client, err := cluster.NewConnection(cluster.Settings{ConfigPaths: []string{server.Kubeconfig}}).Client(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	store := NewStore(client, Kind{Version: "v1", Name: "ConfigMap", Plural: "configmaps", Namespaced: true})
	dead := func(int) bool { return false }
	first, other := newOrigin("first", 1, dead), newOrigin("other", 2, dead)
	config := func(name, value string) *unstructured.Unstructured {
		obj := store.New(Key{Namespace: "default", Name: name})
		obj.Object["data"] = map[string]any{"value": value}
		return obj
	}
	create := func(t *testing.T, name string, origin *Origin) (*unstructured.Unstructured, func(context.Context) error) {
		t.Helper()
		made, settle, err := store.Create(t.Context(), config(name, "a"), origin, false)
		if err != nil {
			t.Fatal(err)
		}
		return made, settle
	}
	value := func(t *testing.T, name string) string {
		t.Helper()
		obj, err := store.Get(t.Context(), Key{Namespace: "default", Name: name})
		if err != nil || obj == nil {
			t.Fatalf("%s: %v, error %v", name, obj, err)
		}
		text, _, _ := unstructured.NestedString(obj.Object, "data", "value")
		return text
	}
	t.Run("an object of another state is refused and stays", func(t *testing.T) {
		_, settle := create(t, "owned", first)
		if err := settle(t.Context()); err != nil {
			t.Fatal(err)
		}
		for name, origin := range map[string]*Origin{"another directory": other, "the same directory": newOrigin("first", 3, dead)} {
			_, _, err := store.Create(t.Context(), config("owned", "b"), origin, true)
			var exists *ExistsError
			if !errors.As(err, &exists) || exists.Owner == "" || exists.Creating || value(t, "owned") != "a" {
				t.Errorf("from %s: error %v, value %s; want it refused and unchanged", name, err, value(t, "owned"))
			}
		}
	})
	t.Run("a creation that is under way is refused, and one that was killed is adopted in its directory alone", func(t *testing.T) {
		create(t, "cut-off", first)
		for name, origin := range map[string]*Origin{"another directory": other, "the process itself": first,
			"a second live process": newOrigin("first", 3, func(int) bool { return true })} {
			if _, _, err := store.Create(t.Context(), config("cut-off", "b"), origin, true); err == nil {
				t.Errorf("from %s: adopted", name)
			}
		}
		adopted, settle, err := store.Create(t.Context(), config("cut-off", "b"), newOrigin("first", 3, dead), false)
		if err != nil || value(t, "cut-off") != "b" {
			t.Fatalf("error %v, value %s; want it adopted", err, value(t, "cut-off"))
		}
		if err := settle(t.Context()); err != nil {
			t.Fatal(err)
		}
		left, err := store.Get(t.Context(), Key{Namespace: "default", Name: "cut-off"})
		if err != nil || left.GetAnnotations()[CreationAnnotation] != "" || !RecordOf(adopted).Holds(left) {
			t.Errorf("annotations %v: want the mark gone and the owner kept", left.GetAnnotations())
		}
	})
	t.Run("an object that others made anew is neither changed nor deleted", func(t *testing.T) {
		made, _ := create(t, "anew", first)
		record, key := RecordOf(made), Key{Namespace: "default", Name: "anew"}
		if _, err := store.Delete(t.Context(), key, Record{}); err != nil {
			t.Fatal(err)
		}
		theirs := config("anew", "theirs")
		configs := server.Dynamic.Resource(store.kind.GVR()).Namespace("default")
		if _, err := configs.Create(t.Context(), theirs, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		var replaced *ReplacedError
		if _, _, err := store.Update(t.Context(), config("anew", "b"), record, true); !errors.As(err, &replaced) {
			t.Errorf("update: error %v", err)
		}
		if _, err := store.Delete(t.Context(), key, record); !errors.As(err, &replaced) {
			t.Errorf("delete: error %v", err)
		}
		if got := value(t, "anew"); got != "theirs" {
			t.Errorf("value %s", got)
		}
	})
	t.Run("an object that another state imported is the other state's from its first change", func(t *testing.T) {
		made, settle := create(t, "given", first)
		if err := settle(t.Context()); err != nil {
			t.Fatal(err)
		}
		key := Key{Namespace: "default", Name: "given"}
		var held *HeldError
		if _, err := store.kind.Import(made); !errors.As(err, &held) || held.Owner != made.GetAnnotations()[OwnerAnnotation] {
			t.Fatalf("import: error %v, want it refused with the owner", err)
		}
		patch := []byte(`{"metadata":{"annotations":{"` + OwnerAnnotation + `":"` + Released + `"}}}`)
		byHand := metav1.PatchOptions{FieldManager: "kubectl"}
		released, err := store.resource(key).Patch(t.Context(), key.Name, types.MergePatchType, patch, byHand)
		if err != nil {
			t.Fatal(err)
		}
		record, err := store.kind.Import(released)
		if err != nil || !record.Holds(released) || RecordOf(made).Holds(released) {
			t.Fatalf("import: record %v, error %v; want it held by the importing state alone", record, err)
		}
		applied, reverted, err := store.Update(t.Context(), config("given", "b"), record, false)
		if err != nil || len(reverted) != 0 || !record.Holds(applied) || record.Follow(applied).Unmarked {
			t.Errorf("update: %v, reverted %v, error %v", applied, reverted, err)
		}
		var replaced *ReplacedError
		if _, err := store.Delete(t.Context(), key, RecordOf(made)); !errors.As(err, &replaced) {
			t.Errorf("delete by the first state: error %v", err)
		}
	})
	t.Run("an object that a backup restored with its owner is still the state's", func(t *testing.T) {
		made, _ := create(t, "restored", first)
		record := RecordOf(made)
		record.UID = "another"
		if applied, _, err := store.Update(t.Context(), config("restored", "b"), record, false); err != nil || applied == nil {
			t.Errorf("error %v", err)
		}
	})
}

func TestRecordMatchesByOwnerElseByUID(t *testing.T) {
	object := func(uid, mark string) *unstructured.Unstructured {
		obj := &unstructured.Unstructured{Object: map[string]any{}}
		obj.SetUID(types.UID(uid))
		if mark != "" {
			annotate(obj, OwnerAnnotation, mark)
		}
		return obj
	}
	own, imported := Record{UID: "1", Owner: "a"}, Record{UID: "1", Owner: "a", Unmarked: true}
	for _, test := range []struct {
		name          string
		obj           *unstructured.Unstructured
		own, imported bool
	}{
		{"the mark", object("1", "a"), true, true},
		{"the mark under another UID, as a backup restores it", object("2", "a"), true, true},
		{"another mark", object("1", "b"), false, false},
		{"no mark", object("1", ""), true, true},
		{"no mark under another UID", object("2", ""), false, false},
		{"a released mark", object("1", Released), false, true},
		{"a released mark under another UID", object("2", Released), false, false},
	} {
		if own.Holds(test.obj) != test.own || imported.Holds(test.obj) != test.imported {
			t.Errorf("%s: held %t, and %t by a state that imported it; want %t and %t", test.name, own.Holds(test.obj), imported.Holds(test.obj),
				test.own, test.imported)
		}
	}
	if record := own.Follow(object("2", "")); record != (Record{UID: "2", Owner: "a"}) {
		t.Errorf("an object that lost its mark is recorded as %v: want the owner kept", record)
	}
}

func TestOriginTakesAMarkForAbandonedOnlyWhenItsProcessHasEnded(t *testing.T) {
	o := NewOrigin()
	mark, end := o.Begin("owner")
	if o.Abandoned(mark) {
		t.Error("a creation under way counts as abandoned")
	}
	end()
	if !o.Abandoned(mark) {
		t.Error("a creation that has ended does not count as abandoned")
	}
	for _, mark := range []string{"", "x", "a.b.c", "elsewhere.1.owner"} {
		if o.Abandoned(mark) {
			t.Errorf("%q counts as abandoned", mark)
		}
	}
	if !Alive(os.Getpid()) || Alive(1<<22+1) { // above the largest process id of Linux
		t.Error("Alive is wrong")
	}
}
