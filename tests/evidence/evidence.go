// Package evidence writes docs/evidence.md: which tests show each row of docs/status.md.
//
// A test names the rows that it shows in a directive: `//shows:gpu-mig gpu-refusals` above a test function, above a function that
// is a part of a test, or above the package clause for all tests of a file. A directive moves with its test, so the page always
// matches the code.
package evidence

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Page is the path of the page in the checkout, Matrix that of the matrix.
const (
	Page   = "docs/evidence.md"
	Matrix = "docs/status.md"
)

const directive = "//shows:"

// Row is a capability of the matrix.
type Row struct {
	Area, Name, Capability, State string
}

// shown is a test that shows something, with its description.
type shown struct {
	directory, test string
}

var row = regexp.MustCompile(`^\| (.+) \| (works|partly|not yet|cannot here) \| [0-9.]* ?\| \[([a-z0-9-]+)\]\(evidence\.md#`)

// Rows reads the matrix.
func Rows(root string) ([]Row, error) {
	content, err := os.ReadFile(filepath.Join(root, Matrix))
	if err != nil {
		return nil, err
	}
	var rows []Row
	area := ""
	for _, line := range strings.Split(string(content), "\n") {
		if heading, ok := strings.CutPrefix(line, "## "); ok {
			area = heading
		}
		if match := row.FindStringSubmatch(line); match != nil {
			rows = append(rows, Row{Area: area, Capability: match[1], State: match[2], Name: match[3]})
		}
	}
	return rows, nil
}

// Render returns the page's text. An error names every directive with an unknown row, and every row marked as works that no test
// shows.
func Render(root string) (string, error) {
	rows, err := Rows(root)
	if err != nil {
		return "", err
	}
	tests, mistakes, err := collect(root, rows)
	if err != nil {
		return "", err
	}
	limits, err := os.ReadFile(filepath.Join(root, "docs/limitations.md"))
	if err != nil {
		return "", err
	}
	var out strings.Builder
	out.WriteString("# Evidence\n\nWhich tests show each row of the [support matrix](status.md). " +
		"Written by `make generate` from the directives `//shows:` beside the tests; do not edit.\n\n" +
		"Tests below `tests/e2e` run in kind: most by `make kind-e2e`, TestForms and TestARuntimeWithoutCDIIsReported by `make kind-upgrade`, " +
		"TestKueue by `make kind-kueue`. Tests below `tests/simcluster` on the simulated cluster, " +
		"those of `drivers/rdma/kerneltest` on Debian's kernel (`make rdma-kernel`).\n")
	area := ""
	for _, r := range rows {
		if r.Area != area {
			area = r.Area
			fmt.Fprintf(&out, "\n## %s\n", area)
		}
		fmt.Fprintf(&out, "\n<a id=%q></a>\n**%s**: %s", r.Name, r.Capability, r.State)
		if strings.Contains(string(limits), fmt.Sprintf("<a id=%q>", r.Name)) {
			fmt.Fprintf(&out, ", with [limits](limitations.md#%s)", r.Name)
		}
		out.WriteString(".\n")
		list := tests[r.Name]
		if len(list) == 0 && r.State == "works" {
			mistakes = append(mistakes, fmt.Sprintf("%s: %s works, and no test has the directive %s%s", Matrix, r.Name, directive, r.Name))
		}
		if len(list) > 0 {
			out.WriteString("\n")
		}
		for _, group := range byDirectory(list) {
			fmt.Fprintf(&out, "- %s\n", group)
		}
	}
	if len(mistakes) > 0 {
		return "", fmt.Errorf("%s", strings.Join(mistakes, "\n"))
	}
	return out.String(), nil
}

// byDirectory is a line a directory.
func byDirectory(list []shown) []string {
	slices.SortFunc(list, func(a, b shown) int {
		return strings.Compare(a.directory+"\x00"+a.test, b.directory+"\x00"+b.test)
	})
	list = slices.Compact(list)
	var lines []string
	for i, s := range list {
		if i > 0 && list[i-1].directory == s.directory {
			lines[len(lines)-1] += "; " + s.test
			continue
		}
		lines = append(lines, fmt.Sprintf("`%s`: %s", s.directory, s.test))
	}
	return lines
}

