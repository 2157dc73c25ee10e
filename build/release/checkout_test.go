package release

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCheckVersionTakesVersionsThatTagsCanHave(t *testing.T) {
	for _, version := range []string{"0.1.0", "1.22.333", "0.1.0-rc.1"} {
		if err := CheckVersion(version); err != nil {
			t.Error(err)
		}
	}
	for _, version := range []string{"", "v0.1.0", "0.1", "1", "0.1.0+build", "01.2.3", "0.1.0-", "0.1.0 ",
		"a3f2c1", "0.1.0-2-gabc-dirty/x", "../0.1.0", "1.0.0-" + strings.Repeat("x", 100)} {
		if err := CheckVersion(version); err == nil || !strings.Contains(err.Error(), "such as 0.1.0") {
			t.Errorf("%q: error %v, want one with an example", version, err)
		}
	}
}

// checkout is a repository with one commit.
func checkout(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	put(t, filepath.Join(dir, "a/file"), "content\n")
	must(t, os.Symlink("file", filepath.Join(dir, "a/link")))
	gitIn(t.Context(), t, dir, "init", "--quiet")
	gitIn(t.Context(), t, dir, "add", ".")
	gitIn(t.Context(), t, dir, "commit", "--quiet", "-m", "first")
	return dir
}

func TestHeadRefusesUncommittedChanges(t *testing.T) {
	for name, change := range map[string]string{"a/file": "changed", "new": "not added"} {
		dir := checkout(t)
		put(t, filepath.Join(dir, name), change)
		if _, err := Head(t.Context(), dir, "0.1.0"); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s changed: error %v, want one that names it", name, err)
		}
	}
}

func TestHeadRefusesTagOfAnotherCommit(t *testing.T) {
	dir := checkout(t)
	gitIn(t.Context(), t, dir, "tag", "-a", "-m", "x", "v0.1.0")
	gitIn(t.Context(), t, dir, "tag", "v0.2.0")
	for _, version := range []string{"0.1.0", "0.2.0"} {
		if _, err := Head(t.Context(), dir, version); err != nil {
			t.Errorf("tag of HEAD: %v", err)
		}
	}
	gitIn(t.Context(), t, dir, "commit", "--quiet", "--allow-empty", "-m", "second")
	for _, version := range []string{"0.1.0", "0.2.0"} {
		if _, err := Head(t.Context(), dir, version); err == nil || !strings.Contains(err.Error(), "tag v"+version+" exists") {
			t.Errorf("tag of an earlier commit: error %v", err)
		}
	}
	commit, err := Head(t.Context(), dir, "0.3.0")
	must(t, err)
	if len(commit.Hash) != 40 || commit.Time.IsZero() {
		t.Errorf("commit %+v", commit)
	}
}

func TestExportWritesOnlyTheCommit(t *testing.T) {
	dir, out := checkout(t), t.TempDir()
	commit, err := Head(t.Context(), dir, "0.1.0")
	must(t, err)
	put(t, filepath.Join(dir, "a/file"), "changed later")
	put(t, filepath.Join(dir, "bin/program"), "built")
	must(t, Export(t.Context(), dir, commit, out))
	if got := string(get(t, filepath.Join(out, "a/link"))); got != "content\n" {
		t.Errorf("a/link leads to %q", got)
	}
	if _, err := os.Stat(filepath.Join(out, "bin")); err == nil {
		t.Error("what lies in the checkout and in no commit was exported")
	}
}

func TestMakeRefusesBeforeItBuilds(t *testing.T) {
	dir, keys := checkout(t), t.TempDir()
	put(t, filepath.Join(keys, signingKey), "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
	for _, test := range []struct {
		name  string
		order Order
		want  string
	}{
		{"no version", Order{Keys: "none"}, "needs a semantic version"},
		{"no keys", Order{Version: "0.1.0"}, "KEYS=none"},
		{"a directory without keys", Order{Version: "0.1.0", Keys: dir}, "no key signing.key"},
		{"a directory that is not there", Order{Version: "0.1.0", Keys: filepath.Join(dir, "none")},
			"`make release-keys KEYS=DIRECTORY` makes new ones"},
		{"a key that is none", Order{Version: "0.1.0", Keys: keys}, signingKey},
	} {
		test.order.Root, test.order.Out = dir, filepath.Join(dir, "dist")
		err := Make(t.Context(), test.order, func(string) {}, io.Discard)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want one with %q", test.name, err, test.want)
		}
		if _, err := os.Stat(test.order.Out); err == nil {
			t.Errorf("%s: something was written", test.name)
		}
	}
}
