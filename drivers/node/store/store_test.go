package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"gpufabric.io/drivers/node/atomicfile"
)

type thing struct {
	Name  string   `json:"name,omitempty"`
	Holds []string `json:"holds,omitempty"`
}

// kinds are the two forms of a file.
func kinds() map[string]Kind[thing] {
	check := func(name string, v thing) error {
		if v.Name != name {
			return fmt.Errorf("holds %q, its name says otherwise", v.Name)
		}
		return nil
	}
	return map[string]Kind[thing]{
		"with a header": {Name: "gpufabric-thing", Version: 2, Check: check},
		"plain":         {Name: "gpufabric-thing", Version: 2, Form: Object, Check: check},
	}
}

func open(t *testing.T, dir string, kind Kind[thing], writer atomicfile.Writer) (*Store[thing], []Unreadable) {
	t.Helper()
	s, unreadable, err := Open(Options{Directory: dir, Extension: ".thing", Writer: writer}, kind)
	if err != nil {
		t.Fatal(err)
	}
	return s, unreadable
}

func TestAStoredValueIsThereAtTheNextStart(t *testing.T) {
	for name, kind := range kinds() {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s, _ := open(t, dir, kind, atomicfile.Writer{})
			for _, v := range []thing{{Name: "b", Holds: []string{"x", `"sha256":"`}}, {Name: "a"}, {Name: "gone"}} {
				if err := s.Put(v.Name, v); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.Delete("gone"); err != nil {
				t.Fatal(err)
			}
			s, unreadable := open(t, dir, kind, atomicfile.Writer{})
			got := s.All()
			if len(unreadable) > 0 || len(got) != 2 || got[0].Name != "a" || !slices.Equal(got[1].Holds, []string{"x", `"sha256":"`}) {
				t.Errorf("read %v, %v", got, unreadable)
			}
			for _, bad := range []string{"", "../a", ".hidden", "a\x00"} {
				if s.Put(bad, thing{Name: bad}) == nil || s.Delete(bad) == nil {
					t.Errorf("the name %q is taken", bad)
				}
			}
		})
	}
}

func TestADamagedFileIsSetAsideAndNamedUntilSomebodyDeletesIt(t *testing.T) {
	for name, kind := range kinds() {
		t.Run(name, func(t *testing.T) {
			whole, err := kind.Encode(thing{Name: "a", Holds: []string{"gpu-0", "gpu-1"}})
			if err != nil {
				t.Fatal(err)
			}
			newer := kind
			newer.Version = 3
			later, err := newer.Encode(thing{Name: "a"})
			if err != nil {
				t.Fatal(err)
			}
			for what, data := range map[string][]byte{
				"empty": {}, "cut": whole[:len(whole)-4], "changed": bytes.Replace(whole, []byte("gpu-1"), []byte("gpu-2"), 1),
				"another's": bytes.ReplaceAll(whole, []byte("thing"), []byte("thong")),
				"newer":     later, "zeros": make([]byte, len(whole)),
			} {
				if what == "another's" && kind.Form == Object {
					continue // it does not name its kind
				}
				dir := t.TempDir()
				for round := range 2 {
					if err := os.WriteFile(filepath.Join(dir, "a.thing"), data, 0o600); err != nil {
						t.Fatal(err)
					}
					s, unreadable := open(t, dir, kind, atomicfile.Writer{})
					if len(unreadable) != 1 || unreadable[0].Name != "a" || s.Len() != 0 {
						t.Fatalf("%s, round %d: %v, %v", what, round, unreadable, s.All())
					}
					if errors.Is(unreadable[0].Err, ErrNewer) != (what == "newer") {
						t.Errorf("%s: %v", what, unreadable[0])
					}
					if aside, err := os.ReadFile(unreadable[0].MovedTo); err != nil || !bytes.Equal(aside, data) {
						t.Errorf("%s: aside lies %q, %v", what, aside, err)
					}
				}
				s, _ := open(t, dir, kind, atomicfile.Writer{})
				if names, err := s.Aside(); err != nil || !slices.Equal(names, []string{"a"}) {
					t.Errorf("%s: %v are named at the next start, %v", what, names, err)
				}
				if n := testutil.ToFloat64(s); n != 1 {
					t.Errorf("%s: the metric says %g", what, n)
				}
				if err := os.RemoveAll(s.AsideDirectory()); err != nil {
					t.Fatal(err)
				}
				if names, err := s.Aside(); err != nil || len(names) > 0 {
					t.Errorf("%s: %v are named after somebody deleted the file, %v", what, names, err)
				}
			}
		})
	}
}

