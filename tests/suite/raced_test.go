package suite

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestPackagesAreRacedWhereTheirCodeIsConcurrent(t *testing.T) {
	t.Setenv("GOFLAGS", "-mod=mod")
	t.Setenv("GOWORK", "off")
	root := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":              "module example.com/m\n\ngo 1.26\n",
		"starts/a.go":         "package starts\n\nfunc F(c chan int) { go func() { c <- 1 }() }\n",
		"starts/a_test.go":    "package starts\n",
		"locks/a.go":          "package locks\n\nimport \"sync\"\n\nvar Mu sync.Mutex\n",
		"locks/a_test.go":     "package locks_test\n",
		"plain/a.go":          "package plain\n\n// go func() is a comment; \"sync\" is text.\nconst Text = \"sync\"\n",
		"plain/a_test.go":     "package plain\n\nimport \"sync\"\n\nvar mu sync.Mutex\n",
		"untested/a.go":       "package untested\n\nimport \"sync\"\n\nvar Mu sync.Mutex\n",
		"onlytests/a_test.go": "package onlytests\n",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	raced, plain, err := Packages(t.Context(), root, "./...")
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"example.com/m/locks", "example.com/m/starts"}; !slices.Equal(raced, want) {
		t.Errorf("raced %v, want %v", raced, want)
	}
	if want := []string{"example.com/m/onlytests", "example.com/m/plain"}; !slices.Equal(plain, want) {
		t.Errorf("plain %v, want %v", plain, want)
	}
}
