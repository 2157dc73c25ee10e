package reference

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpufabric.io/build/repository"
)

func TestReferenceHasAPageForEachCustomResource(t *testing.T) {
	root, err := repository.Root()
	if err != nil {
		t.Fatal(err)
	}
	pages, err := Render(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(pages) < 5 {
		t.Errorf("%d pages, want one for each of the five custom resources", len(pages))
	}
	index, err := os.ReadFile(filepath.Join(root, "docs/resources.md"))
	if err != nil {
		t.Fatal(err)
	}
	for path, page := range pages {
		if !strings.Contains(page, "\n```yaml\napiVersion: ") && !strings.Contains(page, "`examples/manifests/") {
			t.Errorf("%s shows no example", path)
		}
		if !strings.Contains(page, "### spec\n") {
			t.Errorf("%s lacks the fields of the spec", path)
		}
		if !strings.Contains(string(index), "(resources/"+filepath.Base(path)+")") {
			t.Errorf("docs/resources.md does not lead to %s", path)
		}
	}
}

func TestReferenceNamesACustomResourceWithoutAPage(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, CRDs), 0o755); err != nil {
		t.Fatal(err)
	}
	crd := "spec: {names: {kind: Gadget, singular: gadget, plural: gadgets}, versions: [{name: v1}]}\n"
	if err := os.WriteFile(filepath.Join(root, CRDs, "gadgets.yaml"), []byte(crd), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Render(root); err == nil || !strings.Contains(err.Error(), "the custom resource Gadget has no page") {
		t.Errorf("got %v", err)
	}
}
