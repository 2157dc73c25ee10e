package provider

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-framework/providerserver"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"gpufabric.io/build/short"
	"gpufabric.io/provider/internal/apiserver"
	"gpufabric.io/provider/internal/object"
)

const repository = "../../.."

// testExamples runs examples/terraform with the repository's chart. No container runs here: the doubles roll workloads out and serve
// domains.
func testExamples(t *testing.T, s *apiserver.Server, rc string) {
	s.ServeDomains(t, func(string) apiserver.Domain { return apiserver.Domain{Status: "NotReady", Message: "0 of 2 nodes"} })
	chart, err := filepath.Abs(filepath.Join(repository, "charts/gpufabric"))
	must(t, err)
	if _, err := os.Stat(chart); err != nil {
		t.Fatalf("the examples install the repository's chart: %v", err)
	}
	ready := func(obj *unstructured.Unstructured) map[string]any {
		return map[string]any{"observedGeneration": obj.GetGeneration(), "conditions": []any{map[string]any{
			"type": "Ready", "status": "True", "reason": "Test", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}}}
	}
	for _, kind := range []object.Kind{rdmaPoolKind, vgpuProfileKind, migLayoutKind} {
		s.Serve(t, kind.GVR(), ready)
	}
	installCRD(t, s, "testdata/network-attachment-definitions.yaml")
	letVolumesGo(t, s)
	for _, c := range []struct {
		name   string
		output string
		want   string
	}{
		{"quickstart", "claim_template", "quickstart-channel"},
		{"rack", "claim_templates", "map[eval:eval-channel train:train-channel]"},
		{"rdma-cluster", "networks", "default/rail-0,default/rail-1"},
		{"vgpu-sharing", "slices_per_gpu", "map[large:map[cores_left:20 limited_by:memory memory_left_mib:8180 slices:2] " +
			"small:map[cores_left:50 limited_by:memory memory_left_mib:8180 slices:5]]"},
		{"training-job", "checkpoints", "default/training-checkpoints"},
		{"platform", "pods_ask_for", "map[development:gpufabric.io/development rdma:rdma/hca_shared_devices_a training:training-channel]"},
	} {
		variables := map[string]string{"kubeconfig": s.Kubeconfig, "chart": chart}
		if c.name == "training-job" {
			variables["storage_class"] = "longhorn"
		}
		run := func(t *testing.T) {
			dir := t.TempDir()
			must(t, os.CopyFS(dir, os.DirFS(filepath.Join(repository, "examples/terraform", c.name))))
			if c.name == "training-job" {
				needKubectl(t)
			}
			cli := newAttachedCLI(t, rc, dir, variables)
			cli.run("apply", "-auto-approve")
			if got := fmt.Sprint(cli.outputs()[c.output]); got != c.want {
				t.Errorf("output %s: got %s, want %s", c.output, got, c.want)
			}
			if changed, plan := cli.changes(); changed {
				t.Errorf("the next plan is not empty:\n%s", plan)
			}
			cli.run("destroy", "-auto-approve")
			nothingLeft(t, s, "gpufabric-system")
		}
		t.Run(c.name+" is applied, planned again without changes, and destroyed without remains", func(t *testing.T) {
			if c.name != "platform" { // it has every resource but a network, and nothing orders them
				short.Skip(t, "make test without SHORT=1")
			}
			run(t)
		})
		plan := func(t *testing.T) {
			dir := t.TempDir()
			must(t, os.CopyFS(dir, os.DirFS(filepath.Join(repository, "examples/terraform", c.name))))
			contains(t, newAttachedCLI(t, rc, dir, variables).run("plan"), "0 to destroy")
		}
		t.Run(c.name+" is planned", func(t *testing.T) {
			if os.Getenv(short.Variable) == "" || c.name == "platform" {
				t.Skip("skipped: it is planned, applied and destroyed above")
			}
			plan(t)
		})
		// An apply under OpenTofu differs from one under Terraform in nothing that the examples have and platform lacks; but each has
		// expressions of its own.
		t.Run(c.name+" is planned under OpenTofu, and platform applied and destroyed too", func(t *testing.T) {
			underOpenTofu(t)
			if c.name == "platform" {
				run(t)
				return
			}
			plan(t)
		})
	}
	directories, err := filepath.Glob(filepath.Join(repository, "examples/terraform/*/main.tf"))
	must(t, err)
	if len(directories) != 6 {
		t.Errorf("%d directories under examples/terraform, 6 are tested here", len(directories))
	}
}

// needKubectl puts kubectl on the PATH.
func needKubectl(t *testing.T) {
	t.Helper()
	kubectl := apiserver.Find("kubectl", "")
	if kubectl == "" {
		t.Skip("skipped: kubectl is not there; run `make toolchain` or put it on the PATH")
	}
	t.Setenv("PATH", filepath.Dir(kubectl)+string(os.PathListSeparator)+os.Getenv("PATH"))
}

