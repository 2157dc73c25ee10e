package charts

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestTheREADMEListsEveryValueWithItsDefault compares the table in a chart's README.md with values.yaml.
func TestTheREADMEListsEveryValueWithItsDefault(t *testing.T) {
	row := regexp.MustCompile("(?m)^\\| (`[A-Za-z.]+`) \\| (`.*`) \\| .*\\|$")
	for _, name := range []string{"gpufabric", "fake-hardware"} {
		t.Run(name, func(t *testing.T) {
			content, err := os.ReadFile(Dir(name + "/README.md"))
			if err != nil {
				t.Fatal(err)
			}
			var told []string
			for _, match := range row.FindAllStringSubmatch(string(content), -1) {
				told = append(told, match[1]+" "+match[2])
			}
			slices.Sort(told)
			want := defaults(t, "", load(t, name).Values)
			slices.Sort(want)
			if diff := cmp.Diff(want, told); diff != "" {
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
