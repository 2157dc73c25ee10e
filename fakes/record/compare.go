package record

import (
	"fmt"
	"reflect"

	"gpufabric.io/fakes/profile"
)

// Difference is one value in which a real machine and its fake differ.
type Difference struct {
	// Path is the key in the profile, e.g. gpus.devices[2].numa.
	Path       string
	Real, Fake string
}

// String gives one line.
func (d Difference) String() string {
	return fmt.Sprintf("%s: real %s, fake %s", d.Path, d.Real, d.Fake)
}

// Compare lists where a recorded machine and a profile differ. It ignores fields that identify a machine, or describe a profile: names,
// texts, the cluster's UUID, host names. For defaults of the profile it compares the rendered node.
func Compare(machine, fake *profile.Profile) []Difference {
	var all []Difference
	compare("", reflect.ValueOf(*machine), reflect.ValueOf(*fake.Filled()), &all)
	return all
}

var notCompared = map[string]bool{"name": true, "summary": true, "source": true, "origin": true, "preRelease": true,
	"host.hostname": true, "fabric.clusterUUID": true}

func compare(path string, a, b reflect.Value, out *[]Difference) {
	if notCompared[path] {
		return
	}
	switch a.Kind() {
	case reflect.Pointer:
		if a.IsNil() != b.IsNil() {
			*out = append(*out, Difference{path, presence(a), presence(b)})
		} else if !a.IsNil() {
			compare(path, a.Elem(), b.Elem(), out)
		}
	case reflect.Struct:
		for i := range a.NumField() {
			key := a.Type().Field(i).Tag.Get("yaml")
			if path != "" {
				key = path + "." + key
			}
			compare(key, a.Field(i), b.Field(i), out)
		}
	case reflect.Slice:
		if a.Len() != b.Len() {
			*out = append(*out, Difference{path, fmt.Sprint(a.Len(), " of them"), fmt.Sprint(b.Len(), " of them")})
			return
		}
		for i := range a.Len() {
			compare(fmt.Sprintf("%s[%d]", path, i), a.Index(i), b.Index(i), out)
		}
	default:
		if !a.Equal(b) {
			*out = append(*out, Difference{path, fmt.Sprintf("%v", a), fmt.Sprintf("%v", b)})
		}
	}
}

func presence(v reflect.Value) string {
	if v.IsNil() {
		return "has none"
	}
	return "has one"
}
