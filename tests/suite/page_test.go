package suite

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestPageKeepsTheRecordOfEachPart(t *testing.T) {
	began := time.Date(2026, 11, 26, 12, 30, 0, 0, time.UTC)
	parts := []Part{{Name: "one", Command: "make one | cat"}, {Name: "two", Command: "make two"}, {Name: "three", Command: "make three"}}
	records := map[string]Record{
		"one": RecordOf(Result{Part: "one", Began: began, Took: 90 * time.Second}, "abc1234"),
		"two": {Part: "two", Commit: "abc1234-dirty", Began: began, Took: time.Hour, Result: "failed: exit status 2; its last lines: FAIL"},
	}
	got, err := parse(Render(parts, records))
	if err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(got, records) {
		t.Errorf("the page gives %v, want %v", got, records)
	}
}

func TestPageHasOneLineForAFailureOfAnyText(t *testing.T) {
	records := map[string]Record{"one": RecordOf(Result{Part: "one", Failure: "a | `b` [c](d) <e>\nf"}, "abc")}
	page := Render([]Part{{Name: "one", Command: "make one"}}, records)
	if got, err := parse(page); err != nil || got["one"].Result != "failed: a / 'b' (c)(d) (e) f" {
		t.Errorf("got %v, %v of\n%s", got, err, page)
	}
}

func TestPageReaderNamesTheDamagedLine(t *testing.T) {
	page := Render([]Part{{Name: "one", Command: "make one"}}, map[string]Record{"one": RecordOf(Result{Part: "one"}, "abc")})
	for damaged, want := range map[string]string{
		"":                      "has no table",
		page + "<<<<<<< HEAD\n": "\"<<<<<<< HEAD\" is not the line of a part",
		page[:len(page)-3]:      "is not the line of a part",
		strings.Replace(page, "0001-01-01", "0001-99-01", 1): "is not a time",
		strings.Replace(page, "0.0 |", "... |", 1):           "is not a number of minutes",
	} {
		if _, err := parse(damaged); err == nil || !strings.Contains(err.Error(), want) || strings.Count(err.Error(), "\n") > 0 {
			t.Errorf("got %v, want a line with %q", err, want)
		}
	}
}

func TestPartIsNotRunAgainOnlyWhereItPassedAtTheCommit(t *testing.T) {
	for name, test := range map[string]struct {
		record Record
		commit string
		want   bool
	}{
		"the same":      {Record{Commit: "abc", Result: passed}, "abc", true},
		"another":       {Record{Commit: "abc", Result: passed}, "abd", false},
		"a failure":     {Record{Commit: "abc", Result: "failed: exit status 1"}, "abc", false},
		"changed files": {Record{Commit: "abc-dirty", Result: passed}, "abc-dirty", false},
		"never run":     {Record{}, "abc", false},
	} {
		if got := test.record.Passed(test.commit); got != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

func TestCommitSkipsChangesOfPage(t *testing.T) {
	root := t.TempDir()
	run := func(args ...string) string {
		t.Helper()
		out, err := git(t.Context(), root, append([]string{"-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false"}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	commit := func() string {
		t.Helper()
		got, err := Commit(t.Context(), root)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if _, err := exec.LookPath("git"); err != nil {
		t.Fatal("the test needs git, as the build does")
	}
	run("init", "--quiet")
	write("code.go", "package code\n")
	run("add", ".")
	run("commit", "--quiet", "--message", "code")
	first := commit()
	if first != run("rev-parse", "--short", "HEAD") {
		t.Errorf("commit %q", first)
	}
	if err := Write(root, Long(), nil); err == nil {
		t.Fatal("the page was written into a directory that is not there")
	}
	write(Page, "")
	if err := Write(root, Long(), nil); err != nil {
		t.Fatal(err)
	}
	if got := commit(); got != first {
		t.Errorf("with the page written: %q, want %q", got, first)
	}
	run("add", ".")
	run("commit", "--quiet", "--message", "page")
	if got := commit(); got != first {
		t.Errorf("with the page committed: %q, want %q", got, first)
	}
	write("code.go", "package other\n")
	if got := commit(); got != first+dirty {
		t.Errorf("with a change: %q", got)
	}
}
