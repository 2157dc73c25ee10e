package opaque

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	kjson "sigs.k8s.io/json"
)

// wrongType says of a value of the wrong JSON type which field it is for, what it is, and what is allowed; the decoder's own error speaks
// of Go's types, and shows no value. Any other error is returned as it is.
func wrongType(raw []byte, err error) error {
	var wrong *json.UnmarshalTypeError
	if !errors.As(err, &wrong) || wrong.Field == "" {
		return err
	}
	return fmt.Errorf("%s: Invalid value: %s: must be %s", wrong.Field, valueAt(raw, wrong.Field), words(wrong.Type))
}

// valueAt is the JSON text of a field given as "sharing.mpsConfig", cut to half a line.
func valueAt(raw []byte, path string) string {
	var value any
	if kjson.UnmarshalCaseSensitivePreserveInts(raw, &value) != nil {
		return "?"
	}
	for name := range strings.SplitSeq(path, ".") {
		object, ok := value.(map[string]any)
		if !ok {
			break // the value stands where an object is wanted
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

// words says what a field of a type takes.
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
