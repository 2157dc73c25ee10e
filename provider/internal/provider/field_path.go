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
		text := where.String()
		if steps := fieldSteps(err.Field); len(steps) > 0 { // a field of an element of a set
			last := steps[len(steps)-1]
			if name := snakeCase(last.text); !last.bracket && !strings.HasSuffix(text, name) {
				text += "[*]." + name
			}
		}
		diags.AddAttributeError(where, "Invalid "+kind, text+": "+err.ErrorBody()+".")
	}
}

// attributePath turns spec.selectors.pciAddresses[0] into selectors.pci_addresses: the schemas of most resources differ from the API's
// only in how names are written, and in that lists without an order are sets, whose elements have no place. The error names the element.
func attributePath(fieldPath string) path.Path {
	at := path.Empty()
	for _, s := range fieldSteps(fieldPath) {
		if s.place() {
			break
		}
		at = s.append(at)
	}
	return at
}

// fieldStep is one step of a field path: a field's name, or the text in brackets.
type fieldStep struct {
	text    string
	bracket bool
}

// place reports whether the step is an index of a list.
func (s fieldStep) place() bool {
	_, err := strconv.Atoi(s.text)
	return s.bracket && err == nil
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
