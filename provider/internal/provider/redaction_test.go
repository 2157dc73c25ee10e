package provider

import (
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
)

func TestRedactionHidesValueInEveryEncoding(t *testing.T) {
	r := redactionOf(
		map[string]string{
			"password": "canary\"one",
			"long":     "canary\"one and more",
			"key":      "-----BEGIN-----\ncanary-two\n-----END-----",
			"on":       "true",
			"n":        "7",
		},
	)
	for name, text := range map[string]string{
		"as it is":            `values don't meet the schema: canary"one`,
		"quoted":              `Invalid value: "canary\"one": too short`,
		"in base64":           "data.password: Y2FuYXJ5Im9uZQ==",
		"within a longer one": `it says canary"one and more`,
		"a line of several":   "line 2: canary-two is not PEM",
	} {
		if got := r.hide(text); strings.Contains(got, "canary") || strings.Contains(got, "Y2Fu") || strings.Contains(got, "and more") ||
			!strings.Contains(got, redacted) {
			t.Errorf("%s: %s", name, got)
		}
	}
	if got := r.hide("true of 7 pods"); got != "true of 7 pods" {
		t.Errorf("what is in every sentence was hidden: %s", got)
	}
}

func TestRedactionKeepsPathAndSeverityOfDiagnostic(t *testing.T) {
	var diags diag.Diagnostics
	diags.AddAttributeError(path.Root("values_wo"), "Bad canary", "it is canary")
	diags.AddWarning("Left behind", "canary")
	diags.AddWarning("Untouched", "nothing")
	redactionOf(map[string]string{"a": "canary"}).purge(&diags)
	want := diag.Diagnostics{
		diag.NewAttributeErrorDiagnostic(path.Root("values_wo"), "Bad (secret)", "it is (secret)"),
		diag.NewWarningDiagnostic("Left behind", redacted),
		diag.NewWarningDiagnostic("Untouched", "nothing"),
	}
	if len(diags) != len(want) || !diags.Equal(want) {
		t.Errorf("%+v", diags)
	}
}
