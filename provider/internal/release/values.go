package release

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"helm.sh/helm/v3/pkg/chartutil"
	"sigs.k8s.io/yaml"
)

// ParseValues reads one YAML document of values. Anything but a mapping is an error.
func ParseValues(text string) (map[string]any, error) {
	var parsed any
	if err := yaml.UnmarshalStrict([]byte(text), &parsed); err != nil {
		return nil, fmt.Errorf("not valid YAML: %w", err)
	}
	switch v := parsed.(type) {
	case nil:
		return map[string]any{}, nil
	case map[string]any:
		return v, nil
	}
	return nil, fmt.Errorf("chart values are a YAML mapping (key: value), but this is %s", describe(parsed))
}

// describe shows nothing of v, which may be secret.
func describe(v any) string {
	switch v.(type) {
	case []any:
		return "a list"
	case string:
		return "a text; to read a file write file(\"...\")"
	}
	return "a single value"
}

// MergeValues merges documents in order, later ones over earlier ones, as `helm -f a -f b` does: mappings are merged, anything else
// (lists too) is replaced.
func MergeValues(documents []map[string]any) map[string]any {
	merged := map[string]any{}
	for _, d := range documents {
		merged = chartutil.MergeTables(deepCopy(d), merged)
	}
	return merged
}

// Flatten turns nested values into "a.b[0]" -> text, so that a plan can show which single value changes.
func Flatten(values map[string]any) map[string]string {
	flat := map[string]string{}
	flatten(flat, "", values)
	return flat
}

func flatten(into map[string]string, prefix string, value any) {
	switch v := value.(type) {
	case map[string]any:
		if len(v) == 0 && prefix != "" {
			into[prefix] = "{}"
		}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			name := key
			if prefix != "" {
				name = prefix + "." + key
			}
			flatten(into, name, v[key])
		}
	case []any:
		if len(v) == 0 {
			into[prefix] = "[]"
		}
		for i, item := range v {
			flatten(into, prefix+"["+strconv.Itoa(i)+"]", item)
		}
	case string:
		into[prefix] = v
	default:
		text, err := json.Marshal(v)
		if err != nil {
			text = fmt.Append(nil, v)
		}
		into[prefix] = string(text)
	}
}

func deepCopy(values map[string]any) map[string]any {
	return copyValue(values).(map[string]any)
}

func copyValue(value any) any {
	switch v := value.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for key, item := range v {
			out[key] = copyValue(item)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, item := range v {
			out[i] = copyValue(item)
		}
		return out
	}
	return value
}
