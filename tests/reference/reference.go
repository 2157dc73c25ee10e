// Package reference writes the fields of the custom resources into their pages, docs/resources/*.md, from the CRDs. The text before
// the mark is written by hand.
package reference

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// CRDs is the directory of the definitions in the checkout, Pages that of their pages.
const (
	CRDs  = "drivers/api/crds"
	Pages = "docs/resources"
)

// mark ends the text that is written by hand.
const mark = "<!-- What follows is written by `make generate` from the CRD. -->\n"

// Render returns the text of each page by its path: its hand-written head, and the fields.
func Render(root string) (map[string]string, error) {
	files, err := filepath.Glob(filepath.Join(root, CRDs, "*.yaml"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("no CRDs in %s: %w", CRDs, err)
	}
	out := map[string]string{}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var crd apiextensions.CustomResourceDefinition
		if err := yaml.Unmarshal(content, &crd); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		path := filepath.Join(Pages, crd.Spec.Names.Singular+".md")
		page, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			return nil, fmt.Errorf("the custom resource %s has no page: write its head (what it is, an example),"+
				" ending with the line %q: %w",
				crd.Spec.Names.Kind, strings.TrimSpace(mark), err)
		}
		head, _, ok := strings.Cut(string(page), mark)
		if !ok {
			return nil, fmt.Errorf("%s lacks the line %q, after which its fields are written", path, strings.TrimSpace(mark))
		}
		out[path] = head + mark + fields(&crd)
	}
	return out, nil
}

// fields are the tables of a resource.
func fields(crd *apiextensions.CustomResourceDefinition) string {
	version := crd.Spec.Versions[len(crd.Spec.Versions)-1]
	var out strings.Builder
	scope := "one namespace"
	if crd.Spec.Scope == apiextensions.ClusterScoped {
		scope = "the cluster"
	}
	fmt.Fprintf(&out, "\n## Fields\n\n`apiVersion: %s/%s`, `kind: %s`. Its name is unique in %s.\n",
		crd.Spec.Group, version.Name, crd.Spec.Names.Kind, scope)
	if columns := version.AdditionalPrinterColumns; len(columns) > 0 {
		var names []string
		for _, c := range columns {
			names = append(names, c.Name)
		}
		fmt.Fprintf(&out, "`kubectl get %s` shows %s.\n", crd.Spec.Names.Plural, strings.Join(names, ", "))
	}
	for _, part := range []string{"spec", "status"} {
		schema, ok := version.Schema.OpenAPIV3Schema.Properties[part]
		if !ok {
			continue
		}
		fmt.Fprintf(&out, "\n### %s\n\n| field | type | meaning |\n|---|---|---|\n", part)
		rows(&out, "", &schema)
	}
	return out.String()
}

// rows writes a row a field, depth first, in the order of their names.
func rows(out *strings.Builder, path string, schema *apiextensions.JSONSchemaProps) {
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		property := schema.Properties[name]
		at := name
		if path != "" {
			at = path + "." + name
		}
		required := ""
		if slices.Contains(schema.Required, name) {
			required = ", required"
		}
		fmt.Fprintf(out, "| `%s` | %s%s | %s |\n", at, kind(&property), required, meaning(&property))
		below := &property
		switch {
		case known(&property, name):
			continue
		case property.Items != nil && property.Items.Schema != nil:
			below, at = property.Items.Schema, at+"[]"
		case property.AdditionalProperties != nil && property.AdditionalProperties.Schema != nil:
			below, at = property.AdditionalProperties.Schema, at+".*"
			if below.Items != nil && below.Items.Schema != nil {
				below, at = below.Items.Schema, at+"[]"
			}
		}
		rows(out, at, below)
	}
}

// known means that a field has one of Kubernetes' own types, whose fields are not repeated.
func known(schema *apiextensions.JSONSchemaProps, name string) bool {
	_, selector := schema.Properties["matchLabels"]
	return selector || name == "conditions"
}

func kind(schema *apiextensions.JSONSchemaProps) string {
	switch {
	case schema.Properties["matchLabels"].Type != "":
		return "label selector"
	case schema.XIntOrString:
		return "quantity"
	case schema.Items != nil && schema.Items.Schema != nil:
		return "list of " + kind(schema.Items.Schema)
	case schema.AdditionalProperties != nil && schema.AdditionalProperties.Schema != nil:
		return "map of " + kind(schema.AdditionalProperties.Schema)
	case schema.Type == "":
		return "any"
	default:
		return schema.Type
	}
}

// meaning is the description with what is allowed.
func meaning(schema *apiextensions.JSONSchemaProps) string {
	words := []string{strings.Join(strings.Fields(schema.Description), " ")}
	if len(schema.Enum) > 0 {
		var values []string
		for _, value := range schema.Enum {
			values = append(values, "`"+strings.Trim(string(value.Raw), `"`)+"`")
		}
		words = append(words, "One of "+strings.Join(values, ", ")+".")
	}
	if schema.Default != nil {
		words = append(words, "Default: `"+strings.Trim(string(schema.Default.Raw), `"`)+"`.")
	}
	switch {
	case schema.Minimum != nil && schema.Maximum != nil:
		words = append(words, fmt.Sprintf("%v to %v.", *schema.Minimum, *schema.Maximum))
	case schema.Minimum != nil:
		words = append(words, fmt.Sprintf("At least %v.", *schema.Minimum))
	}
	if schema.MaxLength != nil {
		words = append(words, fmt.Sprintf("At most %d characters.", *schema.MaxLength))
	}
	if schema.MaxItems != nil {
		words = append(words, fmt.Sprintf("At most %d entries.", *schema.MaxItems))
	}
	for _, rule := range schema.XValidations {
		if rule.Message != "" {
			words = append(words, rule.Message+".")
		}
	}
	return strings.NewReplacer("|", `\|`, "\n", " ").Replace(strings.TrimSpace(strings.Join(words, " ")))
}