// collect reads the directives of all tests, and of Makefiles (`#shows:cross` above a target).
func collect(root string, rows []Row) (tests map[string][]shown, mistakes []string, err error) {
	tests = map[string][]shown{}
	note := func(names, directory, test, at string) {
		for _, name := range strings.Fields(names) {
			if !slices.ContainsFunc(rows, func(r Row) bool { return r.Name == name }) {
				mistakes = append(mistakes, fmt.Sprintf("%s: %s is no row of %s", at, name, Matrix))
				continue
			}
			tests[name] = append(tests[name], shown{directory, test})
		}
	}
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if path != root && strings.HasPrefix(entry.Name(), ".") || path != root && built(root, path) {
				return filepath.SkipDir
			}
			if relative, err := filepath.Rel(root, path); err == nil {
				return directory(path, filepath.ToSlash(relative), note)
			}
		}
		return nil
	})
	return tests, mistakes, err
}

// built says that a directory holds what was built: /bin and /dist, and the build directory of fakes and of the limiter
// (the folder /build is source).
func built(root, path string) bool {
	name := filepath.Base(path)
	return name == "bin" || name == "dist" || name == "build" && filepath.Dir(path) != root
}

type noter func(names, directory, test, at string)

// directory reads the directives of one directory.
func directory(path, relative string, note noter) error {
	files, err := filepath.Glob(filepath.Join(path, "*_test.go"))
	if err != nil {
		return err
	}
	if content, err := os.ReadFile(filepath.Join(path, "Makefile")); err == nil {
		makefile(string(content), relative, note)
	}
	var parsed []*ast.File
	set := token.NewFileSet()
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if !strings.Contains(string(content), directive) && !strings.Contains(relative, "e2e") {
			continue
		}
		f, err := parser.ParseFile(set, file, content, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		parsed = append(parsed, f)
	}
	for _, f := range parsed {
		name := filepath.Base(set.Position(f.Package).Filename)
		note(named(f.Doc), relative, "`"+name+"`", filepath.Join(relative, name))
		for _, declaration := range f.Decls {
			if d, ok := declaration.(*ast.FuncDecl); ok {
				if names := named(d.Doc); names != "" {
					at := fmt.Sprintf("%s:%d", filepath.Join(relative, name), set.Position(d.Pos()).Line)
					note(names, relative, label(d.Name.Name, parsed), at)
				}
			}
		}
	}
	return nil
}

// named are the names in a comment's directives.
func named(comment *ast.CommentGroup) string {
	var names []string
	if comment != nil {
		for _, line := range comment.List {
			if list, ok := strings.CutPrefix(line.Text, directive); ok {
				names = append(names, list)
			}
		}
	}
	return strings.Join(names, " ")
}

// label is a test's own name, or what a test calls its part f: the string before f in a list or call, as in {"a reboot
// prepares claims again", testReboot}.
func label(f string, files []*ast.File) string {
	if regexp.MustCompile(`^(Test|Fuzz|Benchmark)\p{Lu}`).MatchString(f) {
		return "`" + f + "`"
	}
	words := "`" + f + "`"
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			var list []ast.Expr
			switch e := n.(type) {
			case *ast.CompositeLit:
				list = e.Elts
			case *ast.CallExpr:
				list = e.Args
			}
			for i, e := range list {
				if i == 0 || final(e) != f {
					continue
				}
				if text, ok := list[0].(*ast.BasicLit); ok && text.Kind == token.STRING {
					if said, err := strconv.Unquote(text.Value); err == nil {
						words = said
					}
				}
			}
			return true
		})
	}
	return words
}

// final is the name of an identifier, of a selector's last part, or of the one function that a function literal calls.
func final(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.FuncLit:
		if len(e.Body.List) == 1 {
			if s, ok := e.Body.List[0].(*ast.ExprStmt); ok {
				if call, ok := s.X.(*ast.CallExpr); ok {
					return final(call.Fun)
				}
			}
		}
	}
	return ""
}

var target = regexp.MustCompile(`^([a-z0-9-]+):`)

func makefile(content, relative string, note noter) {
	names := ""
	for i, line := range strings.Split(content, "\n") {
		if list, ok := strings.CutPrefix(line, "#shows:"); ok {
			names += " " + list
		}
		if match := target.FindStringSubmatch(line); match != nil && names != "" {
			command := "make " + match[1]
			if relative != "." {
				command = "make -C " + relative + " " + match[1]
			}
			note(names, "Makefile", "`"+command+"`", fmt.Sprintf("%s:%d", filepath.Join(relative, "Makefile"), i+1))
			names = ""
		}
	}
}
