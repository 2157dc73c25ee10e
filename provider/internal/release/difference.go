package release

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// step is a field of an object, or an element of a list by its key's value or, without a key, by its index.
type step struct {
	field string
	key   string // field that names the elements of the list, such as name; empty: index
	value string
	index int
	after []string // values of the key of the elements before it, in the wanted list
}

type fieldPath []step

// String writes spec.template.spec.containers[gpu-plugin].env[HTTPS_PROXY].
func (p fieldPath) String() string {
	var out strings.Builder
	for _, s := range p {
		switch {
		case s.field != "":
			if out.Len() > 0 {
				out.WriteByte('.')
			}
			out.WriteString(s.field)
		case s.key != "":
			out.WriteString("[" + s.value + "]")
		default:
			out.WriteString("[" + strconv.Itoa(s.index) + "]")
		}
	}
	return out.String()
}

func (p fieldPath) with(s step) fieldPath { return append(slices.Clone(p), s) }

// difference is one field that is not as it should be; nil stands for a field that is absent.
type difference struct {
	path       fieldPath
	want, have any
	manager    string // manager beside this provider that wrote the field last; empty where the API server records none
	reordered  bool   // want and have are lists with the same elements
}

// sentence describes the change of the field. given are the values that a user gave the chart: they, and values of a Secret or of a
// container's environment and arguments, are not shown.
func (d difference) sentence(secret bool, given []string) string {
	by := ""
	if d.manager != "" {
		by = " by " + d.manager
	}
	path := d.path.String()
	switch {
	case d.want == nil:
		return path + " was added" + by
	case d.have == nil:
		return path + " was removed"
	case d.reordered: // without a manager where the elements have keys: the API server does not record their order
		return path + " was reordered" + by
	case secret || !isScalar(d.want) || !isScalar(d.have) || mayBeSecret(d.path) || contains(d.want, given) || contains(d.have, given):
		return path + " was changed" + by
	}
	return fmt.Sprintf("%s is %v, the release has %v", path, d.have, d.want) + setBy(d.manager)
}

func setBy(manager string) string {
	if manager == "" {
		return ""
	}
	return " (set by " + manager + ")"
}

func contains(v any, given []string) bool {
	text := fmt.Sprint(v)
	return slices.ContainsFunc(given, func(g string) bool { return strings.Contains(text, g) })
}

func mayBeSecret(path fieldPath) bool {
	return slices.ContainsFunc(path, func(s step) bool { return s.field == "env" || s.field == "args" || s.field == "command" })
}

func isScalar(v any) bool {
	switch v.(type) {
	case map[string]any, []any:
		return false
	}
	return true
}

// notCompared are fields that the API server keeps by itself.
var notCompared = []string{"apiVersion", "kind", "status"}

// keptMetadata are the fields of metadata that are the manifest's; the rest is the API server's and the controllers'.
var keptMetadata = []string{"labels", "annotations"}

// differences compares two objects as the API server stores them: an empty value that one of them lacks differs too, for
// allowPrivilegeEscalation: false is not the default.
func differences(want, have map[string]any, managers []metav1.ManagedFieldsEntry) []difference {
	c := comparison{whole: true, live: have, managers: managers}
	c.object(want, have)
	return c.found
}

// contradictions compares a manifest with the stored object: fields that the manifest omits may have any value.
func contradictions(want, have map[string]any, managers []metav1.ManagedFieldsEntry) []difference {
	c := comparison{live: have, managers: managers}
	c.object(want, have)
	return c.found
}

type comparison struct {
	whole    bool
	live     map[string]any
	managers []metav1.ManagedFieldsEntry
	found    []difference
}

func (c *comparison) object(want, have map[string]any) {
	for _, field := range union(want, have) {
		switch {
		case slices.Contains(notCompared, field) || field == "stringData": // the API server moves stringData into data
		case field == "metadata":
			w, _ := want[field].(map[string]any)
			h, _ := have[field].(map[string]any)
			for _, kept := range keptMetadata {
				c.value(fieldPath{{field: field}, {field: kept}}, w[kept], h[kept])
			}
		default:
			c.value(fieldPath{{field: field}}, want[field], have[field])
		}
	}
}

// counted is an annotation that the API server counts up by itself with each change of a DaemonSet's template.
const counted = "deprecated.daemonset.template.generation"

func (c *comparison) add(path fieldPath, want, have any) {
	d := difference{path: path, want: want, have: have, reordered: sameElements(want, have)}
	if have != nil {
		d.manager = managerOf(c.managers, c.live, d)
	}
	c.found = append(c.found, d)
}

func (c *comparison) value(path fieldPath, want, have any) {
	switch {
	case path[len(path)-1].field == counted, c.whole && reflect.DeepEqual(want, have):
		return
	case !c.whole && isEmpty(want): // the API server leaves out empty values
		return
	}
	switch w := want.(type) {
	case map[string]any:
		if h, ok := have.(map[string]any); ok {
			for _, key := range union(w, h) {
				c.value(path.with(step{field: key}), w[key], h[key])
			}
			return
		}
	case []any:
		if h, ok := have.([]any); ok {
			c.list(path, w, h)
			return
		}
	case nil:
		if h, ok := have.(map[string]any); ok && c.whole && slices.Contains(ofTexts, path[len(path)-1].field) {
			for _, key := range union(h, nil) {
				c.value(path.with(step{field: key}), nil, h[key])
			}
			return
		}
	default:
		if !c.whole && have != nil && same(want, have) {
			return
		}
	}
	c.add(path, want, have)
}

// ofTexts are the maps whose keys are named one by one where all of them were added; empty, they are as good as absent.
var ofTexts = []string{"labels", "annotations", "matchLabels", "nodeSelector"}

