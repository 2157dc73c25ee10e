package selector

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/version"
)

type (
	literal struct{ v any }
	array   []node
	whole   struct{} // device
	// junction is && or, where or is true, ||.
	junction struct {
		left, right node
		or          bool
	}
	negation   struct{ of node }
	comparison struct {
		left, right node
		operator    string
	}
	membership struct{ item, in node }
	member     struct{ of, name node }
	call       struct {
		of   node // nil: a function
		name string
		args []node
	}
	// qualified are attributes or capacities, by domain; within are those of one domain.
	qualified struct{ of map[string]map[string]any }
	within    map[string]any
	semver    struct{ *version.Version }
	quantity  struct{ resource.Quantity }
)

func (l literal) value(*subject) any { return l.v }
func (whole) value(s *subject) any   { return s }

func (a array) value(s *subject) any {
	var out []any
	for _, n := range a {
		v := n.value(s)
		if broken(v) {
			return v
		}
		out = append(out, v)
	}
	return out
}

// broken says whether a value ends the evaluation.
func broken(v any) bool {
	switch v.(type) {
	case failure, unknown:
		return true
	}
	return false
}

// value combines as in CEL: an error on one side is ignored where the other side decides.
func (j junction) value(s *subject) any {
	left := j.left.value(s)
	if left == j.or {
		return j.or
	}
	right := j.right.value(s)
	if right == j.or {
		return j.or
	}
	for _, v := range []any{left, right} {
		if u, ok := v.(unknown); ok {
			return u
		}
	}
	for _, v := range []any{left, right} {
		if f, ok := v.(failure); ok {
			return f
		}
		if _, ok := v.(bool); !ok {
			return failure("&& or || of what is no boolean")
		}
	}
	return !j.or
}

func (n negation) value(s *subject) any {
	switch v := n.of.value(s).(type) {
	case bool:
		return !v
	case failure, unknown:
		return v
	}
	return failure("! of what is no boolean")
}

func (c comparison) value(s *subject) any {
	left, right := c.left.value(s), c.right.value(s)
	for _, v := range []any{left, right} {
		if broken(v) {
			return v
		}
	}
	order, equal, ok := compare(left, right)
	if !ok {
		if c.operator == "==" || c.operator == "!=" {
			return unknown("a comparison of two types")
		}
		return failure("no such overload")
	}
	switch c.operator {
	case "==":
		return equal
	case "!=":
		return !equal
	case "<":
		return order < 0
	case "<=":
		return order <= 0
	case ">":
		return order > 0
	}
	return order >= 0
}

// compare orders two values of one type.
func compare(a, b any) (order int, equal, ok bool) {
	switch x := a.(type) {
	case string:
		if y, same := b.(string); same {
			order = strings.Compare(x, y)
			return order, order == 0, true
		}
	case int64:
		if y, same := b.(int64); same {
			order = cmp.Compare(x, y)
			return order, order == 0, true
		}
	case bool:
		if y, same := b.(bool); same {
			return 0, x == y, true
		}
	case semver:
		if y, same := b.(semver); same {
			order = 1
			if x.LessThan(y.Version) {
				order = -1
			} else if !y.LessThan(x.Version) {
				order = 0
			}
			return order, order == 0, true
		}
	case quantity:
		if y, same := b.(quantity); same {
			order = x.Cmp(y.Quantity)
			return order, order == 0, true
		}
	}
	return 0, false, false
}

func (m membership) value(s *subject) any {
	item, in := m.item.value(s), m.in.value(s)
	for _, v := range []any{item, in} {
		if broken(v) {
			return v
		}
	}
	name, text := item.(string)
	switch of := in.(type) {
	case within:
		if text {
			_, has := of[name]
			return has
		}
	case qualified:
		if text {
			_, has := of.of[name]
			return has
		}
	case []any:
		return slices.ContainsFunc(of, func(v any) bool {
			_, equal, _ := compare(item, v)
			return equal
		})
	}
	return unknown("in of another type")
}

