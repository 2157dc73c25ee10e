package session

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

var noon = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestRecordHasEndedSessionsWithTheirCauses(t *testing.T) {
	dir := t.TempDir()
	must(t, Finish(dir, noon, "nothing had begun"))
	must(t, Begin(dir, noon))
	must(t, Finish(dir, noon.Add(time.Minute), "it was killed"))
	must(t, Finish(dir, noon.Add(time.Hour), "it had ended before"))
	must(t, Begin(dir, noon.Add(2*time.Minute)))
	must(t, Cancel(dir))
	must(t, Begin(dir, noon.Add(2*time.Minute)))
	// The supervisor is killed, and the next one begins.
	must(t, Begin(dir, noon.Add(3*time.Minute)))
	got, err := Read(dir)
	must(t, err)
	want := Record{Version: 1, Session: 4, Open: true, Ends: []End{
		{Session: 1, At: noon.Add(time.Minute), Why: "it was killed"}, {Session: 3, At: noon.Add(3 * time.Minute), Why: Unnoticed},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestRecordKeepsTheNewestEnds(t *testing.T) {
	dir := t.TempDir()
	for range kept + 5 {
		must(t, Begin(dir, noon))
		must(t, Finish(dir, noon, "again"))
	}
	got, err := Read(dir)
	must(t, err)
	if len(got.Ends) != kept || got.Ends[kept-1].Session != kept+5 {
		t.Errorf("%d ends are kept, the last of session %d", len(got.Ends), got.Ends[len(got.Ends)-1].Session)
	}
}

func TestRecordContinuesNumbersWhenUnreadable(t *testing.T) {
	for name, text := range map[string]string{"no JSON": "{", "another version": `{"version":9,"session":7,"open":true}`} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			must(t, os.WriteFile(filepath.Join(dir, FileName), []byte(text), 0o644))
			if _, err := Read(dir); err == nil {
				t.Error("it was read")
			}
			if err := Begin(dir, noon); err == nil {
				t.Error("nobody is told that it could not be read")
			}
			got, err := Read(dir)
			must(t, err)
			if got.Session <= noon.Unix() || !got.Open || len(got.Ends) != 0 {
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestRecordReportsAMissingDirectory(t *testing.T) {
	if err := Begin(filepath.Join(t.TempDir(), "missing"), noon); err == nil {
		t.Error("a record was written nowhere")
	}
}

// The daemon's container can write in its domain's directory.
func TestReadRejectsLargeAndIrregularFiles(t *testing.T) {
	elsewhere := t.TempDir()
	must(t, Begin(elsewhere, noon))
	record, err := os.ReadFile(filepath.Join(elsewhere, FileName))
	must(t, err)
	for name, make := range map[string]func(path string) error{
		"a link":      func(path string) error { return os.Symlink(filepath.Join(elsewhere, FileName), path) },
		"a pipe":      func(path string) error { return unix.Mkfifo(path, 0o600) },
		"a directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"a long file": func(path string) error {
			return os.WriteFile(path, append(bytes.Repeat([]byte(" "), longestFile), record...), 0o600)
		},
	} {
		dir := t.TempDir()
		if err := make(filepath.Join(dir, FileName)); err != nil {
			t.Fatal(err)
		}
		if record, err := Read(dir); err == nil {
			t.Errorf("%s is read as %+v", name, record)
		}
	}
}
