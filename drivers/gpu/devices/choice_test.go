package devices_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"gpufabric.io/drivers/gpu/devices"
)

const config = `{
	"default": {"form": "shareable"},
	"nodes": [
		{"nodeSelector": {"matchLabels": {"pool": "mig"}}, "form": "mig", "migProfiles": ["1g.10gb", "1g.10gb+me"]},
		{"nodeSelector": {"matchLabels": {"team": "a"}}, "form": "flexible"},
		{"nodeSelector": {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["mig"]}]}, "form": "mig", "migProfiles": ` +
	`["1g.10gb", "1g.10gb+me"]}
	]
}`

func TestChoicePrefersLabelThenRuleThenDefault(t *testing.T) {
	c, err := devices.ParseChoice(config)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]struct {
		node                labels.Set
		forms, reason, fail string
	}{
		"nothing selects it":      {labels.Set{}, "shareable", "ChartDefault", ""},
		"a rule":                  {labels.Set{"team": "a"}, "flexible", "ChartRule", ""},
		"two rules of one answer": {labels.Set{"pool": "mig"}, "mig_1g.10gb_1g.10gb-me", "ChartRule", ""},
		"two rules of two answers": {labels.Set{"pool": "mig", "team": "a"}, "", "",
			"nodes[0] of the chart is mig_1g.10gb_1g.10gb-me and nodes[1] is flexible"},
		"a label beside such rules": {labels.Set{"pool": "mig", "team": "a", devices.FormsLabel: "whole"}, "whole", "NodeLabel", ""},
		"a label with profiles":     {labels.Set{devices.FormsLabel: "mig_3g.40gb"}, "mig_3g.40gb", "NodeLabel", ""},
		"a label that says nothing": {labels.Set{devices.FormsLabel: "both"}, "", "",
			`form "both": allowed are whole, shareable, shares, mig, profiles, flexible`},
		"a label without profiles":   {labels.Set{devices.FormsLabel: "mig"}, "", "", "needs a MIG profile"},
		"a label with too many":      {labels.Set{devices.FormsLabel: "whole_1g.10gb"}, "", "", "only form mig has profiles"},
		"a label with a profile two": {labels.Set{devices.FormsLabel: "mig_1g.10gb_1g.10gb"}, "", "", "once"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := c.Resolve(want.node)
			switch {
			case want.fail != "":
				if err == nil || !strings.Contains(err.Error(), want.fail) {
					t.Errorf("got %v, want an error that says %s", err, want.fail)
				}
			case err != nil:
				t.Error(err)
			case got.String() != want.forms || got.Reason != want.reason:
				t.Errorf("got %s by %s, want %s by %s", got, got.Reason, want.forms, want.reason)
			}
		})
	}
}

func TestChoiceNamesAMistakeInTheChartsForms(t *testing.T) {
	for text, want := range map[string]string{
		`{"default": {"form": "half"}}`:                                                 `default: form "half"`,
		`{"nodes": [{"form": "whole"}]}`:                                                "nodes[0]: nodeSelector is missing",
		`{"nodes": [{"nodeSelector": {"matchLabels": {"a b": "c"}}, "form": "mig"}]}`:   "nodes[0].nodeSelector",
		`{"nodes": [{"nodeSelector": {}, "form": "whole", "migProfiles": ["1g.5gb"]}]}`: "only form mig has profiles",
		`{"nodes": [{"nodeSelector": {}, "forms": "whole"}]}`:                           `unknown field "forms"`,
		`{`: "EOF",
	} {
		if _, err := devices.ParseChoice(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", text, err, want)
		}
	}
	if c, err := devices.ParseChoice(""); err != nil || c.Default.String() != "whole" {
		t.Errorf("without a word: %v, %v; want whole", c, err)
	}
}
