package provider

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/terraform-plugin-testing/config"
	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/plancheck"

	"gpufabric.io/provider/internal/apiserver"
)

const repository = "../../.."

// testExamples runs examples/terraform with the repository's chart. No container runs here: the doubles roll workloads out and serve domains.
func testExamples(t *testing.T, s *apiserver.Server) {
	t.Setenv("TF_ACC_PROVIDER_NAMESPACE", "gpufabric") // the examples name their provider in full
	s.ServeDomains(t, func(string) apiserver.Domain { return apiserver.Domain{Status: "NotReady", Message: "0 of 2 nodes"} })
	chart, err := filepath.Abs(filepath.Join(repository, "charts/gpufabric"))
	must(t, err)
	if _, err := os.Stat(chart); err != nil {
		t.Fatalf("the examples install the repository's chart: %v", err)
	}
	variables := config.Variables{"kubeconfig": config.StringVariable(s.Kubeconfig), "chart": config.StringVariable(chart)}
	t.Run("quickstart is applied, planned again without changes, and destroyed without remains", func(t *testing.T) {
		directory := config.StaticDirectory(filepath.Join(repository, "examples/terraform/quickstart"))
		// The test framework wants the factories at each step where the configuration is a directory with a provider block.
		resource.UnitTest(t, resource.TestCase{Steps: []resource.TestStep{{
			ProtoV6ProviderFactories: factories(), ConfigDirectory: directory, ConfigVariables: variables,
			Check: resource.ComposeAggregateTestCheckFunc(
				resource.TestCheckResourceAttr("gpufabric_driver_stack.this", "ready", "true"),
				resource.TestCheckResourceAttr("gpufabric_compute_domain.this", "accepted", "true"),
				resource.TestCheckOutput("claim_template", "quickstart-channel"),
			),
		}, {
			ProtoV6ProviderFactories: factories(), ConfigDirectory: directory, ConfigVariables: variables,
			ConfigPlanChecks: resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{plancheck.ExpectEmptyPlan()}},
		}}})
		nothingLeft(t, s, "gpufabric-system")
	})
}
