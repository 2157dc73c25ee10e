package charts

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// dashboard is the part of Grafana's format that these tests read.
type dashboard struct {
	UID, Title string
	Panels     []struct {
		ID         int
		Title      string
		Datasource struct{ UID string }
		Targets    []struct{ Expr string }
	}
	Templating struct {
		List []struct{ Name string }
	}
}

// TestDashboardsQueryExistingMetrics checks that each of our metrics in a dashboard is named in the drivers' source.
// A panel with another metric would always be empty.
func TestDashboardsQueryExistingMetrics(t *testing.T) {
	known := programMetrics(t)
	// Every selector in these dashboards has braces.
	selector := regexp.MustCompile(`([A-Za-z_:][A-Za-z0-9_:]*)\{`)
	series := regexp.MustCompile(`_(bucket|sum|count)$`)
	seen := map[string]string{}
	values := map[string]any{"metrics": map[string]any{"dashboards": on()}}
	count := 0
	for _, object := range renderValues(t, "gpufabric", values) {
		if object.GetKind() != "ConfigMap" {
			continue
		}
		for file, content := range object.Object["data"].(map[string]any) {
			count++
			var board dashboard
			if err := json.Unmarshal([]byte(content.(string)), &board); err != nil {
				t.Errorf("%s: %v", file, err)
				continue
			}
			if other := seen[board.UID]; board.UID == "" || other != "" {
				t.Errorf("%s: uid %q is empty or that of %s: Grafana would overwrite one by the other", file, board.UID, other)
			}
			seen[board.UID] = file
			for _, panel := range board.Panels {
				if panel.Datasource.UID != "${datasource}" {
					t.Errorf("%s: panel %q asks data source %q, which only one Grafana has", file, panel.Title, panel.Datasource.UID)
				}
				for _, target := range panel.Targets {
					names := selector.FindAllStringSubmatch(target.Expr, -1)
					if len(names) == 0 {
						t.Errorf("%s: panel %q asks for no metric: %s", file, panel.Title, target.Expr)
					}
					for _, name := range names {
						if !known(name[1]) && !known(series.ReplaceAllString(name[1], "")) {
							t.Errorf("%s: panel %q asks for %s, which no driver has", file, panel.Title, name[1])
						}
					}
				}
			}
		}
	}
	if files := chartFiles(t, "gpufabric/files/dashboards/*.json"); count != len(files) {
		t.Errorf("%d dashboards are rendered, %d stand in files/dashboards", count, len(files))
	}
}

// TestDashboardsLinkToConsoleAndTroubleshooting reads the links as Grafana does.
func TestDashboardsLinkToConsoleAndTroubleshooting(t *testing.T) {
	const page, runbooks = "https://fabric.example.com/", "https://wiki.example.com/troubleshooting"
	links := func(dashboards, rules map[string]any) map[string][]string {
		dashboards["enabled"] = true
		out := map[string][]string{}
		for _, object := range renderValues(t, "gpufabric", map[string]any{"metrics": map[string]any{"dashboards": dashboards, "rules": rules}}) {
			if object.GetKind() != "ConfigMap" {
				continue
			}
			for file, content := range object.Object["data"].(map[string]any) {
				var board struct {
					Links []struct{ Type, Title, URL string }
				}
				if err := json.Unmarshal([]byte(content.(string)), &board); err != nil {
					t.Fatalf("%s: %v", file, err)
				}
				out[file] = nil
				for _, l := range board.Links {
					if l.Type != "link" || l.Title == "" {
						t.Errorf("%s: Grafana shows no link of %+v", file, l)
					}
					out[file] = append(out[file], l.URL)
				}
			}
		}
		return out
	}
	files := len(chartFiles(t, "gpufabric/files/dashboards/*.json"))
	for name, c := range map[string]struct {
		got  map[string][]string
		want []string
	}{
		"by default to nothing": {links(map[string]any{}, map[string]any{}), nil},
		"to both":               {links(map[string]any{"page": page}, map[string]any{"runbooks": runbooks}), []string{page, runbooks}},
	} {
		if len(c.got) != files {
			t.Errorf("%s: %d dashboards are rendered of %d", name, len(c.got), files)
		}
		for file, got := range c.got {
			if !slices.Equal(got, c.want) {
				t.Errorf("%s: %s links to %v, want %v", name, file, got, c.want)
			}
		}
	}
}

// programMetrics reports whether the drivers' source has a name as one string, or as two strings: a prefix and the rest.
func programMetrics(t *testing.T) func(name string) bool {
	t.Helper()
	quoted := regexp.MustCompile(`"([A-Za-z_][A-Za-z0-9_]*)"`)
	words := map[string]bool{}
	err := filepath.WalkDir(Dir("../drivers"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, match := range quoted.FindAllStringSubmatch(string(content), -1) {
			words[match[1]] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return func(name string) bool {
		rest, prefixed := strings.CutPrefix(name, "gpufabric_rdma_")
		return words[name] || prefixed && words["gpufabric_rdma_"] && words[rest]
	}
}

func chartFiles(t *testing.T, pattern string) []string {
	t.Helper()
	paths, err := filepath.Glob(Dir(pattern))
	if err != nil {
		t.Fatal(err)
	}
	return paths
}
