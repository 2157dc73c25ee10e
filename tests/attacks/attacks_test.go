package attacks

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpufabric.io/build/repository"
)

// fewest is the least number of attacks.
const fewest = 40

func TestThereAreFortyAttacksAndEachHasATest(t *testing.T) {
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

func TestAnAttackIsFoundAboveATestAndInside(t *testing.T) {
	root := t.TempDir()
	write(t, root, "a/a_test.go", "package a\n\n//"+"attack:first A tenant tries\n"+
		"func TestA(t *testing.T) {\n\t//"+"attack:second-one A tenant tries again\n\t_ = 1\n}\n")
	list, err := Collect(root)
	if err != nil {
		t.Fatal(err)
	}
	want := []Attack{{"first", "A tenant tries", "a", "TestA"}, {"second-one", "A tenant tries again", "a", "TestA"}}
	if len(list) != 2 || list[0] != want[0] || list[1] != want[1] {
		t.Errorf("got %+v, want %+v", list, want)
	}
}

func TestADirectiveWithAMistakeIsNamed(t *testing.T) {
	for name, c := range map[string]struct{ directives, want string }{
		"without a sentence": {"//" + "attack:first\nfunc TestA() {}\n", "a_test.go:3: write"},
		"of no test":         {"//" + "attack:first A tenant tries\nvar a = 1\n", "belongs to no test"},
		"a name twice": {"//" + "attack:first A tenant tries\n//" + "attack:first A tenant tries again\nfunc TestA() {}\n",
			"give each a name of its own"},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			write(t, root, "a_test.go", "package a\n\n"+c.directives)
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
