// Package migrate reports, object by object, how a cluster's manifests change when gpufabric serves it. It reads objects alone, and of
// ConfigMaps and Secrets nothing.
package migrate

import (
	_ "embed"
	"fmt"
	"regexp"
	"strings"

	"sigs.k8s.io/yaml"
)

// Verdict is the kind of an answer.
type Verdict string

// The verdicts, as rules.yaml explains them.
const (
	Unchanged Verdict = "unchanged"
	Change    Verdict = "change"
	NotServed Verdict = "not served"
)

// Rule is a row of the pages' tables: a manifest there, and its answer here, in Markdown.
type Rule struct {
	There   string  `json:"there"`
	Here    string  `json:"here"`
	Verdict Verdict `json:"verdict"`
}

//go:embed rules.yaml
var text []byte

// Rules returns the rules of the table by name.
func Rules() (map[string]Rule, error) {
	rules := map[string]Rule{}
	if err := yaml.UnmarshalStrict(text, &rules); err != nil {
		return nil, fmt.Errorf("read the table of rules: %w", err)
	}
	return rules, nil
}

var link = regexp.MustCompile(`\[([^\]]*)\]\(([^)]*)\)`)

// plain is a Markdown text for a terminal.
func plain(markdown string) string {
	return strings.ReplaceAll(link.ReplaceAllString(markdown, "$1 (docs/$2)"), "`", "")
}

// Finding is the change of a field of an object.
type Finding struct {
	// Object is kind and name: "deployment team/train".
	Object string `json:"object"`
	// Field is the path of the field that has to change or is meant; empty: the object as a whole.
	Field string `json:"field,omitempty"`
	// Rule is the name of a rule.
	Rule    string  `json:"rule"`
	Verdict Verdict `json:"verdict"`
	Here    string  `json:"here"`
}

// Plan is the answer for a cluster.
type Plan struct {
	Findings []Finding `json:"findings"`
	// Missing are kinds that could not be read, with the reason.
	Missing []string `json:"missing,omitempty"`
	// Dropped counts findings behind the first maxFindings.
	Dropped int `json:"dropped,omitempty"`
}
