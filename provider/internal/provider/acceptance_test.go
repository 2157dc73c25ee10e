package provider

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/terraform-plugin-framework/providerserver"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-testing/helper/resource"

	"gpufabric.io/build/short"
	"gpufabric.io/provider/internal/apiserver"
)

// TestAgainstAPIServer runs every resource by a real Terraform against a real API server. One server serves all: each test keeps to
// names of its own.
//
//shows:cd-planning doctor-preflight tf-actions tf-data tf-destroy tf-opentofu tf-plans tf-refusals tf-resources tf-secrets
func TestAgainstAPIServer(t *testing.T) {
	needTerraform(t)
	rc := buildProvider(t)
	server := apiserver.Start(t)
	server.RollOut(t, 2)
	server.EndNamespaces(t)
	// built is a suite that runs Terraform with the provider as a program of its own.
	built := func(run func(*testing.T, *apiserver.Server, string)) func(*testing.T, *apiserver.Server) {
		return func(t *testing.T, s *apiserver.Server) { run(t, s, rc) }
	}
	for _, suite := range []struct {
		name string
		run  func(*testing.T, *apiserver.Server)
	}{
		{"examples", built(testExamples)},
		{"trouble", testTrouble},
		{"an interrupted apply", testInterruptedApply},
		{"driver stack", testDriverStack},
		{"driver stack in trouble", testDriverStackTrouble},
		{"upgrades of the driver stack", built(testUpgradeAdvice)},
		{"preflight of the driver stack", built(testPreflight)},
		{"secret values", testSecretValues},
		{"secrets on every way out", built(testCanaries)},
		{"compute domain", testComputeDomain},
		{"plans of compute domains", built(testPlannedDomains)},
		{"RDMA pool", testRDMAPool},
		{"requests", testRequests},
		{"data sources", testDataSources},
		{"vGPU profile", testVGPUProfile},
		{"MIG layout", testMIGLayout},
		{"secondary network", testSecondaryNetwork},
		{"list", testList},
		{"ephemeral kubeconfig", testKubeconfig},
		{"actions", built(testActions)},
		{"life cycles", built(testLifeCycles)},
		{"life cycles under OpenTofu", func(t *testing.T, s *apiserver.Server) { underOpenTofu(t); testLifeCycles(t, s, rc) }},
		{"documentation", testDocumentation},
	} {
		t.Run(suite.name, func(t *testing.T) { suite.run(t, server) })
	}
}

// needTerraform finds terraform or tofu (TF_ACC_TERRAFORM_PATH, the PATH, the toolchain's cache) and shields it from the user's
// configuration. It skips the
// test where there is neither: the test framework would download one.
func needTerraform(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("runs Terraform; -short does not")
	}
	path := os.Getenv("TF_ACC_TERRAFORM_PATH")
	for _, name := range []string{"terraform", "tofu"} {
		if path == "" {
			path = apiserver.Find(name, "")
		}
	}
	if path == "" {
		t.Skip("skipped: neither terraform nor tofu is there; run `make toolchain`, install one, or set TF_ACC_TERRAFORM_PATH")
	}
	t.Setenv("TF_ACC_TERRAFORM_PATH", path)
	if filepath.Base(path) == "tofu" {
		t.Setenv("TF_ACC_PROVIDER_HOST", "registry.opentofu.org")
	}
	empty := filepath.Join(t.TempDir(), "empty.tfrc")
	must(t, os.WriteFile(empty, nil, 0o600))
	t.Setenv("TF_CLI_CONFIG_FILE", empty)
}

// underOpenTofu lets a test run under OpenTofu instead, and skips it where that is not there.
func underOpenTofu(t *testing.T) {
	t.Helper()
	short.Skip(t, "make test without SHORT=1")
	tofu := apiserver.Find("tofu", "")
	if tofu == "" {
		t.Skip("skipped: tofu is not there; run `make toolchain` or put it on the PATH")
	}
	t.Setenv("TF_ACC_TERRAFORM_PATH", tofu)
	t.Setenv("TF_ACC_PROVIDER_HOST", "registry.opentofu.org")
}

// factories serve the provider in this process.
func factories() map[string]func() (tfprotov6.ProviderServer, error) {
	return map[string]func() (tfprotov6.ProviderServer, error){"gpufabric": providerserver.NewProtocol6WithError(New("test")())}
}

// check runs the steps of one test.
func check(t *testing.T, steps ...resource.TestStep) {
	t.Helper()
	resource.UnitTest(t, resource.TestCase{ProtoV6ProviderFactories: factories(), Steps: steps})
}

// as returns a provider block for the server's administrator.
func as(s *apiserver.Server) string {
	return fmt.Sprintf(
		"terraform {\n  required_providers {\n    gpufabric = { source = \"hashicorp/gpufabric\" }\n  }\n}\nprovider \"gpufabric\" {\n  "+
			"config_path = %q\n}\n",
		s.Kubeconfig,
	)
}
