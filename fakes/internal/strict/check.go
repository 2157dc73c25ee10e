// Package strict reads YAML into Go structs and reports every mistake with its line and key: unknown keys, wrong types, missing
// values, and values that the struct tags required, pattern, enum, minimum and maximum do not allow.
package strict

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Checker compares a YAML tree with the Go types into which it will be decoded, and collects every mistake with its line.
type Checker struct {
	file     string
	problems []Problem
	// lines stores the line of each path, for checks that need the whole file.
	lines map[string]int
}

// ReadFile returns the content of a file, and refuses one of more than limit MiB: a device or a wrong file would fill the memory.
func ReadFile(path string, limit int64) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // only read from
	data, err := io.ReadAll(io.LimitReader(file, limit<<20+1))
	if err == nil && int64(len(data)) > limit<<20 {
		err = fmt.Errorf("%s has more than the %d MiB that are allowed", path, limit)
	}
	return data, err
}

// Decode reads YAML into v, a pointer to a struct. The checker that it returns can report further mistakes, found in v. Do not use
// v until the checker's Err is nil.
func Decode(file string, data []byte, v any) *Checker {
	c := &Checker{file: file, lines: map[string]int{}}
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		c.add(yamlLine(err), "(file)", "%s", strings.TrimPrefix(err.Error(), "yaml: "))
		return c
	}
	if doc.Kind != yaml.DocumentNode || len(doc.Content) == 0 {
		c.add(1, "(file)", "is empty")
		return c
	}
	c.check(doc.Content[0], reflect.TypeOf(v).Elem(), "")
	if len(c.problems) == 0 {
		if err := doc.Content[0].Decode(v); err != nil {
			c.add(yamlLine(err), "(file)", "%v", err)
		}
	}
	return c
}

// Problem is one mistake in a file.
type Problem struct {
	// File and Line are the place; Line counts from 1.
	File string
	Line int
	// Path is the key, e.g. gpus.devices[2].pci.
	Path string
	// Message gives the mistake and the allowed values.
	Message string
}

// Error gives "file:line: path: message".
func (p Problem) Error() string {
	return fmt.Sprintf("%s:%d: %s: %s", p.File, p.Line, p.Path, p.Message)
}

// Problems splits the error of Err.
func Problems(err error) []Problem {
	var one Problem
	var many interface{ Unwrap() []error }
	switch {
	case errors.As(err, &many):
		var all []Problem
		for _, e := range many.Unwrap() {
			all = append(all, Problems(e)...)
		}
		return all
	case errors.As(err, &one):
		return []Problem{one}
	}
	return nil
}

// yamlLine finds the line number that the YAML parser put into its message.
func yamlLine(err error) int {
	line := 1
	if i := strings.Index(err.Error(), "line "); i >= 0 {
		if _, scanErr := fmt.Sscanf(err.Error()[i:], "line %d", &line); scanErr != nil {
			return 1
		}
	}
	return line
}

func (c *Checker) add(line int, path, format string, args ...any) {
	if path == "" {
		path = "(top level)"
	}
	c.problems = append(c.problems, Problem{File: c.file, Line: line, Path: path, Message: fmt.Sprintf(format, args...)})
}

// At reports a mistake at a path seen before; where the key itself is absent, the nearest parent's line is used.
func (c *Checker) At(path, format string, args ...any) {
	line := 1
	for p := path; p != ""; p = parent(p) {
		if l, ok := c.lines[p]; ok {
			line = l
			break
		}
	}
	c.add(line, path, format, args...)
}

func parent(path string) string {
	return path[:max(strings.LastIndexAny(path, ".["), 0)]
}

// Err is every mistake found so far, in the order of their lines, joined; each is a Problem.
func (c *Checker) Err() error {
	slices.SortStableFunc(c.problems, func(a, b Problem) int { return cmp.Compare(a.Line, b.Line) })
	errs := make([]error, len(c.problems))
	for i, p := range c.problems {
		errs[i] = p
	}
	return errors.Join(errs...)
}

// check walks one YAML node against one Go type.
func (c *Checker) check(n *yaml.Node, t reflect.Type, path string) {
	if n.Kind == yaml.AliasNode {
		c.add(n.Line, path, "aliases are not used in profiles; write the value out")
		return
	}
	c.lines[path] = n.Line
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Struct:
		c.checkStruct(n, t, path)
	case reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			c.add(n.Line, path, "is %s; a list is wanted", kindName(n))
			return
		}
		for i, item := range n.Content {
			c.check(item, t.Elem(), fmt.Sprintf("%s[%d]", path, i))
		}
	case reflect.Map:
		c.checkMap(n, t, path)
	default:
		c.checkScalar(n, t, path)
	}
}

