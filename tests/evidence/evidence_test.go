package evidence

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// checkout makes a checkout with these files.
func checkout(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

const matrix = `## GPUs

| capability | state | since | tests |
|---|---|---|---|
| Whole GPUs | works | 0.1.0 | [gpu-whole](evidence.md#gpu-whole) |
| MIG | partly | 0.1.0 | [gpu-mig](evidence.md#gpu-mig) |
`

func TestATestIsListedUnderTheRowThatItNames(t *testing.T) {
	root := checkout(t, map[string]string{
		"docs/status.md":      matrix,
		"docs/limitations.md": `<a id="gpu-mig"></a>`,
		"Makefile":            "#shows:gpu-mig\n.PHONY: bench\nbench: ## Measure.\n",
		"a/a_test.go":         "package a\n\n//shows:gpu-whole gpu-mig\nfunc TestAGPU(t *testing.T) {}\n",
		"a/b_test.go":         "//shows:gpu-whole\npackage a\n",
		"e2e/e_test.go": "package e\n\nvar parts = []part{{\"a pod gets a GPU\", testGPU}}\n\n" +
			"//shows:gpu-whole\nfunc testGPU(t *testing.T) {}\n",
	})
	got, err := Render(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"<a id=\"gpu-whole\"></a>\n**Whole GPUs**: works.\n\n- `a`: `TestAGPU`; `b_test.go`\n- `e2e`: a pod gets a GPU\n",
		"**MIG**: partly, with [limits](limitations.md#gpu-mig).\n\n- `Makefile`: `make bench`\n- `a`: `TestAGPU`\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the page lacks\n%s\nit is\n%s", want, got)
		}
	}
}

func TestUnknownRowsAndRowsWithoutATestAreNamed(t *testing.T) {
	root := checkout(t, map[string]string{
		"docs/status.md":      matrix,
		"docs/limitations.md": "",
		"a/a_test.go":         "package a\n\n//shows:gpu-hole\nfunc TestAGPU(t *testing.T) {}\n",
	})
	_, err := Render(root)
	if err == nil || !strings.Contains(err.Error(), "a/a_test.go:4: gpu-hole is no row") ||
		!strings.Contains(err.Error(), "gpu-whole works, and no test") {
		t.Errorf("got %v", err)
	}
}
