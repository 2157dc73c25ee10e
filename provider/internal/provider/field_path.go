package provider

import (
	"strconv"
	"strings"
	"unicode"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// addFieldErrors reports errors of the API's own validation at the attributes of the configuration.
func addFieldErrors(diags *diag.Diagnostics, kind string, errs field.ErrorList, at func(fieldPath string) path.Path) {
	for _, err := range errs {
		where := at(err.Field)
		diags.AddAttributeError(where, "Invalid "+kind, where.String()+": "+err.ErrorBody()+".")
	}
}

// attributePath turns spec.selectors.pciAddresses[0] into selectors.pci_addresses[0]: the schemas of most resources differ from the API's
// only in how names are written.
func attributePath(fieldPath string) path.Path {
	at := path.Empty()
	for _, s := range fieldSteps(fieldPath) {
		at = s.append(at)
	}
	return at
}

// fieldStep is one step of a field path: a field's name, or what stood in brackets.
type fieldStep struct {
	text    string
	bracket bool
}

func (s fieldStep) append(at path.Path) path.Path {
	if !s.bracket {
		return at.AtName(snakeCase(s.text))
	}
	if i, err := strconv.Atoi(s.text); err == nil {
		return at.AtListIndex(i)
	}
	return at.AtMapKey(s.text)
}

// fieldSteps splits spec.a[0].b[k.e.y] into steps, without spec.
func fieldSteps(fieldPath string) []fieldStep {
	var steps []fieldStep
	rest := fieldPath
	for rest != "" {
		if inside, ok := strings.CutPrefix(rest, "["); ok {
			text, after, _ := strings.Cut(inside, "]")
			steps, rest = append(steps, fieldStep{text, true}), strings.TrimPrefix(after, ".")
			continue
		}
		end := strings.IndexAny(rest, ".[")
		if end < 0 {
			end = len(rest)
		}
		steps = append(steps, fieldStep{rest[:end], false})
		rest = strings.TrimPrefix(rest[end:], ".")
	}
	if len(steps) > 0 && steps[0].text == "spec" {
		steps = steps[1:]
	}
	return steps
}

// snakeCase writes an API field's name as an attribute's: a run of capitals is one word (deviceIDs: device_ids, pciAddresses:
// pci_addresses).
func snakeCase(name string) string {
	var out strings.Builder
	runes := []rune(strings.ReplaceAll(name, "-", "_"))
	for i, r := range runes {
		if unicode.IsUpper(r) && i > 0 && !unicode.IsUpper(runes[i-1]) {
			out.WriteByte('_')
		}
		out.WriteRune(unicode.ToLower(r))
	}
	return out.String()
}
