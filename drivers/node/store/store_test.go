package store

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"gpufabric.io/drivers/node/atomicfile"
)

type thing struct {
	Name  string   `json:"name,omitempty"`
	Holds []string `json:"holds,omitempty"`
}

func kind() Format[thing] {
	return Format[thing]{Name: "gpufabric-thing", Version: 2, Check: func(name string, v thing) error {
		if v.Name != name {
			return fmt.Errorf("holds %q, its name says otherwise", v.Name)
		}
		return nil
	}}
}

func open(t *testing.T, dir string, kind Format[thing], writer atomicfile.Writer) (*Store[thing], []Unreadable) {
	t.Helper()
	s, unreadable, err := Open(Options{Directory: dir, Extension: ".thing", Writer: writer}, kind)
	if err != nil {
		t.Fatal(err)
	}
	return s, unreadable
}

func TestStoreReturnsValueAtNextStart(t *testing.T) {
	dir := t.TempDir()
	s, _ := open(t, dir, kind(), atomicfile.Writer{})
	for _, v := range []thing{{Name: "b", Holds: []string{"x", `"sha256":"`}}, {Name: "a"}, {Name: "gone"}} {
		if err := s.Put(v.Name, v); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Delete("gone"); err != nil {
		t.Fatal(err)
	}
	s, unreadable := open(t, dir, kind(), atomicfile.Writer{})
	got := s.All()
	if len(unreadable) > 0 || len(got) != 2 || got[0].Name != "a" || !slices.Equal(got[1].Holds, []string{"x", `"sha256":"`}) {
		t.Errorf("read %v, %v", got, unreadable)
	}
	for _, bad := range []string{"", "../a", ".hidden", "a\x00"} {
		if s.Put(bad, thing{Name: bad}) == nil || s.Delete(bad) == nil {
			t.Errorf("the name %q is taken", bad)
		}
	}
}

func TestOpenFileSetsADamagedFileAsideUntilItIsDeleted(t *testing.T) {
	whole, err := kind().Encode(thing{Name: "a", Holds: []string{"gpu-0", "gpu-1"}})
	if err != nil {
		t.Fatal(err)
	}
	newer := kind()
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
		dir := t.TempDir()
		for round := range 2 {
			if err := os.WriteFile(filepath.Join(dir, "a.thing"), data, 0o600); err != nil {
				t.Fatal(err)
			}
			s, unreadable := open(t, dir, kind(), atomicfile.Writer{})
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
		s, _ := open(t, dir, kind(), atomicfile.Writer{})
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
}

func TestFileHasTheOldValueOrTheNewOneWhenKilledAtAnyStep(t *testing.T) {
	for _, step := range atomicfile.Steps() {
		t.Run(string(step), func(t *testing.T) {
			dir := t.TempDir()
			s, _ := open(t, dir, kind(), atomicfile.Writer{})
			if err := s.Put("a", thing{Name: "a", Holds: []string{"old"}}); err != nil {
				t.Fatal(err)
			}
			s, _ = open(t, dir, kind(), atomicfile.Writer{Before: func(at atomicfile.Step, _ string) error {
				if at == step {
					return atomicfile.Crash()
				}
				return nil
			}})
			if err := s.Put("a", thing{Name: "a", Holds: []string{"new"}}); err == nil {
				t.Fatal("the kill was not noticed")
			}
			s, unreadable := open(t, dir, kind(), atomicfile.Writer{})
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

// A claim's MPS settings are in a directory with its sockets.
func TestStoreSupportsDirectoryPerValue(t *testing.T) {
	dir := t.TempDir()
	options := Options{Directory: dir, Extension: "/settings.json"}
	s, _, err := Open(options, kind())
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
	s, unreadable, err := Open(options, kind())
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
// A plugin that starts without a file descriptor left must not start without its records: their devices would have no holder.
func TestOpenFailsWhenAFileCannotBeReadAtTheMoment(t *testing.T) {
	for _, extension := range []string{".thing", "/thing.json"} {
		dir := t.TempDir()
		options := Options{Directory: dir, Extension: extension}
		s, _, err := Open(options, kind())
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"a", "b"} {
			if err := s.Put(name, thing{Name: name}); err != nil {
				t.Fatal(err)
			}
		}
		for _, lack := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM} {
			options.read = func(path string) ([]byte, error) { return nil, &os.PathError{Op: "open", Path: path, Err: lack} }
			if _, unreadable, err := Open(options, kind()); !errors.Is(err, lack) || len(unreadable) > 0 {
				t.Errorf("%v: %v, set aside: %v", lack, err, unreadable)
			}
		}
		options.read = nil
		again, unreadable, err := Open(options, kind())
		if err != nil || len(unreadable) > 0 || len(again.All()) != 2 {
			t.Errorf("afterwards: %v, %v, %v", again.All(), unreadable, err)
		}
	}
}

func TestStoreKeepsFileThatCannotBeSetAside(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "faults.json")
	if err := errors.Join(os.WriteFile(path, []byte("{"), 0o600), os.WriteFile(filepath.Join(dir, "unreadable"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	f, unreadable, err := OpenFile(path, kind(), 0, atomicfile.Writer{})
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

func TestStoreIgnoresOtherFiles(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"other.thing", ".tmp-other.thing-1", ".tmp-mine-1"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, unreadable, err := Open(Options{Directory: dir, Extension: ".thing", Only: []string{"mine"}}, kind())
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

// Each input is either read or refused. A value that was read can be written and read again.
func FuzzRead(f *testing.F) {
	data, err := kind().Encode(thing{Name: "a", Holds: []string{"b"}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`{"kind":"gpufabric-thing","version":1,"sha256":"x","value":null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		kind := kind()
		kind.Check = nil
		v, err := kind.Read("a", data)
		if err != nil {
			return
		}
		again, err := kind.Encode(v)
		if err != nil {
			t.Fatalf("%q is read as %v, which cannot be written: %v", data, v, err)
		}
		if w, err := kind.Read("a", again); err != nil || w.Name != v.Name || strings.Join(w.Holds, "\x00") != strings.Join(v.Holds, "\x00") {
			t.Fatalf("%q is read as %v, and again as %v, %v", data, v, w, err)
		}
	})
}

// Every byte of a file counts.
func TestReadRejectsFileWhenItIsCutOrChanged(t *testing.T) {
	data, err := kind().Encode(thing{Name: "a", Holds: []string{"gpu-1"}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range data {
		if v, err := kind().Read("a", data[:i]); err == nil {
			t.Errorf("cut after %d bytes, it is read as %v", i, v)
		}
	}
	for _, change := range [][2]string{{"gpu-1", "gpu-2"}, {`"version":2`, `"version":1`}, {"gpufabric-thing", "gpufabric-other"}} {
		changed := bytes.Replace(data, []byte(change[0]), []byte(change[1]), 1)
		if v, err := kind().Read("a", changed); err == nil || bytes.Equal(changed, data) {
			t.Errorf("%s is read as %v", changed, v)
		}
	}
}

func TestStoreWritesAfterItsDirectoryWasRemoved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "things")
	s, _ := open(t, dir, kind(), atomicfile.Writer{})
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := s.Put("a", thing{Name: "a"}); err != nil {
		t.Fatal(err)
	}
	if s, unreadable := open(t, dir, kind(), atomicfile.Writer{}); len(unreadable) > 0 || len(s.All()) != 1 {
		t.Errorf("read %v, %v", s.All(), unreadable)
	}
}
