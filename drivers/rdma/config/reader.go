package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// reader walks a tree, collecting values and problems.
type reader struct {
	problems Error
	lines    map[string]int  // of each path seen
	bad      map[string]bool // paths whose value has the wrong type: no further report about them or fields below
}

func (r *reader) report(at *field.Path, line int, message string) {
	path := ""
	if at != nil {
		path = at.String()
	}
	r.problems = append(r.problems, Problem{Path: path, Line: line, Message: message})
}

func (r *reader) mistype(at *field.Path, n *node, want string) {
	if at != nil {
		r.bad[at.String()] = true
	}
	r.report(at, n.line, fmt.Sprintf("must be %s, not %s", want, n.kind()))
}

// reported reports whether a problem of path's type, or of a parent's, was already reported.
func (r *reader) reported(path string) bool {
	for bad := range r.bad {
		if path == bad || strings.HasPrefix(path, bad+".") || strings.HasPrefix(path, bad+"[") {
			return true
		}
	}
	return false
}

// line returns the line of path, or of its nearest existing parent.
func (r *reader) line(path string) int {
	for path != "" {
		if line := r.lines[path]; line > 0 {
			return line
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	return 0
}

// object reads the members of n, each with the function for its key.
func (r *reader) object(at *field.Path, n *node, fields map[string]func(*field.Path, *node)) {
	members, ok := n.value.([]jsonMember)
	if !ok {
		r.mistype(at, n, "an object")
		return
	}
	seen := make(map[string]int)
	for _, m := range members {
		path := at.Child(m.key)
		read := fields[m.key]
		switch {
		case read == nil:
			r.report(path, m.line, "unknown key; "+hint(m.key, fields))
			continue
		case seen[m.key] > 0:
			r.report(path, m.line, fmt.Sprintf("is in line %d already", seen[m.key]))
			continue
		}
		seen[m.key] = m.line
		r.lines[path.String()] = m.value.line
		read(path, m.value)
	}
}

// hint lists the known keys, or suggests the one that was meant.
func hint(key string, fields map[string]func(*field.Path, *node)) string {
	if fields["configList"] != nil && (key == "mode" || key == "pfNetdevices") {
		return `the file has the plugin's form of 2018; since 2019 it is {"configList": [{"resourceName": "hca", "rdmaHcaMax": 1000, ` +
			`"devices": ["ib0"]}]}, with the names of pfNetdevices as devices`
	}
	known := slices.Sorted(maps.Keys(fields))
	for _, name := range known {
		if near(strings.ToLower(key), strings.ToLower(name)) {
			return fmt.Sprintf("did you mean %q?", name)
		}
	}
	return "known are " + strings.Join(known, ", ")
}

// near reports whether a and b differ in at most one character: changed, added or missing.
func near(a, b string) bool {
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	return len(a) <= 1 && len(b) <= 1
}

// array reads the elements of n. null counts as absent.
func (r *reader) array(at *field.Path, n *node, element func(*field.Path, *node)) {
	if n.value == nil {
		return
	}
	elements, ok := n.value.([]*node)
	if !ok {
		r.mistype(at, n, "an array")
		return
	}
	for i, e := range elements {
		path := at.Index(i)
		r.lines[path.String()] = e.line
		element(path, e)
	}
}

// text reads a string into target.
func (r *reader) text(target *string) func(*field.Path, *node) {
	return func(at *field.Path, n *node) {
		if v, ok := n.value.(string); ok {
			*target = v
		} else if n.value != nil {
			r.mistype(at, n, "a string")
		}
	}
}

// texts reads an array of strings into target.
func (r *reader) texts(target *[]string) func(*field.Path, *node) {
	return func(at *field.Path, n *node) {
		r.array(at, n, func(at *field.Path, n *node) {
			v, ok := n.value.(string)
			if !ok {
				r.mistype(at, n, "a string")
			}
			*target = append(*target, v)
		})
	}
}

// boolean reads true or false into target.
func (r *reader) boolean(target *bool) func(*field.Path, *node) {
	return func(at *field.Path, n *node) {
		if v, ok := n.value.(bool); ok {
			*target = v
		} else if n.value != nil {
			r.mistype(at, n, "true or false")
		}
	}
}

// integer reads a whole number from 0 to high. null counts as absent.
func (r *reader) integer(at *field.Path, n *node, high int64, meaning string) (int64, bool) {
	if n.value == nil {
		return 0, false
	}
	number, ok := n.value.(json.Number)
	if !ok {
		r.mistype(at, n, "a whole number")
		return 0, false
	}
	v, err := strconv.ParseInt(number.String(), 10, 64)
	if err != nil || v < 0 || v > high {
		r.bad[at.String()] = true
		r.report(at, n.line, fmt.Sprintf("%s is not a whole number from 0 to %d (%s)", number, high, meaning))
		return 0, false
	}
	return v, true
}
