package profile

import (
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
)

// Schema is the JSON Schema of a profile file, made from the types into which it is read. With it an editor offers the keys and
// marks mistakes. Only `fakefabric validate` finds mistakes that need the whole file (two devices in one place).
func Schema() ([]byte, error) {
	s := schemaOf(reflect.TypeFor[Profile]())
	s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	s["title"] = "fakefabric profile"
	return json.MarshalIndent(s, "", "  ")
}

func schemaOf(t reflect.Type) map[string]any {
	switch t.Kind() {
	case reflect.Pointer:
		return schemaOf(t.Elem())
	case reflect.Slice:
		return map[string]any{"type": "array", "items": schemaOf(t.Elem())}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Struct:
		return structSchema(t)
	}
	return map[string]any{"type": "integer"}
}

func structSchema(t reflect.Type) map[string]any {
	properties, required := map[string]any{}, []string{}
	for i := range t.NumField() {
		f := t.Field(i)
		name := f.Tag.Get("yaml")
		p := schemaOf(f.Type)
		if v := f.Tag.Get("pattern"); v != "" {
			p["pattern"] = v
		}
		if v := f.Tag.Get("enum"); v != "" {
			p["enum"] = strings.Split(v, ",")
		}
		for _, bound := range []string{"minimum", "maximum"} {
			if v, err := strconv.Atoi(f.Tag.Get(bound)); err == nil {
				p[bound] = v
			}
		}
		if f.Tag.Get("required") != "" {
			required = append(required, name)
			if f.Type.Kind() == reflect.Slice {
				p["minItems"] = 1
			}
		}
		properties[name] = p
	}
	s := map[string]any{"type": "object", "additionalProperties": false, "properties": properties}
	if len(required) > 0 {
		s["required"] = required
	}
	return s
}