// list compares lists whose elements have a key by key, in any order, and others as a whole.
func (c *comparison) list(path fieldPath, want, have []any) {
	if reflect.DeepEqual(want, have) {
		return
	}
	key := listKey(want, have)
	if key == "" {
		if len(want) == len(have) {
			before := len(c.found)
			for i := range want {
				c.value(path.with(step{index: i}), want[i], have[i])
			}
			if len(c.found) == before {
				return
			}
			c.found = c.found[:before] // an element of such a list has no identity: the list is mended whole
		}
		c.add(path, want, have)
		return
	}
	order, found := keysOf(want, key), len(c.found)
	w, h := byKey(want, key), byKey(have, key)
	for _, name := range union(w, h) {
		before := order[:max(0, slices.Index(order, name))]
		c.value(path.with(step{key: key, value: name, after: before}), w[name], h[name])
	}
	if c.whole && slices.Contains(ordered, path[len(path)-1].field) && !inOrder(order, keysOf(have, key)) { // it is mended whole
		elements := slices.Clone(c.found[found:])
		list := difference{path: path, want: want, have: have, reordered: len(elements) == 0}
		for _, element := range elements {
			list.manager = cmp.Or(list.manager, element.manager)
		}
		c.found = append(c.found[:found], list)
	}
}

// sameElements reports whether two values are lists of the same elements, in any order.
func sameElements(want, have any) bool {
	w, isList := want.([]any)
	h, both := have.([]any)
	if !isList || !both || len(w) != len(h) {
		return false
	}
	left := slices.Clone(h)
	for _, element := range w {
		at := slices.IndexFunc(left, func(other any) bool { return reflect.DeepEqual(element, other) })
		if at < 0 {
			return false
		}
		left = slices.Delete(left, at, at+1)
	}
	return true
}

// ordered are the lists with keys whose order has a meaning: a variable refers to earlier ones.
var ordered = []string{"env", "initContainers"}

// inOrder reports whether the common elements of both lists have the same order.
func inOrder(want, have []string) bool {
	common := slices.DeleteFunc(slices.Clone(want), func(name string) bool { return !slices.Contains(have, name) })
	return slices.Equal(common, slices.DeleteFunc(slices.Clone(have), func(name string) bool { return !slices.Contains(want, name) }))
}

// keysOf returns the values of the elements' key, in order.
func keysOf(list []any, key string) []string {
	var names []string
	for _, item := range list {
		if m, ok := item.(map[string]any); ok {
			names = append(names, fmt.Sprint(m[key]))
		}
	}
	return names
}

// listKeys are the fields that name the elements of Kubernetes' lists.
var listKeys = []string{"name", "mountPath", "devicePath", "containerPort", "port", "key", "ip", "uid"}

// listKey returns the field by which the elements of both lists differ; empty where there is none.
func listKey(lists ...[]any) string {
	for _, key := range listKeys {
		fits, some := true, false
		for _, list := range lists {
			seen := map[string]bool{}
			for _, item := range list {
				m, ok := item.(map[string]any)
				value := fmt.Sprint(m[key])
				if !ok || m[key] == nil || !isScalar(m[key]) || seen[value] {
					fits = false
				}
				seen[value], some = true, true
			}
		}
		if fits && some {
			return key
		}
	}
	return ""
}

func byKey(list []any, key string) map[string]any {
	out := map[string]any{}
	for _, item := range list {
		if m, ok := item.(map[string]any); ok {
			out[fmt.Sprint(m[key])] = item
		}
	}
	return out
}

func union(a, b map[string]any) []string {
	keys := slices.Collect(maps.Keys(a))
	for key := range b {
		if _, both := a[key]; !both {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// undo sets the field of an object to its wanted value.
func (d difference) undo(obj map[string]any) { set(obj, d.path, d.want) }

// set writes a value (nil: removes it) at a path into a map or list, and returns the container.
func set(in any, path fieldPath, value any) any {
	s, rest := path[0], path[1:]
	if s.field != "" {
		m, ok := in.(map[string]any)
		if !ok {
			m = map[string]any{}
		}
		switch {
		case len(rest) > 0:
			m[s.field] = set(m[s.field], rest, value)
		case value == nil:
			delete(m, s.field)
		default:
			m[s.field] = value
		}
		return m
	}
	list, _ := in.([]any)
	at := slices.IndexFunc(list, func(item any) bool {
		m, ok := item.(map[string]any)
		return ok && s.key != "" && fmt.Sprint(m[s.key]) == s.value
	})
	switch {
	case at < 0 && value != nil && len(rest) == 0:
		place := 0
		for i, name := range keysOf(list, s.key) {
			if slices.Contains(s.after, name) {
				place = i + 1
			}
		}
		return slices.Insert(list, place, value)
	case at < 0:
		return list
	case len(rest) > 0:
		list[at] = set(list[at], rest, value)
	case value == nil:
		return slices.Delete(list, at, at+1)
	default:
		list[at] = value
	}
	return list
}

func isEmpty(v any) bool {
	switch t := v.(type) {
	case nil:
		return true
	case map[string]any:
		return len(t) == 0
	case []any:
		return len(t) == 0
	case string:
		return t == ""
	case bool:
		return !t
	}
	return fmt.Sprint(v) == "0"
}

// same compares a scalar of a manifest with the stored one as the API server does: numbers by value, quantities by amount (it stores
// 1000m as 1).
func same(want, have any) bool {
	w, h := fmt.Sprint(want), fmt.Sprint(have)
	if w == h || strings.TrimSpace(w) == strings.TrimSpace(h) {
		return true
	}
	wq, err := resource.ParseQuantity(w)
	if err != nil {
		return false
	}
	hq, err := resource.ParseQuantity(h)
	return err == nil && wq.Cmp(hq) == 0
}
