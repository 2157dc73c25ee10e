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
		"plain":         {Name: "gpufabric-thing", Version: 2, Plain: true, Check: check},
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

func TestWhatIsKeptIsThereAtTheNextStart(t *testing.T) {
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
				if what == "another's" && kind.Plain {
					continue // it says nothing of its kind
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

// Before there were checksums, plain files were JSON objects with a version or without one. Programs of then read ours: they pass over
// fields that they do not know.
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

// FuzzRead is for every kind: whatever lies on the disk is read or refused, and what is read is written so that it is read again.
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
	f.Fuzz(func(t *testing.T, data []byte) {
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
