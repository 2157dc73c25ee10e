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
	"github.com/hashicorp/terraform-plugin-testing/config"
	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

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
		{"platform", "pods_ask_for", "map[development: rdma:rdma/hca_shared_devices_a training:training-channel]"},
	} {
		run := func(t *testing.T) {
			dir := t.TempDir()
			must(t, os.CopyFS(dir, os.DirFS(filepath.Join(repository, "examples/terraform", c.name))))
			variables := map[string]string{"kubeconfig": s.Kubeconfig, "chart": chart}
			if c.name == "training-job" {
				needKubectl(t)
				variables["storage_class"] = "longhorn"
			}
			cli := newCLI(t, rc, dir, variables)
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
		t.Run(c.name+" is applied, planned again without changes, and destroyed without remains", run)
		t.Run(c.name+" does so under OpenTofu too", func(t *testing.T) {
			underOpenTofu(t)
			run(t)
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

// testDocumentation plans every example of the documentation.
func testDocumentation(t *testing.T, s *apiserver.Server) {
	t.Setenv("TF_ACC_PROVIDER_NAMESPACE", "gpufabric")
	t.Setenv("KUBECONFIG", s.Kubeconfig)
	publishRack(t, s)
	for _, pattern := range []string{"../../examples/resources/*", "../../examples/data-sources/*", "../../examples/functions/*"} {
		directories, err := filepath.Glob(pattern)
		must(t, err)
		for _, d := range directories {
			t.Run(filepath.Base(filepath.Dir(d))+" "+filepath.Base(d), func(t *testing.T) {
				resource.UnitTest(t, resource.TestCase{Steps: []resource.TestStep{{
					ProtoV6ProviderFactories: factories(), ConfigDirectory: config.StaticDirectory(exampleCopy(t, d)), PlanOnly: true,
					ExpectNonEmptyPlan: true,
				}}})
			})
		}
	}
}

// exampleCopy is an example with a provider block and what it names: an archive of the repository's chart.
func exampleCopy(t *testing.T, directory string) string {
	t.Helper()
	to := t.TempDir()
	must(t, os.CopyFS(to, os.DirFS(directory)))
	imports, err := filepath.Glob(filepath.Join(to, "import*"))
	must(t, err)
	for _, file := range imports {
		must(t, os.Remove(file))
	}
	const header = "terraform {\n  required_providers {\n    gpufabric = { source = \"gpufabric/gpufabric\" }\n  }\n}\nprovider " +
		"\"gpufabric\" {}\n"
	must(t, os.WriteFile(filepath.Join(to, "header.tf"), []byte(header), 0o600))
	if filepath.Base(directory) == "gpufabric_driver_stack" {
		chart, err := loader.Load(filepath.Join(repository, "charts/gpufabric"))
		must(t, err)
		archive, err := chartutil.Save(chart, to)
		must(t, err)
		// Terraform starts a provider where the configuration is; in a test it runs in the test's own process, elsewhere.
		text, err := os.ReadFile(filepath.Join(to, "resource.tf"))
		must(t, err)
		must(
			t,
			os.WriteFile(
				filepath.Join(to, "resource.tf"),
				[]byte(strings.ReplaceAll(string(text), "${path.module}/gpufabric-0.1.0.tgz", archive)),
				0o600,
			),
		)
	}
	return to
}

// TestDocumentation checks that nothing that the provider offers lacks a page and an example. That the pages say what the schemas say is
// checked by provider/generate-docs --check.
//
//shows:tf-docs
func TestDocumentation(t *testing.T) {
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
	// And nothing is documented that is not offered.
	err = filepath.WalkDir("../../examples", func(path string, entry fs.DirEntry, err error) error {
		parts := strings.Split(filepath.ToSlash(path), "/")
		if err == nil && entry.IsDir() && len(parts) == 5 && !slices.Contains(offered, parts[3]+"/"+parts[4]) {
			t.Errorf("%s is an example of nothing", path)
		}
		return err
	})
	must(t, err)
}
