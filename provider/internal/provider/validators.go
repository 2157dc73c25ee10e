package provider

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"k8s.io/apimachinery/pkg/util/validation"

	"gpufabric.io/provider/internal/fabric"
	"gpufabric.io/provider/internal/object"
	"gpufabric.io/provider/internal/release"
)

// notEmpty refuses an empty string where the API treats it as an omitted attribute: it would come back as null or as the default,
// but Terraform expects the planned value.
func notEmpty() []validator.String { return []validator.String{stringvalidator.LengthAtLeast(1)} }

// labelPattern is the pattern of a DNS label.
const labelPattern = `[a-z0-9]([-a-z0-9]*[a-z0-9])?`

// kubernetesName accepts names of objects; kubernetesLabel those that must also be a DNS label, such as namespaces.
func kubernetesName() []validator.String {
	return []validator.String{
		stringvalidator.LengthBetween(1, validation.DNS1123SubdomainMaxLength),
		stringvalidator.RegexMatches(
			regexp.MustCompile(`^`+labelPattern+`(\.`+labelPattern+`)*$`),
			"must consist of lower-case letters, digits, - and ., and start and end with a letter or digit, as each part between dots",
		),
	}
}

func kubernetesLabel() []validator.String {
	return []validator.String{
		stringvalidator.LengthBetween(1, validation.DNS1123LabelMaxLength),
		stringvalidator.RegexMatches(
			regexp.MustCompile(`^`+labelPattern+`$`),
			"must consist of lower-case letters, digits and -, and start and end with a letter or digit",
		),
	}
}

// helmReleaseName: Helm allows 53 characters, so that 10 remain for suffixes.
func helmReleaseName() []validator.String {
	return append(kubernetesLabel(), stringvalidator.LengthAtMost(53))
}

// metadataMap checks the keys of labels and annotations, and the values of labels.
type metadataMap struct{ labels bool }

func (v metadataMap) Description(context.Context) string {
	if v.labels {
		return "keys and values must be valid Kubernetes labels"
	}
	return "keys must be valid Kubernetes annotation keys"
}

func (v metadataMap) MarkdownDescription(ctx context.Context) string { return v.Description(ctx) }

func (v metadataMap) ValidateMap(_ context.Context, req validator.MapRequest, resp *validator.MapResponse) {
	for key, value := range req.ConfigValue.Elements() {
		at := req.Path.AtMapKey(key)
		if problems := validation.IsQualifiedName(key); len(problems) > 0 {
			resp.Diagnostics.AddAttributeError(
				at,
				"Invalid key",
				fmt.Sprintf("%s: %q is no label or annotation key: %s.", at, key, strings.Join(problems, "; ")),
			)
		}
		if object.IsOwn(key) {
			resp.Diagnostics.AddAttributeError(at, "Reserved annotation", fmt.Sprintf("%s: the provider itself sets %s: remove it.", at, key))
		}
		if !v.labels || value.IsUnknown() || value.IsNull() {
			continue
		}
		text, ok := value.(interface{ ValueString() string })
		if !ok {
			continue
		}
		if problems := validation.IsValidLabelValue(text.ValueString()); len(problems) > 0 {
			resp.Diagnostics.AddAttributeError(
				at,
				"Invalid label value",
				fmt.Sprintf("%s: %q is no label value: %s.", at, text.ValueString(), strings.Join(problems, "; ")),
			)
		}
	}
}

// valuesDocument checks that a string is a YAML mapping.
type valuesDocument struct{}

func (valuesDocument) Description(context.Context) string { return "must be a YAML mapping" }

func (v valuesDocument) MarkdownDescription(ctx context.Context) string { return v.Description(ctx) }

func (valuesDocument) ValidateString(_ context.Context, req validator.StringRequest, resp *validator.StringResponse) {
	if req.ConfigValue.IsNull() || req.ConfigValue.IsUnknown() {
		return
	}
	if _, err := release.ParseValues(req.ConfigValue.ValueString()); err != nil {
		resp.Diagnostics.AddAttributeError(req.Path, "Invalid chart values", fmt.Sprintf("%s: %v.", req.Path, err))
	}
}

// absolutePath checks that a string is an absolute path on a node.
func absolutePath() []validator.String {
	return []validator.String{stringvalidator.RegexMatches(regexp.MustCompile(`^/`), "must be an absolute path on the nodes")}
}

// migProfile checks the form of a MIG profile's name.
type migProfile struct{}

func (migProfile) Description(context.Context) string { return "must be a MIG profile such as 1g.10gb" }

func (v migProfile) MarkdownDescription(ctx context.Context) string { return v.Description(ctx) }

func (migProfile) ValidateString(_ context.Context, req validator.StringRequest, resp *validator.StringResponse) {
	if req.ConfigValue.IsNull() || req.ConfigValue.IsUnknown() {
		return
	}
	if _, err := fabric.ParseMIGProfile(req.ConfigValue.ValueString()); err != nil {
		resp.Diagnostics.AddAttributeError(req.Path, "Invalid MIG profile", fmt.Sprintf("%s: %v.", req.Path, err))
	}
}

// ignorePattern checks the form of an element of drift_ignore.
type ignorePattern struct{}

func (ignorePattern) Description(context.Context) string { return "must be KIND NAMESPACE/NAME: FIELD" }

func (v ignorePattern) MarkdownDescription(ctx context.Context) string { return v.Description(ctx) }

func (ignorePattern) ValidateString(_ context.Context, req validator.StringRequest, resp *validator.StringResponse) {
	if req.ConfigValue.IsNull() || req.ConfigValue.IsUnknown() {
		return
	}
	if _, err := release.ParseIgnored([]string{req.ConfigValue.ValueString()}); err != nil {
		resp.Diagnostics.AddAttributeError(req.Path, "Invalid drift_ignore", fmt.Sprintf("%s: %v.", req.Path, err))
	}
}

// positiveDuration refuses durations in which nothing can be done. The form of a duration is checked elsewhere.
type positiveDuration struct{}

func (positiveDuration) Description(context.Context) string { return "must be more than 0" }

func (v positiveDuration) MarkdownDescription(ctx context.Context) string { return v.Description(ctx) }

func (positiveDuration) ValidateString(_ context.Context, req validator.StringRequest, resp *validator.StringResponse) {
	if d, err := time.ParseDuration(req.ConfigValue.ValueString()); err == nil && d <= 0 {
		resp.Diagnostics.AddAttributeError(req.Path, "Invalid time-out", fmt.Sprintf("%s: %q is no time in which anything can be done: "+
			"write one such as 10m, or leave it out for the default.", req.Path, req.ConfigValue.ValueString()))
	}
}
