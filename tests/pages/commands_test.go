package pages

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// runner is the test that runs the commands of whole pages; it lists them itself.
const runner = "tests/charts/manual_test.go"

// elsewhere are the pages beside the code whose commands these files run: each command's verb is in one of them.
var elsewhere = map[string][]string{
	"charts/fake-hardware/README.md": {"tests/e2e/machines_test.go", "tests/kindcluster", runner},
	"charts/gpufabric/README.md": {runner, "docs/install.md", "docs/uninstall.md", "drivers/gpu/explain",
		"drivers/rdma/explain", "drivers/gpu/plugin", "tests/firstday"},
	"examples/terraform/platform/README.md":     {"tests/e2e/examples_test.go", "tests/e2e/terraform_test.go", "tests/demo/kind"},
	"examples/terraform/quickstart/README.md":   {"tests/e2e/terraform_test.go", "tests/demo/kind"},
	"examples/terraform/rack/README.md":         {"tests/e2e/examples_test.go", "tests/e2e/terraform_test.go", "tests/demo/kind"},
	"examples/terraform/rdma-cluster/README.md": {"tests/e2e/examples_test.go", "tests/e2e/terraform_test.go", "tests/demo/kind"},
	"examples/terraform/training-job/README.md": {"tests/e2e/examples_test.go", "tests/e2e/terraform_test.go", "tests/demo/kind"},
	"examples/terraform/vgpu-sharing/README.md": {"tests/e2e/examples_test.go", "tests/e2e/terraform_test.go", "tests/demo/kind"},
	"fakes/README.md":                           {"fakes/program", "fakes/smi", "Makefile"},
	"provider/README.md":                        {"provider/internal/provider/acceptance_test.go", "Makefile", "tests/demo/kind"},
	"tests/README.md":                           {"tests/demo/kind", "tests/demo/down", "tests/e2e", ".ci/run", "tests/suite"},
}

var fence = regexp.MustCompile("^```(\\S*)(?: run-by=(\\S+))?\\s*$")

// block is a fenced block of commands.
type block struct {
	page     string
	line     int
	language string
	by       string // after run-by=
	text     string
}

// shells are the languages of blocks that a reader types; a block without one is typed too.
var shells = []string{"", "sh", "shell", "bash", "console"}

func blocks(p page) []block {
	var out []block
	open := false
	for _, l := range p.lines {
		match := fence.FindStringSubmatch(l.text)
		switch {
		case !open && match != nil:
			open = true
			out = append(out, block{p.path, l.number, match[1], match[2], ""})
		case open && strings.TrimSpace(l.text) == "```":
			open = false
		case open:
			out[len(out)-1].text += l.text + "\n"
		}
	}
	return slices.DeleteFunc(out, func(b block) bool { return !slices.Contains(shells, b.language) })
}

// TestPagesShowOnlyCommandsThatAreRun finds commands that nothing runs. A block of commands in docs, README.md and CONTRIBUTING.md is
// one of three: the test that lists its page runs it, it repeats such a block word for word, or run-by=FILE names the test or
// script that does the same. Pages beside the code are listed above.
func TestPagesShowOnlyCommandsThatAreRun(t *testing.T) {
	root := root(t)
	_, list, ok := strings.Cut(read(t, root, runner), "var manual = []string{")
	if !ok {
		t.Fatalf("%s lists no pages", runner)
	}
	list, _, _ = strings.Cut(list, "}")
	all := pages(t, root)
	var run []string
	for _, p := range all {
		if strings.Contains(list, `"`+p.path+`"`) {
			for _, b := range blocks(p) {
				if b.by == "" {
					run = append(run, b.text)
				}
			}
		}
	}
	ci := makeTargets(t, root)
	checked := 0
	for _, p := range all {
		if strings.HasPrefix(p.path, "provider/docs") || strings.HasPrefix(p.path, "provider/templates") {
			continue // written from the schemas, whose examples tests apply
		}
		for _, b := range blocks(p) {
			checked++
			by := elsewhere[p.path]
			if b.by != "" {
				by = []string{b.by}
			}
			if b.by == "" && slices.Contains(run, b.text) {
				continue
			}
			if len(by) == 0 {
				t.Errorf("%s:%d: nothing runs these commands: list the page in %s, or say run-by=FILE after the block's language:\n%s",
					p.path, b.line, runner, b.text)
				continue
			}
			shown := ""
			for _, path := range by {
				shown += everything(t, root, path)
			}
			for _, verb := range verbs(b.text) {
				target, isMake := strings.CutPrefix(verb, "make ")
				if isMake && slices.Contains(ci, target) {
					continue
				}
				word := strings.TrimPrefix(verb, "make ")
				if !regexp.MustCompile(`(^|[^a-z-])` + regexp.QuoteMeta(word) + `($|[^a-z-])`).MatchString(shown) {
					t.Errorf("%s:%d: %q is in none of %s, which are to run it", p.path, b.line, word, strings.Join(by, ", "))
				}
			}
		}
	}
	if checked < 30 {
		t.Errorf("only %d blocks of commands were found", checked)
	}
}

