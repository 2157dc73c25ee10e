// Package attacks finds the tests that play an attacking tenant, or a thief of a token, and writes docs/attacks.md from them.
//
// A test describes its attack in a directive with a name and a sentence: `//attack:foreign-slice A stolen token of a plugin
// publishes devices for another node`. The directive is above the test function or inside it, next to the row of its table. The
// test logs what the attacker reads as "attacker sees: ...".
package attacks

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Page is the path of the list in the checkout.
const Page = "docs/attacks.md"

// Seen is the prefix of the log lines with what an attacker reads.
const Seen = "attacker sees: "

const directive = "//attack:"

// Attack is one thing that is tried and must be refused.
type Attack struct {
	Name, Words string
	// Directory is that of the test's package, Test its function.
	Directory, Test string
}

// NeedsKind says whether the attack needs containers, and so runs only in kind.
func (a Attack) NeedsKind() bool { return strings.HasPrefix(a.Directory, "tests/e2e") }

var line = regexp.MustCompile(`^//attack:([a-z0-9]+(?:-[a-z0-9]+)*) ([A-Z].*[^.])$`)

// Collect reads the directives of every test below root, sorted by directory, test and name. The error names every directive
// without a name, a sentence or a test, or with a duplicate name.
func Collect(root string) ([]Attack, error) {
	var found []Attack
	var mistakes []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if name := entry.Name(); path != root && (strings.HasPrefix(name, ".") || name == "bin" || name == "dist" || name == "node_modules") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		list, wrong, err := file(path, filepath.ToSlash(relative))
		found, mistakes = append(found, list...), append(mistakes, wrong...)
		return err
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(found, func(a, b Attack) int {
		return cmp.Or(strings.Compare(a.Directory, b.Directory), strings.Compare(a.Test, b.Test), strings.Compare(a.Name, b.Name))
	})
	names := map[string]Attack{}
	for _, a := range found {
		if other, twice := names[a.Name]; twice {
			mistakes = append(mistakes, fmt.Sprintf("%s %s: the attack %s is in %s %s too: give each a name of its own", a.Directory, a.Test,
				a.Name, other.Directory, other.Test))
		}
		names[a.Name] = a
	}
	if len(mistakes) > 0 {
		return nil, fmt.Errorf("%s", strings.Join(mistakes, "\n"))
	}
	return found, nil
}

// file reads the directives of one file.
func file(path, relative string) (found []Attack, mistakes []string, err error) {
	content, err := os.ReadFile(path)
	if err != nil || !bytes.Contains(content, []byte("\t"+directive)) && !bytes.Contains(content, []byte("\n"+directive)) {
		return nil, nil, err
	}
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, path, content, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, nil, err
	}
	for _, group := range parsed.Comments {
		for _, comment := range group.List {
			if !strings.HasPrefix(comment.Text, directive) {
				continue
			}
			at := fmt.Sprintf("%s:%d", relative, set.Position(comment.Pos()).Line)
			match := line.FindStringSubmatch(comment.Text)
			test := around(parsed, comment.Pos())
			switch {
			case match == nil:
				mistakes = append(mistakes, at+": write //attack:a-name What is tried, in one sentence without a full stop")
			case test == "":
				mistakes = append(mistakes, at+": the attack belongs to no test function")
			default:
				found = append(found, Attack{Name: match[1], Words: match[2], Directory: filepath.ToSlash(filepath.Dir(relative)), Test: test})
			}
		}
	}
	return found, mistakes, nil
}

// around is the test function that a position is in, or above.
func around(parsed *ast.File, at token.Pos) string {
	for _, declaration := range parsed.Decls {
		f, ok := declaration.(*ast.FuncDecl)
		if !ok || !strings.HasPrefix(f.Name.Name, "Test") && !strings.HasPrefix(f.Name.Name, "test") {
			continue
		}
		from := f.Pos()
		if f.Doc != nil {
			from = f.Doc.Pos()
		}
		if from <= at && at <= f.End() {
			return f.Name.Name
		}
	}
	return ""
}

// Render is the page's text.
func Render(root string) (string, error) {
	list, err := Collect(root)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	fmt.Fprintf(&out, "# Attacks\n\nWhat tenants, and thieves of a role's token, try in tests: %d attacks, each refused before anything "+
		"is allocated or written. "+
		"Written by `make generate` from the directives `//attack:` beside the tests; do not edit. "+
		"The [threat model](threat-model.md) says which boundary each one is about.\n\n"+
		"`make test-tenants` runs them and prints what the attacker sees. Those below `tests/e2e` need containers "+
		"and run with `make kind-e2e`.\n",
		len(list))
	directory := ""
	for _, a := range list {
		if a.Directory != directory {
			directory = a.Directory
			fmt.Fprintf(&out, "\n## `%s`\n\n| attack | what is tried | test |\n|---|---|---|\n", directory)
		}
		fmt.Fprintf(&out, "| <a id=%q></a>%s | %s | `%s` |\n", a.Name, a.Name, a.Words, a.Test)
	}
	return out.String(), nil
}
