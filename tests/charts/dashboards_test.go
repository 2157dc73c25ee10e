//shows:chart-checks
package charts

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// dashboard is what of Grafana's format these tests read.
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

// TestDashboardsAskForMetricsThatTheProgramHas keeps a panel from being empty for ever: every metric of ours that a dashboard asks
// for is named in the drivers' source.
//
//shows:gpu-metrics
func TestDashboardsAskForMetricsThatTheProgramHas(t *testing.T) {
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

// programMetrics says whether a name stands in the drivers' source as a string, or as a string of a prefix and one of the rest.
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
