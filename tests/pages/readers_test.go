package pages

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// readers are the pages that each reader was promised.
var readers = map[string][]string{
	"newcomer": {"README.md", "docs/concepts.md"},
	"operator": {"docs/install.md", "docs/upgrade.md", "docs/resources.md", "docs/troubleshooting.md", "docs/capacity.md",
		"docs/recovery.md", "docs/uninstall.md", "docs/limitations.md", "docs/status.md"},
	"author of a workload": {"docs/workloads.md"},
	"contributor":          {"CONTRIBUTING.md", "docs/architecture.md", "docs/where.md", "CHANGELOG.md"},
}

func TestREADMELeadsToThePagesOfEachReader(t *testing.T) {
	all := pages(t, root(t))
	readme := page{}
	for _, p := range all {
		if p.path == "README.md" {
			readme = p
		}
	}
	for reader, list := range readers {
		for _, path := range list {
			if !slices.ContainsFunc(all, func(p page) bool { return p.path == path }) {
				t.Errorf("the %s's page %s is missing", reader, path)
			} else if path != "README.md" && !strings.Contains(readme.text(), "("+path+")") {
				t.Errorf("README.md does not lead the %s to %s", reader, path)
			}
		}
	}
}

// TestREADMELeadsToEveryPageOfDocs follows the links from README.md.
func TestREADMELeadsToEveryPageOfDocs(t *testing.T) {
	all := pages(t, root(t))
	byPath := map[string]page{}
	for _, p := range all {
		byPath[p.path] = p
	}
	reached := map[string]bool{"README.md": true}
	for todo := []string{"README.md"}; len(todo) > 0; {
		p := byPath[todo[0]]
		todo = todo[1:]
		for _, l := range p.lines {
			if l.code {
				continue
			}
			for _, match := range link.FindAllStringSubmatch(l.text, -1) {
				file, _, _ := strings.Cut(match[1], "#")
				to := filepath.Join(filepath.Dir(p.path), file)
				if _, ok := byPath[to]; file != "" && ok && !reached[to] {
					reached[to] = true
					todo = append(todo, to)
				}
			}
		}
	}
	for path := range byPath {
		if strings.HasPrefix(path, "docs/") && !reached[path] {
			t.Errorf("no link leads from README.md to %s", path)
		}
	}
}
