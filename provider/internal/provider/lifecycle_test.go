package provider

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/plancheck"
	"github.com/hashicorp/terraform-plugin-testing/tfversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

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

func (l life) config(s *apiserver.Server, name string) string {
	return as(
		s,
	) + fmt.Sprintf(
		"resource \"gpufabric_%s\" \"test\" {\n  name = %q\n  labels = { team = \"a\" }\n  %s\n}\n",
		l.name,
		name,
		l.body,
	)
}

func (l life) address() string { return "gpufabric_" + l.name + ".test" }

// testLifeCycles tries with every resource over a custom object what holds of all of them.
func testLifeCycles(t *testing.T, s *apiserver.Server, rc string) {
	installCRD(t, s, "testdata/stack/templates/crd.yaml")
	installCRD(t, s, "testdata/network-attachment-definitions.yaml")
	ready := func(obj *unstructured.Unstructured) map[string]any {
		return map[string]any{
			"observedGeneration": obj.GetGeneration(),
			"conditions": []any{
				map[string]any{"type": "Ready", "status": "True", "reason": "Test", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"},
			},
		}
	}
	for _, kind := range []object.Kind{rdmaPoolKind, vgpuProfileKind, migLayoutKind} {
		installCRD(t, s, filepath.Join(repository, "drivers/api/crds", kind.Group+"_"+kind.Plural+".yaml"))
		s.Serve(t, kind.GVR(), ready)
	}
	s.ServeDomains(t, func(string) apiserver.Domain { return apiserver.Domain{Status: "Ready"} })
	// Planning steps of the test framework have no context of their own.
	background := context.Background()
	for _, l := range lives {
		objects := s.Dynamic.Resource(l.kind.GVR()).Namespace(map[bool]string{true: "default"}[l.kind.Namespaced])
		action := func(a plancheck.ResourceActionType) resource.ConfigPlanChecks {
			return resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{plancheck.ExpectResourceAction(l.address(), a)}}
		}
		t.Run(l.name+" is imported by its identity", func(t *testing.T) {
			resource.UnitTest(
				t,
				resource.TestCase{
					ProtoV6ProviderFactories: factories(),
					TerraformVersionChecks:   []tfversion.TerraformVersionCheck{tfversion.SkipBelow(tfversion.Version1_12_0)},
					Steps: []resource.TestStep{
						{Config: l.config(s, "life")},
						{ResourceName: l.address(), ImportState: true, ImportStateKind: resource.ImportBlockWithResourceIdentity},
					},
				},
			)
		})
		t.Run(l.name+" that was deleted by somebody is created again", func(t *testing.T) {
			check(t, resource.TestStep{Config: l.config(s, "life")}, resource.TestStep{
				PreConfig: func() { must(t, objects.Delete(background, "life", metav1.DeleteOptions{})) },
				Config:    l.config(s, "life"), ConfigPlanChecks: action(plancheck.ResourceActionCreate),
			})
		})
		t.Run(l.name+" that somebody changed is planned to be changed back", func(t *testing.T) {
			check(t, resource.TestStep{Config: l.config(s, "life")}, resource.TestStep{PreConfig: func() {
				_, err := objects.Patch(
					background,
					"life",
					types.MergePatchType,
					[]byte(`{"metadata":{"labels":{"team":"b"}}}`),
					metav1.PatchOptions{FieldManager: "kubectl-edit"},
				)
				must(t, err)
			}, RefreshState: true, ExpectNonEmptyPlan: true})
		})
		t.Run(l.name+" of another name is another object", func(t *testing.T) {
			check(
				t,
				resource.TestStep{Config: l.config(s, "life")},
				resource.TestStep{Config: l.config(s, "life-2"), ConfigPlanChecks: action(plancheck.ResourceActionReplace)},
			)
		})
	}
	t.Run("terraform query finds every kind, and what it generates imports it", func(t *testing.T) { testQuery(t, s, rc) })
}

// testQuery makes an object of every kind outside of Terraform, lets `terraform query` write a configuration with import blocks for all of
// them, and applies it.
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
	maker := newCLI(t, rc, directory(all.String()), nil)
	maker.run("apply", "-auto-approve")
	dir := directory("")
	must(t, os.WriteFile(filepath.Join(dir, "all.tfquery.hcl"), []byte(queries.String()), 0o600))
	finder := newCLI(t, rc, dir, nil)
	found := finder.plain("query", "-no-color", "-generate-config-out=generated.tf")
	for _, l := range lives {
		contains(t, found, "list.gpufabric_"+l.name+".all")
	}
	generated, err := os.ReadFile(filepath.Join(dir, "generated.tf"))
	must(t, err)
	if n := strings.Count(string(generated), "import {"); n != len(lives) {
		t.Errorf("%d import blocks were generated for %d objects:\n%s", n, len(lives), generated)
	}
	contains(t, finder.run("apply", "-auto-approve"), fmt.Sprintf("%d imported, 0 added", len(lives)))
	maker.run("destroy", "-auto-approve")
}
