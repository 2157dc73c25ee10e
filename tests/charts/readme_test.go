package charts

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestREADMEListsEveryValueWithDefault compares the table in a chart's README.md with values.yaml.
func TestREADMEListsEveryValueWithDefault(t *testing.T) {
	row := regexp.MustCompile("(?m)^\\| (`[A-Za-z.]+`) \\| (`.*`) \\| .*\\|$")
	for _, name := range []string{"gpufabric", "fake-hardware"} {
		t.Run(name, func(t *testing.T) {
			content, err := os.ReadFile(Dir(name + "/README.md"))
			if err != nil {
				t.Fatal(err)
			}
			var reported []string
			for _, match := range row.FindAllStringSubmatch(string(content), -1) {
				reported = append(reported, match[1]+" "+match[2])
			}
			slices.Sort(reported)
			want := defaults(t, "", load(t, name).Values)
			slices.Sort(want)
			if diff := cmp.Diff(want, reported); diff != "" {
				t.Errorf("README.md and values.yaml differ (-values +readme):\n%s", diff)
			}
		})
	}
}

// defaults lists the values that a user sets, as "`path` `JSON of its default`". Resources and labels are one value each.
func defaults(t *testing.T, path string, value any) []string {
	t.Helper()
	section, ok := value.(map[string]any)
	whole := regexp.MustCompile(`(^|\.)(resources|labels)$`)
	if !ok || len(section) == 0 || whole.MatchString(path) {
		text, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		return []string{fmt.Sprintf("`%s` `%s`", path, text)}
	}
	var out []string
	for key, below := range section {
		if path != "" {
			key = path + "." + key
		}
		out = append(out, defaults(t, key, below)...)
	}
	return out
}

// TestComputeDomainPageListsRights compares the table in drivers/computedomain/README.md with testdata/rbac.txt. The
// controller also has the rights of the controllers of other kinds.
func TestComputeDomainPageListsRights(t *testing.T) {
	content, err := os.ReadFile(Dir("../drivers/computedomain/README.md"))
	if err != nil {
		t.Fatal(err)
	}
	given, err := os.ReadFile("testdata/rbac.txt")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("(?m)^\\| ([a-z-]*) ?\\| (cluster|own namespace|the controller's namespace) \\| `([^`]+)`(?: named " +
		"`([^`]+)`)? \\| ([^|]+) \\|")
	var reported []string
	role := ""
	for _, match := range row.FindAllStringSubmatch(string(content), -1) {
		if match[1] != "" {
			role = match[1]
		}
		scope := "in gpufabric-system"
		if match[2] == "cluster" {
			scope = "everywhere"
		}
		resource := match[3]
		if group, name, ok := strings.Cut(resource, "/"); ok {
			resource = name + "." + group
		}
		if match[4] != "" {
			resource += " named " + match[4]
		}
		reported = append(reported, fmt.Sprintf("gpufabric-%s %s: %s %s", role, scope, resource,
			strings.ReplaceAll(strings.Trim(match[5], " `"), " ", ",")))
	}
	listed := strings.Split(strings.TrimSpace(string(given)), "\n")
	for _, line := range reported {
		if !slices.Contains(listed, line) {
			t.Errorf("the page tells of a right that is not given so: %s", line)
		}
	}
	for _, line := range listed {
		ofARole := strings.HasPrefix(line, "gpufabric-compute-domain-plugin ") || strings.HasPrefix(line, "gpufabric-imex-daemon ")
		if ofARole && !slices.Contains(reported, line) {
			t.Errorf("the page does not tell of %s", line)
		}
	}
	if len(reported) < 15 {
		t.Errorf("only %d rows were found", len(reported))
	}
}
