package pages

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	matrixRow = regexp.MustCompile(`^\| (.+) \| (works|partly|not yet|cannot here) \| ([0-9.]*) ?` +
		`\| \[([a-z0-9-]+)\]\(evidence\.md#([a-z0-9-]+)\) \|$`)
	plainLink = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

// TestTheMatrixIsShortAndNoLimitationIsLost checks the form of docs/status.md: one row for each capability, at most 20 words in
// a cell, and one link. A capability whose state is not "works" has a paragraph in docs/limitations.md under the same name.
func TestTheMatrixIsShortAndNoLimitationIsLost(t *testing.T) {
	root := root(t)
	all := pages(t, root)
	page := func(name string) page {
		i := slices.IndexFunc(all, func(p page) bool { return p.path == name })
		if i < 0 {
			t.Fatalf("there is no %s", name)
		}
		return all[i]
	}
	limits := page("docs/limitations.md").anchors()
	rows := map[string]bool{}
	header := true
	for _, l := range page("docs/status.md").lines {
		if !strings.HasPrefix(l.text, "|") {
			header = true
			continue
		}
		for _, cell := range strings.Split(strings.Trim(l.text, "|"), "|") {
			if words := len(strings.Fields(plainLink.ReplaceAllString(cell, "$1"))); words > 20 {
				t.Errorf("docs/status.md:%d: a cell has %d words, 20 are allowed: %s", l.number, words, cell)
			}
		}
		if links := len(plainLink.FindAllString(l.text, -1)); links > 1 {
			t.Errorf("docs/status.md:%d: %d links, one is allowed", l.number, links)
		}
		match := matrixRow.FindStringSubmatch(l.text)
		if match == nil {
			if !header {
				t.Errorf("docs/status.md:%d: not \"| capability | state | since | [name](evidence.md#name) |\": %s", l.number, l.text)
			}
			if strings.HasPrefix(l.text, "|---") {
				header = l.number < 12 // the first table explains the states
			}
			continue
		}
		if match[4] != match[5] || rows[match[4]] {
			t.Errorf("docs/status.md:%d: the name %s occurs twice, or leads to %s", l.number, match[4], match[5])
		}
		rows[match[4]] = true
		if match[2] != "works" && !limits[match[4]] {
			t.Errorf("docs/status.md:%d: %s is %q, and docs/limitations.md has no <a id=%q> that says why",
				l.number, match[4], match[2], match[4])
		}
	}
	if len(rows) < 50 {
		t.Errorf("only %d rows were found", len(rows))
	}
	content, err := os.ReadFile(filepath.Join(root, "docs/limitations.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, match := range anchor.FindAllStringSubmatch(string(content), -1) {
		if !rows[match[1]] {
			t.Errorf("docs/limitations.md: %s is no row of docs/status.md", match[1])
		}
	}
}
