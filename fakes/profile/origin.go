package profile

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// Origin lists keys of the profile by the origin of their values. A key covers all keys below it that no longer key names;
// list indices are left out (gpus.devices.pci).
type Origin struct {
	// Captured values were printed by a program on a real machine.
	Captured []string `yaml:"captured"`
	// Datasheet values are from documents or sources of the vendor.
	Datasheet []string `yaml:"datasheet"`
	// Invented values are assumed: they have the right form, and a real machine may have others.
	Invented []string `yaml:"invented"`
}

// Value is one value of a profile.
type Value struct {
	// Path is the key, e.g. gpus.devices[2].pci.
	Path  string
	Value any
	// Origin is captured, datasheet or invented; empty where the profile does not list the key.
	Origin string
}

var index = regexp.MustCompile(`\[[0-9]+\]`)

// Origins lists the values that the profile sets (those that are not zero) with their origins, in the order of the keys.
func (p *Profile) Origins() []Value {
	origins := p.Origin.byKey()
	var all []Value
	walk(reflect.ValueOf(*p), "", func(path string, v any) {
		key := index.ReplaceAllString(path, "")
		if slices.Contains([]string{"name", "summary", "source", "preRelease"}, key) || strings.HasPrefix(key, "origin.") {
			return
		}
		value := Value{Path: path, Value: v}
		for k := key; k != "" && value.Origin == ""; k = above(k) {
			value.Origin = origins[k]
		}
		all = append(all, value)
	})
	return all
}

// above cuts the last part of a key off; a key of one part has none above it.
func above(key string) string { return key[:max(strings.LastIndexByte(key, '.'), 0)] }

func (o Origin) byKey() map[string]string {
	m := map[string]string{}
	for origin, list := range o.lists() {
		for _, key := range list {
			m[key] = origin
		}
	}
	return m
}

func (o Origin) lists() map[string][]string {
	return map[string][]string{"captured": o.Captured, "datasheet": o.Datasheet, "invented": o.Invented}
}

// walk calls visit for each scalar that is not zero.
func walk(v reflect.Value, path string, visit func(string, any)) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			walk(v.Elem(), path, visit)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			name := v.Type().Field(i).Tag.Get("yaml")
			walk(v.Field(i), strings.TrimPrefix(path+"."+name, "."), visit)
		}
	case reflect.Slice:
		for i := range v.Len() {
			walk(v.Index(i), fmt.Sprintf("%s[%d]", path, i), visit)
		}
	default:
		if !v.IsZero() {
			visit(path, v.Interface())
		}
	}
}

// originSemantics reports keys that do not exist in a profile, or that two origins list.
func (c *checks) originSemantics(p *Profile) {
	seen := map[string]string{}
	for _, origin := range []string{"captured", "datasheet", "invented"} {
		for i, key := range p.Origin.lists()[origin] {
			path := fmt.Sprintf("origin.%s[%d]", origin, i)
			if !isKey(reflect.TypeFor[Profile](), key) {
				c.At(path, "%q is no key of a profile; one like gpus.model.memoryMiB is wanted", key)
			}
			if other := seen[key]; other != "" {
				c.At(path, "%q is listed in origin.%s too", key, other)
			}
			seen[key] = origin
		}
	}
}

func isKey(t reflect.Type, key string) bool {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if key == "" {
		return true
	}
	if t.Kind() != reflect.Struct {
		return false
	}
	first, rest, _ := strings.Cut(key, ".")
	for i := range t.NumField() {
		if t.Field(i).Tag.Get("yaml") == first {
			return isKey(t.Field(i).Type, rest)
		}
	}
	return false
}
