package provider

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-log/tflog"

	"gpufabric.io/provider/internal/release"
)

// redaction hides the values of values_wo in texts of others: a chart's refusal, an answer of the API server, a pod's message.
type redaction struct {
	values   []string
	replacer *strings.Replacer
}

const (
	redacted = "(secret)"
	// Shorter values are not hidden: "a" or "12" appears in every sentence. A mapping's keys are no secrets.
	shortestSecret = 4
)

// redactionOf hides every text and number of the values. It knows a value as it is, quoted, in base64, and each longer line of one that has
// several.
func redactionOf(values map[string]string) *redaction {
	r := &redaction{}
	add := func(text string) {
		if len(text) >= shortestSecret && text != "true" && text != "false" && text != "null" {
			r.values = append(r.values, text)
		}
	}
	for _, value := range values {
		quoted := strconv.Quote(value)
		add(value)
		add(quoted[1 : len(quoted)-1])
		if len(value) >= shortestSecret {
			add(base64.StdEncoding.EncodeToString([]byte(value)))
		}
		for line := range strings.Lines(value) {
			add(strings.TrimSpace(line))
		}
	}
	// The replacer takes the first match, so the longest must come first.
	slices.SortFunc(r.values, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) })
	r.values = slices.Compact(r.values)
	pairs := make([]string, 0, 2*len(r.values))
	for _, value := range r.values {
		pairs = append(pairs, value, redacted)
	}
	r.replacer = strings.NewReplacer(pairs...)
	return r
}

// redaction is the redaction of the configuration's values_wo. A document that cannot be read is hidden line by line.
func (m *driverStackModel) redaction(ctx context.Context) *redaction {
	var documents []types.String
	if !m.SecretValues.IsNull() && !m.SecretValues.IsUnknown() {
		m.SecretValues.ElementsAs(ctx, &documents, false)
	}
	values := map[string]string{}
	for i, document := range documents {
		parsed, err := release.ParseValues(document.ValueString())
		if err != nil {
			values[strconv.Itoa(i)] = document.ValueString()
			continue
		}
		for key, value := range release.Flatten(parsed) {
			values[fmt.Sprintf("%d.%s", i, key)] = value
		}
	}
	return redactionOf(values)
}

// redactionIn is that of the values with these names in a release.
func redactionIn(r *release.Release, names []string) *redaction {
	if r == nil {
		return redactionOf(nil)
	}
	all, hidden := release.Flatten(r.Values), map[string]string{}
	for _, name := range names {
		hidden[name] = all[name]
	}
	return redactionOf(hidden)
}

// log gives a context whose log hides the values too.
func (r *redaction) log(ctx context.Context) context.Context {
	if len(r.values) == 0 {
		return ctx
	}
	return tflog.MaskAllFieldValuesStrings(tflog.MaskMessageStrings(ctx, r.values...), r.values...)
}

func (r *redaction) hide(text string) string { return r.replacer.Replace(text) }

func (r *redaction) hideAll(texts []string) []string {
	hidden := make([]string, len(texts))
	for i, text := range texts {
		hidden[i] = r.hide(text)
	}
	return hidden
}

// purge hides the values in diagnostics.
func (r *redaction) purge(diags *diag.Diagnostics) {
	for i, d := range *diags {
		summary, detail := r.hide(d.Summary()), r.hide(d.Detail())
		if summary == d.Summary() && detail == d.Detail() {
			continue
		}
		var hidden diag.Diagnostic = diag.NewErrorDiagnostic(summary, detail)
		if d.Severity() == diag.SeverityWarning {
			hidden = diag.NewWarningDiagnostic(summary, detail)
		}
		if at, ok := d.(diag.DiagnosticWithPath); ok {
			hidden = diag.WithPath(at.Path(), hidden)
		}
		(*diags)[i] = hidden
	}
}
