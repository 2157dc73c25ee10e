package pages

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// step is a place in the code that a page leads to: `drivers/gpu/claims/prepare.go: Kind.Prepare`.
var step = regexp.MustCompile(`^([a-z][a-zA-Z0-9_/.-]*\.go): ([A-Za-z_][A-Za-z0-9_.]*)$`)

// walks are the headings of the walks that a newcomer is promised, by page.
var walks = map[string][]string{
	"docs/where.md": {"Where a claim is prepared", "What makes a GPU tainted", "How a configured pool reaches a container",
		"How a port's health is read",
		"Where a Terraform attribute is validated", "How to add a machine profile", "Where a channel number is picked",
		"How a doctor finding is added", "What a kubelet restart does"},
}

func TestWalksNameOnlyExistingCode(t *testing.T) {
	root := root(t)
	found := map[string]map[string]int{} // page, heading: steps
	for _, p := range pages(t, root) {
		found[p.path] = map[string]int{}
		heading := ""
		for _, l := range p.lines {
			if l.code {
				continue
			}
			if strings.HasPrefix(l.text, "#") {
				heading = strings.TrimLeft(l.text, "# ")
			}
			for _, word := range quoted.FindAllStringSubmatch(l.text, -1) {
				match := step.FindStringSubmatch(word[1])
				if match == nil || strings.HasPrefix(match[2], "Test") && !strings.HasSuffix(match[1], "_test.go") {
					continue
				}
				names, err := declarations(filepath.Join(root, match[1]))
				if err != nil {
					t.Errorf("%s:%d: %s: %v", p.path, l.number, word[1], err)
					continue
				}
				if !slices.Contains(names, match[2]) {
					t.Errorf("%s:%d: %s declares no %s any more", p.path, l.number, match[1], match[2])
				}
				found[p.path][heading]++
			}
		}
	}
	for page, headings := range walks {
		for _, heading := range headings {
			if found[page][heading] < 3 {
				t.Errorf("%s: the walk %q has %d steps that name a file and a function; it has three at least",
					page, heading, found[page][heading])
			}
		}
	}
	readme := slices.IndexFunc(pages(t, root), func(p page) bool { return p.path == "README.md" })
	text := pages(t, root)[readme].text()
	for page := range walks {
		if !strings.Contains(text, "("+page+")") {
			t.Errorf("README.md does not lead to %s", page)
		}
	}
}

// declarations are the names that a Go file declares at its top: F, T, T.Method, V.
func declarations(path string) ([]string, error) {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, declaration := range file.Decls {
		switch d := declaration.(type) {
		case *ast.FuncDecl:
			names = append(names, receiver(d)+d.Name.Name)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					names = append(names, s.Name.Name)
				case *ast.ValueSpec:
					for _, name := range s.Names {
						names = append(names, name.Name)
					}
				}
			}
		}
	}
	return names, nil
}

// receiver is "T." for a method of T, *T or T[M].
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil || len(f.Recv.List) == 0 {
		return ""
	}
	t := f.Recv.List[0].Type
	for {
		switch e := t.(type) {
		case *ast.StarExpr:
			t = e.X
		case *ast.IndexExpr:
			t = e.X
		case *ast.Ident:
			return e.Name + "."
		default:
			return ""
		}
	}
}