func TestAKillAtAnyStepLeavesTheOldValueOrTheNewOne(t *testing.T) {
	for name, kind := range kinds() {
		for _, step := range atomicfile.Steps() {
			t.Run(name+" "+string(step), func(t *testing.T) {
				dir := t.TempDir()
				s, _ := open(t, dir, kind, atomicfile.Writer{})
				if err := s.Put("a", thing{Name: "a", Holds: []string{"old"}}); err != nil {
					t.Fatal(err)
				}
				s, _ = open(t, dir, kind, atomicfile.Writer{Before: func(at atomicfile.Step, _ string) error {
					if at == step {
						return atomicfile.Crash()
					}
					return nil
				}})
				if err := s.Put("a", thing{Name: "a", Holds: []string{"new"}}); err == nil {
					t.Fatal("the kill was not noticed")
				}
				s, unreadable := open(t, dir, kind, atomicfile.Writer{})
				v, ok := s.Get("a")
				if !ok || len(unreadable) > 0 || !slices.Equal(v.Holds, []string{"old"}) && !slices.Equal(v.Holds, []string{"new"}) {
					t.Errorf("read %v, %v", v, unreadable)
				}
				if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
					t.Errorf("left are %v, %v", entries, err)
				}
			})
		}
	}
}

// Before there were checksums, plain files were JSON objects with or without a version. Those programs read our files: they ignore
// unknown fields.
func TestAPlainFileIsReadByTheVersionBeforeAndReadsIts(t *testing.T) {
	kind := kinds()["plain"]
	for _, text := range []string{`{"version":1,"name":"a"}`, `{"name":"a"}`, "{\"version\":2,\"name\":\"a\"}\n"} {
		if v, err := kind.Read("a", []byte(text)); err != nil || v.Name != "a" {
			t.Errorf("%s: %v, %v", text, v, err)
		}
	}
	data, err := kind.Encode(thing{Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	var before struct {
		Version int `json:"version"`
		thing
	}
	if err := json.Unmarshal(data, &before); err != nil || before.Version != 2 || before.Name != "a" {
		t.Errorf("%s is read as %v, %v", data, before, err)
	}
}

// lists are the two forms of an array.
func lists() (Kind[[]thing], Kind[[]string]) {
	return Kind[[]thing]{Name: "gpufabric-things", Version: 2, Form: Objects},
		Kind[[]string]{Name: "gpufabric-words", Version: 2, Form: Strings}
}

func checkList[T any](t *testing.T, kind Kind[[]T], before string, values ...T) {
	t.Helper()
	text := func(v []T) string { return fmt.Sprintf("%v", v) }
	for n := range len(values) + 1 {
		data, err := kind.Encode(values[:n])
		if err != nil {
			t.Fatal(err)
		}
		if got, err := kind.Read("a", data); err != nil || text(got) != text(values[:n]) {
			t.Errorf("%s is read as %v, %v", data, got, err)
		}
		var old []T // as a program without seals reads it
		if err := json.Unmarshal(data, &old); err != nil || len(old) != n+1 || text(old[:n]) != text(values[:n]) {
			t.Errorf("the version before reads %s as %v, %v", data, old, err)
		}
		for i := range data {
			if got, err := kind.Read("a", data[:i]); err == nil {
				t.Errorf("%s, cut after %d bytes, is read as %v", data, i, got)
			}
		}
		for _, change := range [][2]string{{"gpu-1", "gpu-2"}, {"ersion\":1", "ersion\":2"}, {"version 1", "version 2"}} {
			changed := bytes.Replace(data, []byte(change[0]), []byte(change[1]), 1)
			if got, err := kind.Read("a", changed); err == nil && !bytes.Equal(changed, data) {
				t.Errorf("%s is read as %v", changed, got)
			}
		}
		newer := kind
		newer.Version = 3
		if data, err = newer.Encode(values[:n]); err != nil {
			t.Fatal(err)
		}
		if got, err := kind.Read("a", data); !errors.Is(err, ErrNewer) {
			t.Errorf("%s is read as %v, %v", data, got, err)
		}
	}
	if got, err := kind.Read("a", []byte(before)); err != nil || text(got) != text(values) {
		t.Errorf("%s is read as %v, %v", before, got, err)
	}
}

func TestAListIsReadByTheVersionBeforeAndReadsIts(t *testing.T) {
	objects, words := lists()
	checkList(t, objects, `[{"name":"gpu-1"},{"name":"b","holds":["]"]}]`, thing{Name: "gpu-1"}, thing{Name: "b", Holds: []string{"]"}})
	checkList(t, words, `["gpu-1","a \"sha256\""]`, "gpu-1", `a "sha256"`)
	if data, err := (Kind[[]string]{Name: "k", Version: 1, Form: Strings}).Encode(nil); err == nil {
		t.Errorf("null is written as the list %s", data)
	}
}

// A claim's MPS settings are in a directory with its sockets.
func TestAValueMayLieInADirectoryOfItsOwn(t *testing.T) {
	dir := t.TempDir()
	options := Options{Directory: dir, Extension: "/settings.json"}
	kind := kinds()["plain"]
	s, _, err := Open(options, kind)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b", "c"} {
		if err := s.Put(name, thing{Name: name}); err != nil {
			t.Fatal(err)
		}
	}
	for path, text := range map[string]string{"b/settings.json": "{", "c/.tmp-settings.json-1": "{", "other": "x", "d/log": "x"} {
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, filepath.Dir(path)), 0o755),
			os.WriteFile(filepath.Join(dir, path), []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	s, unreadable, err := Open(options, kind)
	if err != nil || len(unreadable) != 1 || unreadable[0].MovedTo != filepath.Join(dir, "unreadable/b.settings.json") || s.Len() != 2 {
		t.Errorf("%v, %v, %v", s.All(), unreadable, err)
	}
	if names, err := s.Aside(); err != nil || !slices.Equal(names, []string{"b"}) {
		t.Errorf("set aside are %v, %v", names, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "c/.tmp-settings.json-1")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what a write left that was cut off is still there: %v", err)
	}
}

// Its owner assumes the worst of the file's content for as long as the file exists.
func TestAFileThatCannotBeSetAsideIsNotOverwritten(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "faults.json")
	if err := errors.Join(os.WriteFile(path, []byte("{"), 0o600), os.WriteFile(filepath.Join(dir, "unreadable"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	f, unreadable, err := OpenFile(path, kinds()["plain"], 0, atomicfile.Writer{})
	if err != nil || len(unreadable) != 1 || unreadable[0].MovedTo != "" {
		t.Fatal(unreadable, err)
	}
	if err := f.Put(thing{Name: "faults"}); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("writing: %v", err)
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != "{" || !f.Aside() {
		t.Errorf("the file holds %q, %v; aside: %v", data, err, f.Aside())
	}
}

func TestOnlyItsOwnFilesAreAStores(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"other.thing", ".tmp-other.thing-1", ".tmp-mine-1"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, unreadable, err := Open(Options{Directory: dir, Extension: ".thing", Only: []string{"mine"}}, kinds()["plain"])
	if err != nil || len(unreadable) > 0 {
		t.Fatal(unreadable, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, entry := range entries {
		left = append(left, entry.Name())
	}
	if want := []string{".tmp-other.thing-1", "other.thing"}; !slices.Equal(left, want) {
		t.Errorf("left are %v, want %v", left, want)
	}
}

// FuzzRead covers every form, and so every kind. Each input is either read or refused. What was read can be written and read again.
func FuzzRead(f *testing.F) {
	for _, kind := range kinds() {
		data, err := kind.Encode(thing{Name: "a", Holds: []string{"b"}})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(`{"version":1,"sha256":"x"}`))
	f.Add([]byte("gpufabric-thing 1 sha256:\n"))
	objects, words := lists()
	for _, text := range []string{`[{"name":"a"}]`, `["a","version 1 sha256:x"]`, `[]`, `[{"version":1,"sha256":"x"}]`} {
		f.Add([]byte(text))
	}
	if data, err := words.Encode([]string{"a"}); err == nil {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		rereadList(t, objects, data)
		rereadList(t, words, data)
		for what, kind := range kinds() {
			kind.Check = nil
			v, err := kind.Read("a", data)
			if err != nil {
				continue
			}
			again, err := kind.Encode(v)
			if err != nil {
				t.Fatalf("%s: %q is read as %v, which cannot be written: %v", what, data, v, err)
			}
			if w, err := kind.Read("a", again); err != nil || w.Name != v.Name || strings.Join(w.Holds, "\x00") != strings.Join(v.Holds, "\x00") {
				t.Fatalf("%s: %q is read as %v, and again as %v, %v", what, data, v, w, err)
			}
		}
	})
}

func rereadList[T any](t *testing.T, kind Kind[[]T], data []byte) {
	v, err := kind.Read("a", data)
	if err != nil || v == nil {
		return
	}
	again, err := kind.Encode(v)
	if err != nil {
		t.Fatalf("%q is read as %v, which cannot be written: %v", data, v, err)
	}
	if w, err := kind.Read("a", again); err != nil || fmt.Sprint(v) != fmt.Sprint(w) {
		t.Fatalf("%q is read as %v, and again as %v, %v", data, v, w, err)
	}
}