func (c *Checker) checkMap(n *yaml.Node, t reflect.Type, path string) {
	if n.Kind != yaml.MappingNode {
		c.add(n.Line, path, "is %s; a mapping is wanted", kindName(n))
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		c.check(n.Content[i+1], t.Elem(), join(path, n.Content[i].Value))
	}
}

func (c *Checker) checkStruct(n *yaml.Node, t reflect.Type, path string) {
	if n.Kind != yaml.MappingNode {
		c.add(n.Line, path, "is %s; a mapping is wanted", kindName(n))
		return
	}
	fields := fieldsOf(t)
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		sub := join(path, key.Value)
		f, ok := fields[key.Value]
		switch {
		case !ok:
			c.add(key.Line, sub, "unknown key; allowed here: %s", strings.Join(keys(t), ", "))
			continue
		case seen[key.Value]:
			c.add(key.Line, sub, "occurs twice")
			continue
		}
		seen[key.Value] = true
		before := len(c.problems)
		c.check(value, f.Type, sub)
		if len(c.problems) == before && value.Kind == yaml.ScalarNode {
			c.checkTags(value, f, sub)
		}
		if f.Tag.Get("required") != "" && value.Kind == yaml.SequenceNode && len(value.Content) == 0 {
			c.add(value.Line, sub, "is empty; at least one item is needed")
		}
	}
	for _, k := range keys(t) {
		if fields[k].Tag.Get("required") != "" && !seen[k] {
			c.add(n.Line, join(path, k), "is missing")
		}
	}
}

func (c *Checker) checkScalar(n *yaml.Node, t reflect.Type, path string) {
	if n.Kind != yaml.ScalarNode {
		c.add(n.Line, path, "is %s; a %s is wanted", kindName(n), t.Kind())
		return
	}
	err := n.Decode(reflect.New(t).Interface())
	if err == nil && n.Tag == "!!float" && t.Kind() != reflect.Float64 && t.Kind() != reflect.String {
		err = errors.New("the decoder would cut the fraction off")
	}
	if err != nil {
		c.add(n.Line, path, "is %s; a %s is wanted", quoted(n), wanted(t))
	}
}

// checkTags checks a scalar against the field's pattern, enum, minimum and maximum.
// quoted is a value as messages have it: its beginning, where it is long.
func quoted(n *yaml.Node) string {
	const most = 80
	if len(n.Value) <= most {
		return strconv.Quote(n.Value)
	}
	return fmt.Sprintf("%q and %d bytes more", n.Value[:most], len(n.Value)-most)
}

func (c *Checker) checkTags(n *yaml.Node, f reflect.StructField, path string) {
	if p := f.Tag.Get("pattern"); p != "" && !regexp.MustCompile(p).MatchString(n.Value) {
		c.add(n.Line, path, "is %s; it must match %s", quoted(n), p)
	}
	if e := f.Tag.Get("enum"); e != "" && !slices.Contains(strings.Split(e, ","), n.Value) {
		c.add(n.Line, path, "is %s; allowed: %s", quoted(n), strings.ReplaceAll(e, ",", ", "))
	}
	if f.Tag.Get("required") != "" && n.Value == "" {
		c.add(n.Line, path, "is empty")
	}
	v, err := strconv.ParseInt(n.Value, 0, 64)
	if err != nil {
		return
	}
	if m := f.Tag.Get("minimum"); m != "" && v < mustInt(m) {
		c.add(n.Line, path, "is %d; at least %s is needed", v, m)
	}
	if m := f.Tag.Get("maximum"); m != "" && v > mustInt(m) {
		c.add(n.Line, path, "is %d; at most %s is allowed", v, m)
	}
}

func mustInt(tag string) int64 {
	v, err := strconv.ParseInt(tag, 10, 64)
	if err != nil {
		panic("profile: bad number in a struct tag: " + tag)
	}
	return v
}

func wanted(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "text"
	}
	return "whole number"
}

func kindName(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	return fmt.Sprintf("%q", n.Value)
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// fieldsOf maps a struct's YAML keys to its fields.
func fieldsOf(t reflect.Type) map[string]reflect.StructField {
	m := map[string]reflect.StructField{}
	for i := range t.NumField() {
		m[t.Field(i).Tag.Get("yaml")] = t.Field(i)
	}
	return m
}

// keys lists a struct's YAML keys in the order of its fields.
func keys(t reflect.Type) []string {
	var ks []string
	for i := range t.NumField() {
		ks = append(ks, t.Field(i).Tag.Get("yaml"))
	}
	return ks
}
