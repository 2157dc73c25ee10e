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

// suite is a part of the tests on one API server.
type suite struct {
	name string
	run  func(*testing.T, *apiserver.Server)
}

// TestProviderManagesObjectsOnAPIServer runs every resource against a real API server: its life, its place in the examples and the
// documentation, and whatever needs the program under a real Terraform, and the tables of cases by core. One server serves all: each
// test keeps to names of its own.
func TestProviderManagesObjectsOnAPIServer(t *testing.T) {
	needTerraform(t)
	rc := installProvider(t)
	server := apiserver.Start(t)
	server.RollOut(t, 2)
	server.EndNamespaces(t)
	// program is a suite that runs Terraform with the provider as a program of its own.
	program := func(run func(*testing.T, *apiserver.Server, string)) func(*testing.T, *apiserver.Server) {
		return func(t *testing.T, s *apiserver.Server) { run(t, s, rc) }
	}
	for _, suite := range []suite{
		{"examples", program(testExamples)},
		{"trouble", testTrouble},
		{"driver stack", testDriverStack},
		{"a move of the driver stack", testStackMove},
		{"an outage during a release", program(testReleaseOutage)},
		{"driver stack in trouble", testDriverStackTrouble},
		{"upgrades of the driver stack", testUpgradeAdvice},
		{"preflight of the driver stack", testPreflight},
		{"secret values", testSecretValues},
		{"secrets on every way out", program(testCanaries)},
		{"compute domain", testComputeDomain},
		{"plans of compute domains", testPlannedDomains},
		{"RDMA pool", testRDMAPool},
		{"requests", program(testRequests)},
		{"data sources", testDataSources},
		{"logins", testLogins},
		{"data source of the driver stack", testStackData},
		{"vGPU profile", testVGPUProfile},
		{"MIG layout", testMIGLayout},
		{"secondary network", testSecondaryNetwork},
		{"time-outs", testTimeouts},
		{"list", testList},
		{"ephemeral kubeconfig", testKubeconfig},
		{"actions", program(testActions)},
		{"secrets on every way out under OpenTofu", func(t *testing.T, s *apiserver.Server) { underOpenTofu(t); testCanaries(t, s, rc) }},
		{"query of driver stacks", program(testStackQuery)},
		{"documentation", program(testDocumentation)},
	} {
		t.Run(suite.name, func(t *testing.T) { suite.run(t, server) })
	}
	// These share the CRDs of all resources over custom objects, which the driver stack's chart could not install beside them.
	t.Run("with every kind", func(t *testing.T) {
		serveLives(t, server)
		for _, suite := range []suite{
			{"drift", testDrift},
			{"imports", testImports},
			{"moves between states", testMoves},
			{"empty values", testEmptyValues},
			{"ownership", program(testOwnership)},
			{"outages", program(testOutages)},
			{"data source of an object", testObjectData},
			{"life cycles", testLifeCycles},
			{"life cycles under OpenTofu", func(t *testing.T, s *apiserver.Server) { underOpenTofu(t); testLifeCycles(t, s) }},
			{"ownership under OpenTofu", func(t *testing.T, s *apiserver.Server) { underOpenTofu(t); testOwnership(t, s, rc) }},
			{"query", program(testQuery)},
		} {
			t.Run(suite.name, func(t *testing.T) { suite.run(t, server) })
		}
	})
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

// checkUnderTerraform runs the steps of one test under the program itself: those that need more of it than core plays.
func checkUnderTerraform(t *testing.T, steps ...resource.TestStep) {
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
