package provider

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"gpufabric.io/provider/internal/apiserver"
	"gpufabric.io/provider/internal/cluster"
	"gpufabric.io/provider/internal/object"
)

// secretKind is the kind of Helm's records of releases.
var secretKind = object.Kind{Version: "v1", Name: "Secret", Plural: "secrets", Namespaced: true}

// marked is an object that bears the mark of a state: the object of a resource, or Helm's record of a release.
type marked struct {
	kind      object.Kind
	namespace string
	name      string
	client    dynamic.ResourceInterface
}

// markedObject finds what bears the mark of a resource with an id.
func markedObject(t testing.TB, client dynamic.Interface, resourceType, id string) marked {
	t.Helper()
	namespace, name, namespaced := strings.Cut(id, "/")
	if !namespaced {
		namespace, name = "", id
	}
	m := marked{kind: secretKind, namespace: namespace, name: name}
	for _, l := range lives {
		if "gpufabric_"+l.name == resourceType {
			m.kind = l.kind
		}
	}
	m.client = client.Resource(m.kind.GVR()).Namespace(namespace)
	if m.kind == secretKind {
		records, err := m.client.List(context.Background(), metav1.ListOptions{LabelSelector: "owner=helm,name=" + name})
		must(t, err)
		newest := 0
		for _, r := range records.Items {
			if version, err := strconv.Atoi(r.GetLabels()["version"]); err == nil && version > newest {
				newest, m.name = version, r.GetName()
			}
		}
	}
	return m
}

// mark returns the mark of the state that holds the object.
func (m marked) mark(t testing.TB) string {
	t.Helper()
	obj, err := m.client.Get(context.Background(), m.name, metav1.GetOptions{})
	must(t, err)
	text, _, _ := unstructured.NestedString(obj.Object, "metadata", m.where(), object.OwnerAnnotation)
	return text
}

// set writes a mark, as kubectl does.
func (m marked) set(t testing.TB, mark string) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{%q:{%q:%q}}}`, m.where(), object.OwnerAnnotation, mark)
	options := metav1.PatchOptions{FieldManager: "kubectl-" + m.where()}
	_, err := m.client.Patch(context.Background(), m.name, types.MergePatchType, patch, options)
	must(t, err)
}

// release releases the mark, once an error has named the mark and the command that does so.
func (m marked) release(t testing.TB, said string) {
	t.Helper()
	command := "kubectl annotate --overwrite " + m.kind.CRD() + " " + m.name
	if m.kind == secretKind {
		command = "kubectl label --overwrite secret " + m.name
	}
	if m.namespace != "" {
		command += " --namespace " + m.namespace
	}
	contains(t, oneLine(said), strconv.Quote(m.mark(t)), "terraform state rm", command+" "+object.OwnerAnnotation+"=released")
	m.set(t, object.Released)
}

func (m marked) where() string {
	if m.kind == secretKind {
		return "labels"
	}
	return "annotations"
}

// dynamicClient connects to the cluster of a configuration.
func (cfg *configuration) dynamicClient(t testing.TB) dynamic.Interface {
	t.Helper()
	var path string
	must(t, fields(cfg.provider)["config_path"].As(&path))
	client, err := cluster.NewConnection(cluster.Settings{ConfigPaths: []string{path}}).Client(context.Background())
	must(t, err)
	return client.Dynamic
}

// move is an object, or a release, that one state made and another imports.
type move struct {
	kind, id, config, changed string
}

func testMoves(t *testing.T, s *apiserver.Server) {
	for _, l := range lives {
		text := func(labels string) string {
			return as(s) + fmt.Sprintf("resource \"gpufabric_%s\" \"test\" {\n  name = \"move\"\n  labels = { team = %q }\n  %s\n}\n",
				l.name, labels, l.body)
		}
		t.Run(l.name, func(t *testing.T) { move{"gpufabric_" + l.name, l.id("move"), text("a"), text("b")}.test(t, s) })
	}
}

func testStackMove(t *testing.T, s *apiserver.Server) {
	move{"gpufabric_driver_stack", "move-system/move", stack(s, "move", ""),
		stack(s, "move", `values = ["controller:\n  replicas: 3\n"]`)}.test(t, s)
}

// test makes the object in one state and imports it in two others. The import is refused as long as the object has the first state's mark,
// and the first state leaves the object alone from then on, whether it forgot it or not.
func (m move) test(t *testing.T, s *apiserver.Server) {
	first, second, third := newCore(t), newCore(t), newCore(t)
	first.run(m.config)
	there := markedObject(t, s.Dynamic, m.kind, m.id)
	was := there.mark(t)
	adopt := func(c *core) error {
		cfg, err := c.parse(m.config)
		must(t, err)
		server, err := c.connect(t.Context(), cfg)
		must(t, err)
		imported, err := c.importOne(t.Context(), server, m.kind, m.id)
		if err == nil {
			c.instances[m.kind+".test"] = imported
		}
		return err
	}
	err := adopt(second)
	if err == nil {
		t.Fatal("the import of another state's object succeeded")
	}
	there.release(t, err.Error())
	must(t, adopt(second))
	must(t, adopt(third))
	if changes, _ := second.planText(m.config); changes[0].action != "no-op" && m.kind != "gpufabric_driver_stack" {
		t.Errorf("the plan after the import: %s", changes[0].action)
	}
	// Until one of the states that imported it changes it, both have it, and the first does not.
	if warned := second.run(m.changed); strings.Contains(warned, "set back") {
		t.Errorf("the apply warns of %s", warned)
	}
	there = markedObject(t, s.Dynamic, m.kind, m.id)
	if now := there.mark(t); now == "" || now == was || now == object.Released {
		t.Errorf("mark %q after the first change, %q before: want another", now, was)
	}
	if changes, _ := second.planText(m.changed); changes[0].action != "no-op" {
		t.Errorf("the plan after the change: %s", changes[0].action)
	}
	for name, other := range map[string]*core{"first": first, "third": third} {
		cfg, err := other.parse(m.config)
		must(t, err)
		cfg.blocks = nil
		other.warnings = nil
		must(t, other.converge(t.Context(), cfg, nil))
		if len(other.warnings) != 1 || !strings.Contains(other.warnings[0], "belongs to somebody else now") {
			t.Errorf("the %s state's destroy warns %q", name, other.warnings)
		}
	}
	there.mark(t) // it is there
	cfg, err := second.parse(m.changed)
	must(t, err)
	cfg.blocks = nil
	must(t, second.converge(t.Context(), cfg, nil))
	if len(second.instances) != 0 {
		t.Error("the second state's destroy leaves the object")
	}
}