func (m member) value(s *subject) any {
	of, key := m.of.value(s), m.name.value(s)
	for _, v := range []any{of, key} {
		if broken(v) {
			return v
		}
	}
	name, ok := key.(string)
	if !ok {
		return unknown("an index that is no text")
	}
	switch v := of.(type) {
	case *subject:
		return v.field(name)
	case qualified:
		if domain, has := v.of[name]; has {
			return within(domain)
		}
		return within{}
	case within:
		if found, has := v[name]; has {
			return found
		}
		return failure("no such key: " + name)
	}
	return unknown("a part of another type")
}

// field is a field of `device`.
func (s *subject) field(name string) any {
	switch name {
	case "driver":
		return s.driver
	case "allowMultipleAllocations":
		return s.device.AllowMultipleAllocations != nil && *s.device.AllowMultipleAllocations
	case "attributes":
		if s.attributes != nil {
			return qualified{s.attributes}
		}
		out := map[string]map[string]any{}
		for name, attribute := range s.device.Attributes {
			s.put(out, name, attributeValue(attribute))
		}
		s.attributes = out
		return qualified{out}
	case "capacity":
		out := map[string]map[string]any{}
		for name, capacity := range s.device.Capacity {
			s.put(out, name, quantity{capacity.Value})
		}
		return qualified{out}
	}
	return unknown("device." + name)
}

// put stores a value under its domain, which is the driver's where the name has none.
func (s *subject) put(out map[string]map[string]any, name resourceapi.QualifiedName, value any) {
	domain, id, ok := strings.Cut(string(name), "/")
	if !ok {
		domain, id = s.driver, string(name)
	}
	if out[domain] == nil {
		out[domain] = map[string]any{}
	}
	out[domain][id] = value
}

func attributeValue(a resourceapi.DeviceAttribute) any {
	switch {
	case a.StringValue != nil:
		return *a.StringValue
	case a.IntValue != nil:
		return *a.IntValue
	case a.BoolValue != nil:
		return *a.BoolValue
	case a.VersionValue != nil:
		if v, err := version.ParseSemantic(*a.VersionValue); err == nil {
			return semver{v}
		}
	}
	return unknown("an attribute of a later type")
}

func (c call) value(s *subject) any {
	var args []any
	if c.of != nil {
		args = append(args, c.of.value(s))
	}
	for _, a := range c.args {
		args = append(args, a.value(s))
	}
	if i := slices.IndexFunc(args, broken); i >= 0 {
		return args[i]
	}
	name := c.name
	if c.of != nil {
		name = "." + name
	}
	if len(args) == 1 {
		if text, ok := args[0].(string); ok {
			return convert(name, text)
		}
	}
	if len(args) == 2 {
		return method(name, args[0], args[1])
	}
	return unknown("the function " + c.name)
}

// convert is a function of one text.
func convert(name, text string) any {
	switch name {
	case "quantity":
		if q, err := resource.ParseQuantity(text); err == nil {
			return quantity{q}
		}
		return failure("no quantity: " + text)
	case "semver":
		if v, err := version.ParseSemantic(text); err == nil {
			return semver{v}
		}
		return failure("no version: " + text)
	case ".lowerAscii":
		return strings.ToLower(text)
	case ".upperAscii":
		return strings.ToUpper(text)
	}
	return unknown("the function " + name)
}

// method is a method of one argument.
func method(name string, of, argument any) any {
	if order, equal, ok := compare(of, argument); ok {
		_, text := of.(string)
		switch {
		case text:
		case name == ".compareTo":
			return int64(order)
		case name == ".isGreaterThan":
			return order > 0
		case name == ".isLessThan":
			return order < 0 && !equal
		}
	}
	x, isText := of.(string)
	y, alsoText := argument.(string)
	if !isText || !alsoText {
		return unknown("the method " + name)
	}
	switch name {
	case ".startsWith":
		return strings.HasPrefix(x, y)
	case ".endsWith":
		return strings.HasSuffix(x, y)
	case ".contains":
		return strings.Contains(x, y)
	case ".matches":
		pattern, err := regexp.Compile(y)
		if err != nil {
			return failure("no pattern: " + y)
		}
		return pattern.MatchString(x)
	}
	return unknown("the method " + name)
}
