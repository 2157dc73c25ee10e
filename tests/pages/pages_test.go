package pages

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gpufabric.io/build/repository"
)

// page is one Markdown file.
type page struct {
	path  string // under the checkout
	lines []line
}

// line is one line of a page; code: it is in a fenced block.
type line struct {
	number int
	text   string
	code   bool
}

// pages reads every Markdown file of the checkout, except what builds and tests wrote there.
func pages(t *testing.T, root string) []page {
	t.Helper()
	var all []page
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() && path != root && (strings.HasPrefix(name, ".") || slices.Contains([]string{"bin", "dist", "logs"}, name) ||
			path == filepath.Join(root, "fakes/build")) {
			return filepath.SkipDir
		}
		if entry.IsDir() || filepath.Ext(name) != ".md" {
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		all = append(all, page{relative, lines(string(content))})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 20 {
		t.Fatalf("only %d pages were found under %s", len(all), root)
	}
	return all
}

// text is the whole page.
func (p page) text() string {
	var out strings.Builder
	for _, l := range p.lines {
		out.WriteString(l.text + "\n")
	}
	return out.String()
}

func lines(content string) []line {
	var out []line
	code := false
	for i, text := range strings.Split(content, "\n") {
		fence := strings.HasPrefix(strings.TrimSpace(text), "```")
		if fence {
			code = !code
		}
		out = append(out, line{i + 1, text, code || fence})
	}
	return out
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	anchor  = regexp.MustCompile(`(?:id|name)="([^"]+)"`)
	quoted  = regexp.MustCompile("`([^`]+)`")
	noSlug  = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
	target  = regexp.MustCompile(`^(?:[A-Z_]+=\S+ )*make ((?:-C \S+ )?)([a-z][a-z0-9-]*)`)
	rule    = regexp.MustCompile(`(?m)^([a-z][a-z0-9-]*):.*## `)
	tests   = regexp.MustCompile(`\b((?:Test|Fuzz|Benchmark)\p{Lu}\w+)(\.\.\.)?`)
	declare = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`)
	path    = regexp.MustCompile(`^(?:\./)?((?:build|charts|docs|drivers|examples|fakes|provider|tests)/[^\s:]+)`)
)

// anchors are the targets of links into the page, as GitHub makes them of headings.
func (p page) anchors() map[string]bool {
	out := map[string]bool{}
	for _, l := range p.lines {
		if heading := strings.TrimLeft(l.text, "#"); !l.code && heading != l.text {
			out[strings.ReplaceAll(noSlug.ReplaceAllString(strings.ToLower(strings.TrimSpace(heading)), ""), " ", "-")] = true
		}
		for _, match := range anchor.FindAllStringSubmatch(l.text, -1) {
			out[match[1]] = true
		}
	}
	return out
}

func root(t *testing.T) string {
	t.Helper()
	root, err := repository.Root()
	if err != nil {
		t.Fatal(err)
	}
	return root
}

func TestPagesHaveNoDeadLinks(t *testing.T) {
	root := root(t)
	all := pages(t, root)
	checked := 0
	for _, p := range all {
		for _, l := range p.lines {
			if l.code {
				continue
			}
			for _, match := range link.FindAllStringSubmatch(l.text, -1) {
				if strings.Contains(match[1], "://") {
					continue
				}
				checked++
				file, name, _ := strings.Cut(match[1], "#")
				to := p.path
				if file != "" {
					to = filepath.Join(filepath.Dir(p.path), file)
				}
				if _, err := os.Stat(filepath.Join(root, to)); err != nil {
					t.Errorf("%s:%d: %s leads nowhere: %v", p.path, l.number, match[1], err)
					continue
				}
				i := slices.IndexFunc(all, func(other page) bool { return other.path == to })
				if name != "" && (i < 0 || !all[i].anchors()[name]) {
					t.Errorf("%s:%d: %s has no heading for #%s", p.path, l.number, to, name)
				}
			}
		}
	}
	if checked < 10 {
		t.Errorf("only %d links were found", checked)
	}
}

// TestMakefileHelpListsEveryTarget takes the word after make at the start of a line of a code block, and in `make ...`
// within a text. A target that a page names has a sentence in make help.
func TestMakefileHelpListsEveryTarget(t *testing.T) {
	root := root(t)
	targets := map[string][]string{}
	for _, directory := range []string{"", "fakes"} {
		content, err := os.ReadFile(filepath.Join(root, directory, "Makefile"))
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range rule.FindAllStringSubmatch(string(content), -1) {
			targets[directory] = append(targets[directory], match[1])
		}
	}
	checked := 0
	for _, p := range pages(t, root) {
		for _, l := range p.lines {
			commands := []string{l.text}
			if !l.code {
				commands = commands[:0]
				for _, match := range quoted.FindAllStringSubmatch(l.text, -1) {
					commands = append(commands, match[1])
				}
			}
			for _, command := range commands {
				match := target.FindStringSubmatch(command)
				if match == nil {
					continue
				}
				checked++
				directory := strings.TrimSpace(strings.TrimPrefix(match[1], "-C "))
				if !slices.Contains(targets[directory], match[2]) {
					t.Errorf("%s:%d: %q: no such target with a sentence is in %s",
						p.path, l.number, command, filepath.Join(directory, "Makefile"))
				}
			}
		}
	}
	if checked < 20 {
		t.Errorf("only %d commands were found", checked)
	}
}

// TestPagesNameOnlyExistingTestsAndPaths reads the text between backticks. A test's name may end in three dots, and so may a directory; a
// path may have {a,b} and *.
func TestPagesNameOnlyExistingTestsAndPaths(t *testing.T) {
	root := root(t)
	var declared []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		content, err := os.ReadFile(path)
		for _, match := range declare.FindAllStringSubmatch(string(content), -1) {
			declared = append(declared, match[1])
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, p := range pages(t, root) {
		for _, l := range p.lines {
			if l.code {
				continue
			}
			for _, word := range quoted.FindAllStringSubmatch(l.text, -1) {
				for _, match := range tests.FindAllStringSubmatch(word[1], -1) {
					checked++
					if match[1] != "TestName" && !slices.ContainsFunc(declared, func(name string) bool {
						return name == match[1] || match[2] != "" && strings.HasPrefix(name, match[1])
					}) {
						t.Errorf("%s:%d: there is no test %s%s", p.path, l.number, match[1], match[2])
					}
				}
				match := path.FindStringSubmatch(word[1])
				// Built files are missing in a fresh clone.
				if match == nil || strings.HasPrefix(match[1], "fakes/build/") || strings.HasPrefix(match[1], "drivers/gpu/limiter/build/") {
					continue
				}
				checked++
				for _, each := range alternatives(strings.TrimSuffix(strings.TrimRight(match[1], ",;"), "/...")) {
					found, err := filepath.Glob(filepath.Join(root, each))
					if err != nil || len(found) == 0 {
						t.Errorf("%s:%d: there is no %s (%v)", p.path, l.number, each, err)
					}
				}
			}
		}
	}
	if checked < 100 {
		t.Errorf("only %d names were found", checked)
	}
}

// alternatives writes one {a,b} out.
func alternatives(path string) []string {
	before, rest, ok := strings.Cut(path, "{")
	list, after, closed := strings.Cut(rest, "}")
	if !ok || !closed {
		return []string{path}
	}
	var out []string
	for _, each := range strings.Split(list, ",") {
		out = append(out, before+each+after)
	}
	return out
}

// TestExamplesAreNamedByATest checks README.md's sentence on examples: a test runs each of them, so a test names each of
// them.
func TestExamplesAreNamedByATest(t *testing.T) {
	root := root(t)
	var all strings.Builder
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") || filepath.Base(filepath.Dir(path)) == "pages" {
			return err
		}
		content, err := os.ReadFile(path)
		all.Write(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	manifests, err := filepath.Glob(filepath.Join(root, "examples/manifests/*.yaml"))
	if err != nil || len(manifests) < 10 {
		t.Fatalf("%d manifests, %v", len(manifests), err)
	}
	for _, manifest := range manifests {
		name := strings.TrimSuffix(filepath.Base(manifest), ".yaml")
		if !strings.Contains(all.String(), name+".yaml") && !strings.Contains(all.String(), `"`+name+`"`) {
			t.Errorf("no test names examples/manifests/%s.yaml", name)
		}
	}
}
