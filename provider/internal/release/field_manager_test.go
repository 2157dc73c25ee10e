package release

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"gpufabric.io/provider/internal/object"
)

// wrote returns the record of a manager that wrote fields of the object's spec, so many minutes after the object was made.
func wrote(t *testing.T, manager string, minutes int, spec string) metav1.ManagedFieldsEntry {
	t.Helper()
	fields, err := yaml.YAMLToJSON([]byte("{'f:spec': {" + spec + "}}"))
	if err != nil {
		t.Fatal(err)
	}
	at := metav1.NewTime(time.Date(2026, 1, 1, 0, minutes, 0, 0, time.UTC))
	return metav1.ManagedFieldsEntry{Manager: manager, Time: &at, FieldsV1: &metav1.FieldsV1{Raw: fields}}
}

func TestSentencesNameTheManagerThatWroteTheDifference(t *testing.T) {
	const env = `'f:env': {'k:{"name":"A"}': {'.': {}, 'f:name': {}, 'f:value': {}}, 'k:{"name":"B"}': {'.': {}, 'f:name': {}}}`
	const port = `'k:{"containerPort":%,"protocol":"TCP"}': {'.': {}, 'f:hostPort': {}}`
	const constraint = `'k:{"topologyKey":"%","whenUnsatisfiable":"DoNotSchedule"}': {'.': {}, 'f:maxSkew': {}}`
	filled := func(form, value string) string { return strings.Replace(form, "%", value, 1) }
	helm := func(spec string) metav1.ManagedFieldsEntry { return wrote(t, "helm", 0, spec) }
	later := func(spec string) metav1.ManagedFieldsEntry { return wrote(t, "later", 2, spec) }
	for name, c := range map[string]struct {
		want, have string
		entries    []metav1.ManagedFieldsEntry
		sentence   string
	}{
		"a scalar": {"replicas: 1", "replicas: 2",
			[]metav1.ManagedFieldsEntry{wrote(t, "kubectl-edit", 1, "'f:replicas': {}"), helm("'f:paused': {}"), later("'f:paused': {}")},
			"spec.replicas is 2, the release has 1 (set by kubectl-edit)"},
		"the latest of two": {"replicas: 1", "replicas: 2", []metav1.ManagedFieldsEntry{later("'f:replicas': {}"), helm("'f:replicas': {}")},
			"spec.replicas is 2, the release has 1 (set by later)"},
		"a new order of elements with keys": {"env: [{name: A, value: x}, {name: B}]", "env: [{name: B}, {name: A, value: x}]",
			[]metav1.ManagedFieldsEntry{helm(env), later("'f:paused': {}")}, "spec.env was reordered"},
		"a new order and a new element": {"env: [{name: A, value: x}, {name: B}]", "env: [{name: C}, {name: B}, {name: A, value: x}]",
			[]metav1.ManagedFieldsEntry{helm(env), wrote(t, "kubectl-edit", 1, `'f:env': {'k:{"name":"C"}': {'.': {}}}`)},
			"spec.env was changed by kubectl-edit"},
		"a new order and a new value": {"env: [{name: A, value: x}, {name: B}]", "env: [{name: B}, {name: A, value: z}]",
			[]metav1.ManagedFieldsEntry{helm(env), wrote(t, "kubectl-edit", 1, `'f:env': {'k:{"name":"A"}': {'f:value': {}}}`)},
			"spec.env was changed by kubectl-edit"},
		"a new order of a list that is one value": {"args: [a, b]", "args: [b, a]",
			[]metav1.ManagedFieldsEntry{helm("'f:paused': {}"), wrote(t, "kubectl-edit", 1, "'f:args': {}"), later("'f:command': {}")},
			"spec.args was reordered by kubectl-edit"},
		"a field below a list that is one value": {"versions: [{name: v1}]", "versions: [{name: v1, deprecated: true}]",
			[]metav1.ManagedFieldsEntry{wrote(t, "kubectl-edit", 1, "'f:versions': {}"), later("'f:group': {}")},
			"spec.versions[v1].deprecated was added by kubectl-edit"},
		"a default": {"strategy: {type: OnDelete}", "strategy: {type: OnDelete, limit: 1}",
			[]metav1.ManagedFieldsEntry{helm("'f:strategy': {'f:type': {}}"), later("'f:strategy': {'f:other': {}}")},
			"spec.strategy.limit was added"},
		"an element whose key is not its name": {
			"ports: [{name: web, containerPort: 80, protocol: TCP}, {name: metrics, containerPort: 90, protocol: TCP}]",
			"ports: [{name: web, containerPort: 80, protocol: TCP, hostPort: 8}, {name: metrics, containerPort: 90, protocol: TCP}]",
			[]metav1.ManagedFieldsEntry{wrote(t, "kubectl-edit", 1, "'f:ports': {"+filled(port, "80")+"}"),
				later("'f:ports': {" + filled(port, "90") + "}")},
			"spec.ports[web].hostPort was added by kubectl-edit"},
		"an element of a list without a single key": {
			"spread: [{topologyKey: a, whenUnsatisfiable: DoNotSchedule, maxSkew: 1}]",
			"spread: [{topologyKey: b, whenUnsatisfiable: DoNotSchedule}, {topologyKey: a, whenUnsatisfiable: DoNotSchedule, maxSkew: 1}]",
			[]metav1.ManagedFieldsEntry{wrote(t, "kubectl-edit", 1, "'f:spread': {"+filled(constraint, "b")+"}"),
				later("'f:spread': {" + filled(constraint, "a") + "}")},
			"spec.spread was changed by kubectl-edit"},
		"a new order of a list without a single key": {
			"spread: [{topologyKey: a, maxSkew: 1}, {topologyKey: b}]", "spread: [{topologyKey: b}, {topologyKey: a, maxSkew: 1}]",
			[]metav1.ManagedFieldsEntry{helm(`'f:spread': {'k:{"topologyKey":"a"}': {'.': {}}, 'k:{"topologyKey":"b"}': {'.': {}}}`)},
			"spec.spread was reordered"},
		"an element of a set": {"verbs: [get]", "verbs: [get, '*']",
			[]metav1.ManagedFieldsEntry{helm(`'f:verbs': {'v:"get"': {}}`), wrote(t, "kubectl-edit", 1, `'f:verbs': {'v:"*"': {}}`),
				later(`'f:verbs': {'v:"get"': {}}`)},
			"spec.verbs was changed by kubectl-edit"},
		"a webhook beside a write of this provider": {"containers: [{name: a}]", "containers: [{name: a}, {name: sidecar}]",
			[]metav1.ManagedFieldsEntry{helm(`'f:containers': {'k:{"name":"a"}': {'.': {}}}`),
				wrote(t, object.FieldManager, 1, `'f:containers': {'k:{"name":"sidecar"}': {'.': {}}}`)},
			"spec.containers[sidecar] was added"},
		"a record of another form": {"replicas: 1", "replicas: 2",
			[]metav1.ManagedFieldsEntry{{Manager: "broken", FieldsV1: &metav1.FieldsV1{Raw: []byte("[")}}, {Manager: "empty"},
				wrote(t, "texts", 1, "'f:replicas': x")}, "spec.replicas is 2, the release has 1"},
	} {
		t.Run(name, func(t *testing.T) {
			found := differences(parse(t, "{spec: {"+c.want+"}}"), parse(t, "{spec: {"+c.have+"}}"), c.entries)
			if len(found) != 1 {
				t.Fatalf("%d differences: %v", len(found), found)
			}
			if got := found[0].sentence(false, nil); got != c.sentence {
				t.Errorf("got %q, want %q", got, c.sentence)
			}
		})
	}
}
