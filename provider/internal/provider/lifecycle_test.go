package provider

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/plancheck"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"gpufabric.io/provider/internal/apiserver"
	"gpufabric.io/provider/internal/object"
)

// life is one resource over a custom object, for what holds of all of them.
type life struct {
	name string // of the resource, without the provider's prefix
	kind object.Kind
	body string // the least configuration, without name
}

var lives = []life{
	{"compute_domain", computeDomainKind, `channel = { resource_claim_template = "life" }`},
	{"rdma_pool", rdmaPoolKind, "resource_name = \"a\"\n  devices = [\"ib0\"]"},
	{"vgpu_profile", vgpuProfileKind, "mode = \"Exclusive\""},
	{"mig_layout", migLayoutKind, "layout = \"off\"\n  layouts = { off = { gpus = [{}] } }"},
	{"secondary_network", networkKind, "type = \"ipoib\"\n  master = \"ib0\""},
}

// id returns the import id of an object in the namespace default.
func (l life) id(name string) string {
	if l.kind.Namespaced {
		return "default/" + name
	}
	return name
}

func (l life) address() string { return "gpufabric_" + l.name + ".test" }

// configOfLives declares one object a kind, all of one name.
func configOfLives(s *apiserver.Server, name string) string {
	text := as(s)
	for _, l := range lives {
		text += fmt.Sprintf("resource \"gpufabric_%s\" \"test\" {\n  name = %q\n  labels = { team = \"a\" }\n  %s\n}\n", l.name, name, l.body)
	}
	return text
}

// serveLives installs the kinds of all resources over custom objects, with doubles of their controllers.
func serveLives(t *testing.T, s *apiserver.Server) {
	t.Helper()
	installCRD(t, s, filepath.Join(repository, "drivers/api/crds/resource.nvidia.com_computedomains.yaml"))
	installCRD(t, s, "testdata/network-attachment-definitions.yaml")
	ready := func(obj *unstructured.Unstructured) map[string]any {
		return map[string]any{"observedGeneration": obj.GetGeneration(), "conditions": []any{readyCondition("True")}}
	}
	for _, kind := range []object.Kind{rdmaPoolKind, vgpuProfileKind, migLayoutKind} {
		installCRD(t, s, filepath.Join(repository, "drivers/api/crds", kind.Group+"_"+kind.Plural+".yaml"))
		s.Serve(t, kind.GVR(), ready)
	}
	s.ServeDomains(t, func(string) apiserver.Domain { return apiserver.Domain{Status: "Ready"} })
}

// testLifeCycles takes all resources over a custom object through their lives under the program itself. Changes by others meanwhile are in
// testDrift.
func testLifeCycles(t *testing.T, s *apiserver.Server) {
	planned := func(a plancheck.ResourceActionType) (checks resource.ConfigPlanChecks) {
		for _, l := range lives {
			checks.PreApply = append(checks.PreApply, plancheck.ExpectResourceAction(l.address(), a))
		}
		return checks
	}
	config := configOfLives(s, "life")
	checkUnderTerraform(t, resource.TestStep{Config: config, ConfigPlanChecks: planned(plancheck.ResourceActionCreate)},
		resource.TestStep{Config: configOfLives(s, "life-2"), ConfigPlanChecks: planned(plancheck.ResourceActionReplace)})
}

// testQuery makes an object of every kind in one state, lets `terraform query` write a configuration with import blocks for all of them,
// which it warns of, and applies it in another state, once they are released.
func testQuery(t *testing.T, s *apiserver.Server, rc string) {
	needActions(t)
	header := strings.ReplaceAll(as(s), "hashicorp/", "gpufabric/")
	directory := func(text string) string {
		dir := t.TempDir()
		must(t, os.WriteFile(filepath.Join(dir, "main.tf"), []byte(header+text), 0o600))
		return dir
	}
	var all, queries strings.Builder
	for _, l := range lives {
		fmt.Fprintf(&all, "resource \"gpufabric_%s\" \"test\" {\n  name = \"found\"\n  %s\n}\n", l.name, l.body)
		fmt.Fprintf(&queries, "list \"gpufabric_%s\" \"all\" {\n  provider = gpufabric\n}\n", l.name)
	}
	maker := newAttachedCLI(t, rc, directory(all.String()), nil)
	maker.run("apply", "-auto-approve")
	dir := directory("")
	must(t, os.WriteFile(filepath.Join(dir, "all.tfquery.hcl"), []byte(queries.String()), 0o600))
	finder := newAttachedCLI(t, rc, dir, nil)
	found := finder.plain("query", "-no-color", "-generate-config-out=generated.tf")
	for _, l := range lives {
		contains(t, found, "list.gpufabric_"+l.name+".all")
	}
	generated, err := os.ReadFile(filepath.Join(dir, "generated.tf"))
	must(t, err)
	if n := strings.Count(string(generated), "import {"); n != len(lives) {
		t.Errorf("%d import blocks were generated for %d objects:\n%s", n, len(lives), generated)
	}
	for _, l := range lives {
		contains(t, found, l.kind.Name+" of a Terraform state")
		markedObject(t, s.Dynamic, "gpufabric_"+l.name, l.id("found")).set(t, object.Released)
	}
	contains(t, finder.run("apply", "-auto-approve"), fmt.Sprintf("%d imported, 0 added", len(lives)))
	maker.run("destroy", "-auto-approve")
	contains(t, finder.run("destroy", "-auto-approve"), fmt.Sprintf("%d destroyed", len(lives)))
}

// testStackQuery lets `terraform query` write a configuration for a driver stack that another client installed, and applies it.
func testStackQuery(t *testing.T, s *apiserver.Server, rc string) {
	needActions(t)
	helmInstall(t, s, "found", map[string]any{"controller": map[string]any{"replicas": 2}})
	dir := t.TempDir()
	chart, err := loader.Load("testdata/stack")
	must(t, err)
	_, err = chartutil.Save(chart, dir) // as the generated configuration names it
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "main.tf"), []byte(strings.ReplaceAll(as(s), "hashicorp/", "gpufabric/")), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "all.tfquery.hcl"), []byte("list \"gpufabric_driver_stack\" \"all\" {\n  provider = gpufabric\n  "+
		"config {\n    chart = \"stack\"\n    namespace = \"found-system\"\n  }\n}\n"), 0o600))
	cli := newCLI(t, rc, dir, nil)
	cli.plain("query", "-no-color", "-generate-config-out=generated.tf")
	contains(t, cli.run("apply", "-auto-approve"), "1 imported, 0 added")
	if changed, plan := cli.changes(); changed {
		t.Errorf("the plan after the import is not empty:\n%s", plan)
	}
	deployment, err := s.Typed.AppsV1().Deployments("found-system").Get(t.Context(), "found-controller", metav1.GetOptions{})
	must(t, err)
	if *deployment.Spec.Replicas != 2 {
		t.Errorf("%d replicas: the import lost the values", *deployment.Spec.Replicas)
	}
	cli.run("destroy", "-auto-approve")
}
