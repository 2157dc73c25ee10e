package charts

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// An alert on a metric that does not exist never fires. An alert without a runbook does not help the person whom it wakes.
// Runbooks whose entry is a label's value are checked by the tests of reasons in tests/pages.
func TestAlertsQueryExistingMetricsAndLinkToRunbooks(t *testing.T) {
	const page = "https://wiki.example/troubleshooting.md"
	known := programMetrics(t)
	selector := regexp.MustCompile(`([A-Za-z_:][A-Za-z0-9_:]*)\{`)
	anchors := headings(t)
	alerts := map[string]bool{}
	for _, object := range renderValues(t, "gpufabric", map[string]any{"metrics": map[string]any{
		"rules": map[string]any{"enabled": true, "runbooks": page}}}) {
		if object.GetKind() != "PrometheusRule" {
			continue
		}
		groups, _, err := unstructured.NestedSlice(object.Object, "spec", "groups")
		if err != nil {
			t.Fatal(err)
		}
		for _, group := range groups {
			for _, rule := range group.(map[string]any)["rules"].([]any) {
				alert := rule.(map[string]any)
				name, expression := alert["alert"].(string), alert["expr"].(string)
				if alerts[name] {
					t.Errorf("there are two alerts %s", name)
				}
				alerts[name] = true
				names := selector.FindAllStringSubmatch(expression, -1)
				if len(names) == 0 {
					t.Errorf("%s asks for no metric: %s", name, expression)
				}
				for _, metric := range names {
					if !known(metric[1]) {
						t.Errorf("%s asks for %s, which no driver has", name, metric[1])
					}
				}
				annotations := alert["annotations"].(map[string]any)
				anchor, found := strings.CutPrefix(annotations["runbook_url"].(string), page+"#")
				if !found || anchor != "{{ $labels.reason | toLower }}" && !anchors[anchor] {
					t.Errorf("%s leads to %v, which is no entry", name, annotations["runbook_url"])
				}
				if severity := alert["labels"].(map[string]any)["severity"]; severity != "warning" && severity != "critical" {
					t.Errorf("%s is %v", name, severity)
				}
			}
		}
	}
	if len(alerts) == 0 {
		t.Error("there are no alerts")
	}
}

// headings are the anchors of docs/troubleshooting.md as GitHub makes them.
func headings(t *testing.T) map[string]bool {
	t.Helper()
	content, err := os.ReadFile(Dir("../docs/troubleshooting.md"))
	if err != nil {
		t.Fatal(err)
	}
	anchors := map[string]bool{}
	dropped := regexp.MustCompile(`[^a-z0-9 _-]`)
	for line := range strings.Lines(string(content)) {
		if title, is := strings.CutPrefix(strings.TrimLeft(strings.TrimSpace(line), "#"), " "); is && strings.HasPrefix(line, "#") {
			anchors[strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(title), ""), " ", "-")] = true
		}
	}
	return anchors
}