// letVolumesGo plays the controller that lets go of claims of volumes that no pod uses.
func letVolumesGo(t *testing.T, s *apiserver.Server) {
	t.Helper()
	claims := corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")
	s.React(t, claims, func(obj *unstructured.Unstructured) {
		if obj.GetDeletionTimestamp() != nil {
			obj = obj.DeepCopy()
			obj.SetFinalizers(nil)
			_, _ = s.Dynamic.Resource(
				claims,
			).Namespace(
				obj.GetNamespace(),
			).Update(
				t.Context(),
				obj,
				metav1.UpdateOptions{},
			) // a lost race is tried again at the next event
		}
	})
}

// testDocumentation plans every example of the documentation, each as a module of one configuration.
func testDocumentation(t *testing.T, s *apiserver.Server, rc string) {
	publishRack(t, s)
	root := t.TempDir()
	const required = "terraform {\n  required_providers {\n    gpufabric = { source = \"gpufabric/gpufabric\" }\n  }\n}\n"
	main := required + fmt.Sprintf("provider \"gpufabric\" {\n  config_path = %q\n}\n", s.Kubeconfig)
	examples := 0
	for _, kind := range []string{"resources", "data-sources", "functions"} {
		directories, err := filepath.Glob(filepath.Join("../../examples", kind, "*"))
		must(t, err)
		for _, directory := range directories {
			name := kind + "-" + filepath.Base(directory)
			exampleCopy(t, directory, filepath.Join(root, name))
			must(t, os.WriteFile(filepath.Join(root, name, "header.tf"), []byte(required), 0o600))
			after := "" // what a data source reads is made in the apply, by the resource of its name
			if _, err := os.Stat(filepath.Join("../../examples/resources", filepath.Base(directory))); err == nil && kind == "data-sources" {
				after = "  depends_on = [module.resources-" + filepath.Base(directory) + "]\n"
			}
			main += fmt.Sprintf("module %q {\n  source = \"./%s\"\n%s}\n", name, name, after)
			examples++
		}
	}
	must(t, os.WriteFile(filepath.Join(root, "main.tf"), []byte(main), 0o600))
	cli := newCLI(t, rc, root, nil)
	cli.plain("get")
	out := cli.run("plan")
	contains(t, out, "Plan: 9 to add, 0 to change, 0 to destroy.")
	if examples < 22 {
		t.Errorf("%d examples were planned:\n%s", examples, out)
	}
}

// exampleCopy copies an example, without its imports, and with what it names: an archive of the repository's chart.
func exampleCopy(t *testing.T, directory, to string) {
	t.Helper()
	must(t, os.CopyFS(to, os.DirFS(directory)))
	imports, err := filepath.Glob(filepath.Join(to, "import*"))
	must(t, err)
	for _, file := range imports {
		must(t, os.Remove(file))
	}
	if filepath.Base(directory) == "gpufabric_driver_stack" {
		chart, err := loader.Load(filepath.Join(repository, "charts/gpufabric"))
		must(t, err)
		_, err = chartutil.Save(chart, to)
		must(t, err)
	}
}

// TestDocumentationHasPageAndExampleForEverything checks that nothing that the provider offers lacks a page and an example. That the
// pages say what the schemas say is checked by provider/generate-docs --check.
func TestDocumentationHasPageAndExampleForEverything(t *testing.T) {
	server := providerserver.NewProtocol6(New("test")())()
	all, err := server.GetProviderSchema(t.Context(), &tfprotov6.GetProviderSchemaRequest{})
	must(t, err)
	var offered []string
	add := func(kind string, names []string) {
		for _, name := range names {
			offered = append(offered, kind+"/"+name)
		}
	}
	add("resources", slices.Collect(maps.Keys(all.ResourceSchemas)))
	add("data-sources", slices.Collect(maps.Keys(all.DataSourceSchemas)))
	add("functions", slices.Collect(maps.Keys(all.Functions)))
	add("ephemeral-resources", slices.Collect(maps.Keys(all.EphemeralResourceSchemas)))
	add("actions", slices.Collect(maps.Keys(all.ActionSchemas)))
	add("list-resources", slices.Collect(maps.Keys(all.ListResourceSchemas)))
	for _, what := range offered {
		if _, err := os.Stat(filepath.Join("../../examples", what)); err != nil {
			t.Errorf("%s has no example: %v", what, err)
		}
		page := filepath.Join("../../docs", strings.Replace(what, "gpufabric_", "", 1)+".md")
		text, err := os.ReadFile(page)
		if err != nil {
			t.Errorf("%s has no page: %v; run provider/generate-docs", what, err)
			continue
		}
		if !strings.Contains(string(text), "## Example Usage") {
			t.Errorf("%s shows no example; run provider/generate-docs", page)
		}
	}
	// And nothing is documented that is not offered. The provider's own repository has the project's examples in the same directory.
	others, err := os.ReadDir(filepath.Join(repository, "examples"))
	must(t, err)
	ofProject := func(directory string) bool {
		return slices.ContainsFunc(others, func(entry os.DirEntry) bool { return entry.Name() == directory })
	}
	err = filepath.WalkDir("../../examples", func(path string, entry fs.DirEntry, err error) error {
		parts := strings.Split(filepath.ToSlash(path), "/")
		if err == nil && entry.IsDir() && len(parts) == 5 && !ofProject(parts[3]) && !slices.Contains(offered, parts[3]+"/"+parts[4]) {
			t.Errorf("%s is an example of nothing", path)
		}
		return err
	})
	must(t, err)
}
