package charts

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"text/template/parse"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v3/pkg/chartutil"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Functions of Helm's templates that return something else each time, on each machine, or by the server's address.
var unsteady = strings.Fields(`ago bcrypt date dateInZone date_in_zone date_modify dateModify derivePassword encryptAES env expandenv
	genCA genCAWithKey genPrivateKey genSelfSignedCert genSelfSignedCertWithKey genSignedCert genSignedCertWithKey getHostByName
	htmlDate htmlDateInZone htpasswd now randAlpha randAlphaNum randAscii randBytes randInt randNumeric shuffle unixEpoch uuidv4`)

// called returns the names of the functions that a template calls.
func called(node parse.Node, found map[string]bool) {
	list := func(nodes *parse.ListNode) {
		if nodes != nil {
			for _, one := range nodes.Nodes {
				called(one, found)
			}
		}
	}
	branch := func(b parse.BranchNode) {
		called(b.Pipe, found)
		list(b.List)
		list(b.ElseList)
	}
	switch n := node.(type) {
	case *parse.ListNode:
		list(n)
	case *parse.ActionNode:
		called(n.Pipe, found)
	case *parse.IfNode:
		branch(n.BranchNode)
	case *parse.RangeNode:
		branch(n.BranchNode)
	case *parse.WithNode:
		branch(n.BranchNode)
	case *parse.TemplateNode:
		if n.Pipe != nil {
			called(n.Pipe, found)
		}
	case *parse.PipeNode:
		for _, command := range n.Cmds {
			for _, argument := range command.Args {
				called(argument, found)
			}
		}
	case *parse.ChainNode:
		called(n.Node, found)
	case *parse.IdentifierNode:
		found[n.Ident] = true
	}
}

// calls returns the functions that the text of a template file calls, by the name of the template in it.
func calls(t *testing.T, name, text string) map[string]map[string]bool {
	t.Helper()
	tree := parse.New(name)
	tree.Mode = parse.SkipFuncCheck
	trees := map[string]*parse.Tree{}
	if _, err := tree.Parse(text, "", "", trees); err != nil {
		t.Fatal(err)
	}
	trees[name] = tree
	found := map[string]map[string]bool{}
	for defined, one := range trees {
		found[defined] = map[string]bool{}
		called(one.Root, found[defined])
	}
	return found
}

// TestTemplatesCallOnlyDeterministicFunctions reads the templates: a render compared with another of the same second would
// not show a date.
func TestTemplatesCallOnlyDeterministicFunctions(t *testing.T) {
	if found := calls(t, "x", `{{ define "y" }}{{ with .A }}{{ (dict "k" (now | date "2006")).k }}{{ end }}{{ end }}`)["y"]; !found["now"] ||
		!found["date"] || !found["dict"] {
		t.Fatalf("the reader finds %v", found)
	}
	for _, chart := range []string{"gpufabric", "fake-hardware"} {
		for _, file := range load(t, chart).Templates {
			for defined, functions := range calls(t, file.Name, string(file.Data)) {
				for _, name := range unsteady {
					if functions[name] {
						t.Errorf("chart %s, %s: %s calls %s: each sync of Argo CD or Flux would change the objects", chart, file.Name, defined, name)
					}
				}
				// Argo CD renders without a cluster: lookup finds nothing there.
				refuses := strings.HasPrefix(defined, "gpufabric.check.") || defined == "gpufabric.foreignOnNodes" ||
					strings.HasSuffix(file.Name, "/NOTES.txt")
				if functions["lookup"] && !refuses {
					t.Errorf("chart %s, %s: %s calls lookup: the objects would depend on who renders", chart, file.Name, defined)
				}
			}
		}
	}
}

// TestChartRendersSameObjectsWithAndWithoutCluster compares what Argo CD renders, without a cluster and as a first install each time,
// with what Helm and Flux render for a cluster that has the release.
func TestChartRendersSameObjectsWithAndWithoutCluster(t *testing.T) {
	everything := everyRight()
	for name, values := range map[string]map[string]any{"as it comes": nil, "everything on": everything} {
		without := renderValues(t, "gpufabric", values)
		installed := make([]unstructured.Unstructured, 0, len(without))
		for _, one := range without {
			installed = append(installed, *one.DeepCopy())
		}
		within, err := Render(load(t, "gpufabric"), values, Cluster{Objects: installed})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if diff := cmp.Diff(without, within); diff != "" {
			t.Errorf("%s: the cluster changes the objects:\n%s", name, diff)
		}
		later, err := renderAs(load(t, "gpufabric"), values, Cluster{}, chartutil.ReleaseOptions{Revision: 7, IsUpgrade: true})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		objects, err := decode(later)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(without, objects); diff != "" {
			t.Errorf("%s: an upgrade changes the objects:\n%s", name, diff)
		}
	}
}

// TestChartObjectsCanBeAppliedByGitOpsControllers holds each object to what Argo CD and Flux ask: one object of a name (Argo CD reports the
// second), no object of a kind that the same release installs (Argo CD asks the API server for the kind before it applies anything), and
// room for the annotation in which a client-side apply keeps the object (256 KiB for all annotations, by apimachinery's
// TotalAnnotationSizeLimitB).
func TestChartObjectsCanBeAppliedByGitOpsControllers(t *testing.T) {
	for _, one := range renderings(t) {
		seen, kinds := map[string]string{}, map[string]bool{}
		for _, object := range one.objects {
			if object.GetKind() == "CustomResourceDefinition" {
				group, _, _ := unstructured.NestedString(object.Object, "spec", "group")
				kind, _, _ := unstructured.NestedString(object.Object, "spec", "names", "kind")
				kinds[group+"/"+kind] = true
			}
		}
		for _, object := range one.objects {
			group := object.GroupVersionKind().Group
			name := fmt.Sprintf("%s/%s %s/%s", group, object.GetKind(), object.GetNamespace(), object.GetName())
			if before := seen[name]; before != "" {
				t.Errorf("%s: %s is in %s and in %s", one.name, name, before, object.Template)
			}
			seen[name] = object.Template
			if kinds[group+"/"+object.GetKind()] {
				t.Errorf("%s: %s is of a kind that the chart installs", one.name, name)
			}
			text, err := json.Marshal(object.Object)
			if err != nil {
				t.Fatal(err)
			}
			if len(text) > 250<<10 {
				t.Errorf("%s: %s has %d bytes, too much for the annotation of a client-side apply", one.name, name, len(text))
			}
			policy := object.GetAnnotations()["helm.sh/hook-delete-policy"]
			if object.GetAnnotations()["helm.sh/hook"] != "" && !slices.Contains(strings.Split(policy, ","), "before-hook-creation") {
				t.Errorf("%s: hook %s is not replaced at its next run: Argo CD would apply over the old one", one.name, name)
			}
		}
	}
}