// everything is the text of a file, or of all files in a directory.
func everything(t *testing.T, root, path string) string {
	t.Helper()
	info, err := os.Stat(filepath.Join(root, path))
	if err != nil {
		t.Fatalf("a page's commands are said to be run by %s: %v", path, err)
	}
	if !info.IsDir() {
		return read(t, root, path)
	}
	files, err := filepath.Glob(filepath.Join(root, path, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("a page's commands are said to be run by %s, where no Go file is: %v", path, err)
	}
	var out strings.Builder
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(content)
	}
	return out.String()
}

// verbs has the verb of each command of a block: "apply" of kubectl apply, "make build" of make build; shell words and the
// text of here documents are none.
func verbs(text string) []string {
	var out []string
	until := ""
	for _, line := range strings.Split(strings.ReplaceAll(text, "\\\n", " "), "\n") {
		if until != "" {
			if strings.TrimSpace(line) == until {
				until = ""
			}
			continue
		}
		if _, after, ok := strings.Cut(line, "<<"); ok {
			until = strings.Trim(strings.TrimSpace(after), "'\"")
		}
		line, _, _ = strings.Cut(line, " #")
		if _, inside, ok := strings.Cut(line, " -- "); ok {
			line = inside
		}
		words := slices.DeleteFunc(strings.Fields(line), func(word string) bool {
			return strings.HasPrefix(word, "-") || strings.Contains(word, "=") && !strings.Contains(word, "/")
		})
		if len(words) == 0 || slices.Contains([]string{"cd", "export", "cat", "git"}, words[0]) {
			continue
		}
		switch {
		case words[0] == "make" && len(words) == 2:
			out = append(out, "make "+words[1])
		case words[0] == "go" && len(words) > 3 && words[1] == "run":
			out = append(out, words[3])
		case len(words) > 1 && words[0] != "make" && !strings.HasPrefix(words[1], "."):
			out = append(out, words[1])
		}
	}
	return out
}

// makeTargets are the targets that .ci/run, the two suites and the workflow on GitHub make, with those that they need.
func makeTargets(t *testing.T, root string) []string {
	t.Helper()
	makefile := read(t, root, "Makefile")
	needs := map[string][]string{}
	target := ""
	head := regexp.MustCompile(`^([a-z][a-z0-9-]*):([^=#]*)`)
	for _, line := range strings.Split(makefile, "\n") {
		if match := head.FindStringSubmatch(line); match != nil {
			target = match[1]
			needs[target] = append(needs[target], strings.Fields(match[2])...)
		} else if _, after, ok := strings.Cut(line, "$(MAKE)"); ok && !strings.Contains(after, " -C ") {
			needs[target] = append(needs[target], strings.Fields(after)...)
		}
	}
	var all []string
	var add func(string)
	add = func(name string) {
		if _, ok := needs[name]; ok && !slices.Contains(all, name) {
			all = append(all, name)
			for _, below := range needs[name] {
				add(below)
			}
		}
	}
	suites := read(t, root, ".ci/run") + read(t, root, "tests/suite/parts.go")
	for _, match := range regexp.MustCompile(`\bmake (?:-\S+ )*([a-z0-9-]+)`).FindAllStringSubmatch(suites, -1) {
		add(match[1])
	}
	// A matrix of jobs, each `make ${{ matrix.target }}`.
	for _, word := range regexp.MustCompile(`[a-z0-9-]+`).FindAllString(read(t, root, ".github/workflows/ci.yml"), -1) {
		add(word)
	}
	return all
}
