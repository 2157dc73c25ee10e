package attacks

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpufabric.io/build/repository"
)

// fewest is the least number of attacks.
const fewest = 180

func TestPageHasAttacksAndEachHasATest(t *testing.T) {
	root, err := repository.Root()
	if err != nil {
		t.Fatal(err)
	}
	list, err := Collect(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(list) < fewest {
		t.Errorf("%d attacks, want %d at least", len(list), fewest)
	}
}

func TestCollectRejectsRowOfAnotherForm(t *testing.T) {
	for name, c := range map[string]struct{ rows, want string }{
		"without a sentence": {"| <a id=\"first\"></a>first |  | `TestA` |\n", "docs/reports/attacks.md:3: write"},
		"two names":          {"| <a id=\"first\"></a>second | A tenant tries | `TestA` |\n", "docs/reports/attacks.md:3: write"},
		"no such test":       {"| <a id=\"first\"></a>first | A tenant tries | `TestB` |\n", "a has no test TestB"},
		"a name twice": {"| <a id=\"first\"></a>first | A tenant tries | `TestA` |\n| <a id=\"first\"></a>first | A tenant tries | `TestA` |\n",
			"first occurs twice"},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			write(t, root, "a/a_test.go", "package a\n\nfunc TestA(t *testing.T) {}\n")
			write(t, root, Page, "## `a`\n\n"+c.rows)
			if _, err := Collect(root); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func write(t *testing.T, root, name, content string) {
	t.Helper()
	path := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}
