package release

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

func parse(t *testing.T, text string) map[string]any {
	t.Helper()
	var out map[string]any
	if err := yaml.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestDifferencesAreNamedAndUndone(t *testing.T) {
	// object returns the wanted object with changes to its spec, its labels and its pods.
	object := func(labels, spec, pods string) map[string]any {
		return parse(t, fmt.Sprintf("{metadata: {labels: {%s}}, spec: {%s, template: {spec: {%s}}}}", labels, spec, pods))
	}
	const label, one = "app: '1'", "replicas: 1"
	const env, tolerations = "env: [{name: A, value: x}, {name: B, value: $(A)}]", "tolerations: [{key: a}, {operator: Exists}]"
	const pods = "containers: [{name: c, image: i, " + env + ", allowPrivilegeEscalation: false}], " + tolerations
	wanted := func() map[string]any { return object(label, one, pods) }
	// edited returns it with a part of its pods replaced.
	edited := func(old, now string) map[string]any { return object(label, one, strings.Replace(pods, old, now, 1)) }
	for name, c := range map[string]struct {
		have map[string]any
		want string
	}{
		"a scalar":          {object(label, "replicas: 3", pods), "spec.replicas is 3, the release has 1"},
		"a label":           {object("team: b", one, pods), "metadata.labels.app was removed"},
		"a keyed element":   {edited("[{name: c", "[{name: d}, {name: c"), "spec.template.spec.containers[d] was added"},
		"an inner element":  {edited("env: [", "env: [{name: D}, "), "spec.template.spec.containers[c].env[D] was added"},
		"a removed element": {edited("{name: A, value: x}, ", ""), "spec.template.spec.containers[c].env[A] was removed"},
		"the order of elements that refer to each other": {edited(env, "env: [{name: B, value: $(A)}, {name: A, value: x}]"),
			"spec.template.spec.containers[c].env was reordered"},
		"a value that may be secret": {edited("value: x", "value: z"), "spec.template.spec.containers[c].env[A].value was changed"},
		"a list without keys":        {edited("{key: a}, ", ""), "spec.template.spec.tolerations was changed"},
		"a flag":                     {object(label, one, "hostNetwork: true, "+pods), "spec.template.spec.hostNetwork was added"},
		"a map":                      {object(label, one+", properties: {mine: {type: string}}", pods), "spec.properties was added"},
		"a nodeSelector": {object(label, one, "nodeSelector: {nobody: here}, "+pods),
			"spec.template.spec.nodeSelector.nobody was added"},
		"a flag that is off": {object(label, one+", paused: false", pods), "spec.paused was added"},
		"a flag that is on where it is not given": {edited(", allowPrivilegeEscalation: false", ""),
			"spec.template.spec.containers[c].allowPrivilegeEscalation was removed"},
		"a text that is the same number": {object("app: '01'", one, pods), "metadata.labels.app is 01, the release has 1"},
	} {
		t.Run(name, func(t *testing.T) {
			want, have := wanted(), c.have
			found := differences(want, have, nil)
			if len(found) == 0 || found[0].sentence(false, nil) != c.want {
				t.Fatalf("got %v, want %q", found, c.want)
			}
			for _, d := range found {
				d.undo(have)
			}
			if left := differences(want, have, nil); len(left) > 0 {
				t.Errorf("undone, and still different: %v", left)
			}
		})
	}
	if found := differences(wanted(), wanted(), nil); len(found) > 0 {
		t.Errorf("equal objects differ: %v", found)
	}
}

func TestContradictionsIgnoreFieldsMissingInManifest(t *testing.T) {
	for have, want := range map[string]string{
		"{spec: {a: 1, b: 2, c: '1'}}":  "",
		"{spec: {a: 2, c: '1'}}":        "spec.a is 2, the release has 1",
		"{spec: {a: 1}}":                "spec.c was removed",
		"{spec: {a: 1, c: '1', e: {}}}": "",
	} {
		found := contradictions(parse(t, "{spec: {a: 1, c: 1000m, d: '', e: {}}}"), parse(t, have), nil)
		got := ""
		if len(found) > 0 {
			got = found[0].sentence(false, nil)
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", have, got, want)
		}
	}
}

func TestSentenceHidesValuesOfSecretsAndOfUsers(t *testing.T) {
	d := difference{path: fieldPath{{field: "data"}, {field: "a"}}, want: "b2xk", have: "bmV3"}
	if got := d.sentence(true, nil); got != "data.a was changed" {
		t.Error(got)
	}
	d = difference{path: fieldPath{{field: "spec"}, {field: "note"}}, want: "the hunter2 of", have: "x"}
	if got := d.sentence(false, []string{"hunter2"}); got != "spec.note was changed" {
		t.Error(got)
	}
}

func TestIgnoredMatchesFieldsBelowAndNamesWithWildcards(t *testing.T) {
	ignored, err := ParseIgnored([]string{"DaemonSet gpu-system/*: spec.template.spec.containers[*].env", "ConfigMap a/b"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		object, field string
		want          bool
	}{
		{"DaemonSet gpu-system/x", "spec.template.spec.containers[c].env[A]", true},
		{"DaemonSet gpu-system/x", "spec.template.spec.containers[c].envFrom", false},
		{"DaemonSet other/x", "spec.template.spec.containers[c].env[A]", false},
		{"DaemonSet gpu-system/x", "", false},
		{"ConfigMap a/b", "data.x", true},
		{"ConfigMap a/b", "", true},
		{"ConfigMap a/bc", "data.x", false},
	} {
		if got := ignored.matches(c.object, c.field); got != c.want {
			t.Errorf("%s: %s: got %t", c.object, c.field, got)
		}
	}
	if _, err := ParseIgnored([]string{"env"}); err == nil {
		t.Error("a pattern without a kind was accepted")
	}
}

func TestRolloutIsNotReadyWhenADaemonSetHasFallenToNoNode(t *testing.T) {
	r := Rollout{Scheduled: map[string]int32{"DaemonSet a/b": 0, "DaemonSet a/new": 0}}
	r.Fallen(map[string]int32{"DaemonSet a/b": 3})
	if diff := cmp.Diff([]string{"DaemonSet a/b: matches no node, and had pods on 3: check its nodeSelector and tolerations against the " +
		"nodes' labels and taints"}, r.Waiting); diff != "" {
		t.Error(diff)
	}
}
