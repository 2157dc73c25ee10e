package opaque

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	kjson "sigs.k8s.io/json"
)

// wrongType explains a value of the wrong JSON type: its field, the value, and what is allowed. The decoder's own error names Go's
// types and shows no value. It returns any other error unchanged.
func wrongType(raw []byte, err error) error {
	var wrong *json.UnmarshalTypeError
	if !errors.As(err, &wrong) || wrong.Field == "" {
		return err
	}
	return fmt.Errorf("%s: Invalid value: %s: must be %s", wrong.Field, valueAt(raw, wrong.Field), words(wrong.Type))
}

// valueAt returns the JSON text of a field given as "sharing.mpsConfig", cut to half a line.
func valueAt(raw []byte, path string) string {
	var value any
	if kjson.UnmarshalCaseSensitivePreserveInts(raw, &value) != nil {
		return "?"
	}
	for name := range strings.SplitSeq(path, ".") {
		object, ok := value.(map[string]any)
		if !ok {
			break // the value is where an object is expected
		}
		value = object[name]
	}
	text, err := json.Marshal(value)
	if err != nil {
		return "?"
	}
	if len(text) > 80 {
		return strings.ToValidUTF8(string(text[:80]), "") + "…"
	}
	return string(text)
}

// words describes the values that a field of a type accepts.
func words(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Int, reflect.Int32, reflect.Int64:
		return "a whole number"
	case reflect.String:
		return "a word in quotation marks"
	case reflect.Bool:
		return "true or false"
	case reflect.Map, reflect.Struct:
		return "an object"
	case reflect.Slice:
		return "a list"
	default:
		return t.String()
	}
}
