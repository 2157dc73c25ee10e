package charts

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

var update = flag.Bool("update", false, "write testdata/rbac.txt again; read the difference before it is committed")

// everything are values with every driver enabled.
func everything() map[string]any {
	return map[string]any{"gpus": map[string]any{"enabled": true, "layoutsByDemand": true}, "rdma": on(), "vgpu": on(), "networkPolicy": on(),
		"computeDomains": map[string]any{"imex": "clique", "certificates": "own"}}
}

// everyRight are values with which every right is rendered that testdata/rbac.txt lists.
func everyRight() map[string]any {
	values := everything()
	values["scheduler"] = map[string]any{"enabled": true, "nodeLock": true}
	values["crds"] = map[string]any{"keep": false}
	values["gpus"] = map[string]any{"enabled": true, "layoutsByDemand": true, "limiterClosed": true}
	return values
}

// TestRolesHaveOnlyListedRights compares every rule and every binding with testdata/rbac.txt, so that a wider right is a changed
// line in a review.
func TestRolesHaveOnlyListedRights(t *testing.T) {
	values := everyRight()
	values["metrics"] = map[string]any{"authentication": true}
	var lines []string
	for _, object := range renderValues(t, "gpufabric", values) {
		for _, rule := range rules(t, object) {
			lines = append(lines, describe(object, rule)...)
		}
		if of, is := binding(t, object); is {
			lines = append(lines, bound(object, of)...)
		}
	}
	slices.Sort(lines)
	got := strings.Join(lines, "\n") + "\n"
	const golden = "testdata/rbac.txt"
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("the rights differ from %s (-listed +rendered); go test -update writes it again:\n%s", golden, diff)
	}
}

func TestRulesHaveNoWildcard(t *testing.T) {
	for _, chart := range []string{"gpufabric", "fake-hardware"} {
		values := map[string]any{}
		if chart == "gpufabric" {
			values = everything()
			values["scheduler"] = on()
		} else {
			values["faults"] = true
		}
		for _, object := range renderValues(t, chart, values) {
			for _, rule := range rules(t, object) {
				for _, words := range [][]string{rule.Verbs, rule.APIGroups, rule.Resources, rule.ResourceNames, rule.NonResourceURLs} {
					for _, word := range words {
						if strings.Contains(word, "*") {
							t.Errorf("%s %s: %q is a wildcard in %v", object.GetKind(), object.GetName(), word, rule)
						}
					}
				}
				for _, verb := range []string{"escalate", "bind", "impersonate", "deletecollection"} {
					if slices.Contains(rule.Verbs, verb) {
						t.Errorf("%s %s may %s %v", object.GetKind(), object.GetName(), verb, rule.Resources)
					}
				}
			}
		}
	}
}

// rules are the rules of a Role or ClusterRole, none of another object.
func rules(t *testing.T, object Object) []rbacv1.PolicyRule {
	t.Helper()
	if kind := object.GetKind(); kind != "Role" && kind != "ClusterRole" {
		return nil
	}
	var role rbacv1.ClusterRole
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &role); err != nil {
		t.Fatal(err)
	}
	return role.Rules
}

// describe writes a rule as lines "<role> <scope>: <resource> <verbs>".
func describe(object Object, rule rbacv1.PolicyRule) []string {
	scope := "everywhere"
	if object.GetKind() == "Role" {
		scope = "in " + object.GetNamespace()
	}
	var lines []string
	for _, group := range rule.APIGroups {
		for _, resource := range rule.Resources {
			if group != "" {
				resource += "." + group
			}
			if len(rule.ResourceNames) > 0 {
				resource += " named " + strings.Join(rule.ResourceNames, ",")
			}
			lines = append(lines, fmt.Sprintf("%s %s: %s %s", object.GetName(), scope, resource, strings.Join(rule.Verbs, ",")))
		}
	}
	for _, path := range rule.NonResourceURLs {
		lines = append(lines, fmt.Sprintf("%s %s: %s %s", object.GetName(), scope, path, strings.Join(rule.Verbs, ",")))
	}
	return lines
}
