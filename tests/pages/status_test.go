package pages

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	matrixRow = regexp.MustCompile(`^(.+) \| (works|partly|not yet|cannot here) \| <a id="([a-z0-9-]+)"></a>(.+)$`)
	plainLink = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

// TestMatrixIsShortAndLinksEachLimitation checks the form of docs/status.md: one row for each capability, at most 20 words in
// a cell, links to the files with its tests. A capability whose state is not "works" has a paragraph under the same name in
// docs/limitations.md, or in docs/reports/shown.md where only evidence is missing.
func TestMatrixIsShortAndLinksEachLimitation(t *testing.T) {
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
	maps.Copy(limits, page("docs/reports/shown.md").anchors())
	rows := map[string]bool{}
	matrix, row := false, 0 // the table before the first heading explains the states; row counts the lines of a table
	for _, l := range page("docs/status.md").lines {
		matrix = matrix || strings.HasPrefix(l.text, "## ")
		if !strings.Contains(l.text, "|") {
			row = 0
			continue
		}
		row++
		for cell := range strings.SplitSeq(l.text, " | ") {
			if words := len(strings.Fields(plainLink.ReplaceAllString(cell, "$1"))); words > 20 {
				t.Errorf("docs/status.md:%d: a cell has %d words, 20 are allowed: %s", l.number, words, cell)
			}
		}
		if !matrix || row <= 2 {
			continue
		}
		match := matrixRow.FindStringSubmatch(l.text)
		if match == nil {
			t.Errorf("docs/status.md:%d: not \"capability | state | <a id=name></a>[file](path)\": %s", l.number, l.text)
			continue
		}
		if rows[match[3]] {
			t.Errorf("docs/status.md:%d: the name %s occurs twice", l.number, match[3])
		}
		if linked := plainLink.MatchString(match[4]); match[2] == "works" && !linked {
			t.Errorf("docs/status.md:%d: %s works, and leads to no test", l.number, match[3])
		}
		rows[match[3]] = true
		if match[2] != "works" && !limits[match[3]] {
			t.Errorf("docs/status.md:%d: %s is %q, and neither docs/limitations.md nor docs/reports/shown.md has an <a id=%q> that says why",
				l.number, match[3], match[2], match[3])
		}
	}
	if len(rows) < 50 {
		t.Errorf("only %d rows were found", len(rows))
	}
	for _, name := range []string{"docs/limitations.md", "docs/reports/shown.md"} {
		for _, l := range page(name).lines {
			for _, match := range anchor.FindAllStringSubmatch(l.text, -1) {
				if !rows[match[1]] {
					t.Errorf("%s: %s is no row of docs/status.md", name, match[1])
				}
			}
		}
	}
}
