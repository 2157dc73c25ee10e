// Package attacks reads docs/reports/attacks.md: the tests that play an attacking tenant, or a thief of a token.
//
// The page has a heading for the directory of each package, and a row for each attack with its name, what is tried, and the test
// function. The test logs what the attacker reads as "attacker sees: ...".
package attacks

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Page is the path of the list in the checkout.
const Page = "docs/reports/attacks.md"

// Seen is the prefix of the log lines with an attacker's view.
const Seen = "attacker sees: "

// Attack is one thing that is tried and must be refused.
type Attack struct {
	Name, Words string
	// Directory is that of the test's package, Test its function.
	Directory, Test string
}

// NeedsKind reports whether the attack needs containers, and so runs only in kind.
func (a Attack) NeedsKind() bool { return strings.HasPrefix(a.Directory, "tests/e2e") }

var row = regexp.MustCompile("^\\| <a id=\"([a-z0-9-]+)\"></a>([a-z0-9-]+) \\| ([A-Z].*[^.]) \\| `([Tt]est\\w+)` \\|$")

// Collect reads the page, in its order. The error names every row of another form, every name that occurs twice and every test that
// does not exist.
func Collect(root string) ([]Attack, error) {
	content, err := os.ReadFile(filepath.Join(root, Page))
	if err != nil {
		return nil, err
	}
	var found []Attack
	var mistakes []string
	directory, names, tests := "", map[string]bool{}, map[string]bool{}
	for i, line := range strings.Split(string(content), "\n") {
		if heading, ok := strings.CutPrefix(line, "## `"); ok {
			directory = strings.TrimSuffix(heading, "`")
			if tests, err = testsIn(filepath.Join(root, directory)); err != nil {
				return nil, fmt.Errorf("%s:%d: %w", Page, i+1, err)
			}
		}
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| attack |") {
			continue
		}
		match := row.FindStringSubmatch(line)
		switch {
		case match == nil || match[1] != match[2]:
			mistakes = append(mistakes,
				fmt.Sprintf("%s:%d: write | <a id=\"name\"></a>name | An attempt, without a full stop | `Test` |", Page, i+1))
			continue
		case names[match[1]]:
			mistakes = append(mistakes, fmt.Sprintf("%s:%d: the attack %s occurs twice", Page, i+1, match[1]))
		case !tests[match[4]]:
			mistakes = append(mistakes, fmt.Sprintf("%s:%d: %s has no test %s", Page, i+1, directory, match[4]))
		}
		names[match[1]] = true
		found = append(found, Attack{Name: match[1], Words: match[3], Directory: directory, Test: match[4]})
	}
	if len(mistakes) > 0 {
		return nil, fmt.Errorf("%s", strings.Join(mistakes, "\n"))
	}
	return found, nil
}

var function = regexp.MustCompile(`(?m)^func ([Tt]est\w+)\(`)

// testsIn returns the test functions of a directory.
func testsIn(directory string) (map[string]bool, error) {
	files, err := filepath.Glob(filepath.Join(directory, "*_test.go"))
	if err != nil {
		return nil, err
	}
	found := map[string]bool{}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		for _, match := range function.FindAllStringSubmatch(string(content), -1) {
			found[match[1]] = true
		}
	}
	return found, nil
}
