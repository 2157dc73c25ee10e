package onenode

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"gpufabric.io/build/repository"
	"gpufabric.io/build/toolchain"
)

// page is docs/migrate.md, whose values and commands the test uses.
type page struct {
	blocks []string
}

var fenced = regexp.MustCompile("(?ms)^```[a-z]+[^\n]*\n(.*?)^```$")

func readPage(t *testing.T) page {
	t.Helper()
	root, err := repository.Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "docs/migrate.md"))
	if err != nil {
		t.Fatal(err)
	}
	var p page
	for _, match := range fenced.FindAllStringSubmatch(string(text), -1) {
		p.blocks = append(p.blocks, match[1])
	}
	return p
}

// block is the page's only block that contains the words.
func (p page) block(t *testing.T, words string) string {
	t.Helper()
	var found []string
	for _, block := range p.blocks {
		if strings.Contains(block, words) {
			found = append(found, block)
		}
	}
	if len(found) != 1 {
		t.Fatalf("docs/migrate.md has %d blocks with %q, want one", len(found), words)
	}
	return found[0]
}

// values are those of the page's block that sets key.
func (p page) values(t *testing.T, key string) map[string]any {
	t.Helper()
	values := map[string]any{}
	if err := yaml.Unmarshal([]byte(p.block(t, key)), &values); err != nil {
		t.Fatalf("docs/migrate.md, values with %s: %v", key, err)
	}
	return values
}

// shell runs commands of the page as a reader would, for one node.
type shell struct {
	t                   *testing.T
	kubectl, kubeconfig string
	programs            string // the directory of gpufabric
}

func newShell(t *testing.T, kubeconfig string) shell {
	t.Helper()
	paths, err := toolchain.Ensure(t.Context(), "kubectl")
	if err != nil {
		t.Fatal(err)
	}
	root, err := repository.Root()
	if err != nil {
		t.Fatal(err)
	}
	return shell{t: t, kubectl: paths["kubectl"], kubeconfig: kubeconfig, programs: filepath.Join(root, "bin")}
}

// run runs commands, which have to succeed.
func (s shell) run(commands, node string) {
	s.t.Helper()
	if out, err := s.output(commands, node); err != nil {
		s.t.Fatalf("docs/migrate.md, with NODE=%s: %v\n%s%s", node, err, commands, out)
	}
}

// output runs commands and returns what they printed.
func (s shell) output(commands, node string) ([]byte, error) {
	s.t.Helper()
	cmd := exec.CommandContext(s.t.Context(), "sh", "-e", "-c", commands)
	cmd.Env = []string{"PATH=" + filepath.Dir(s.kubectl) + ":" + s.programs + ":/usr/bin:/bin", "KUBECONFIG=" + s.kubeconfig,
		"NODE=" + node, "HOME=" + s.t.TempDir()}
	out, err := cmd.CombinedOutput()
	s.t.Logf("%s%s", commands, out)
	return out, err
}
