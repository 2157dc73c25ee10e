package provider

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"gpufabric.io/provider/internal/apiserver"
)

// BenchmarkScale measures what a user waits for: the built provider under a real Terraform, against a real API server whose ComputeDomain
// controller is a double. Run it with -bench Scale -benchtime 1x; each figure is one run.
func BenchmarkScale(b *testing.B) {
	needTerraform(b)
	server := apiserver.Start(b)
	installCRD(b, server, "testdata/stack/templates/crd.yaml")
	server.ServeDomains(b, func(string) apiserver.Domain { return apiserver.Domain{Status: "Ready"} })
	run := inDirectory(b, server)
	for b.Loop() {
		b.ReportMetric(run("200", "apply", "-auto-approve", "-parallelism=10"), "apply-200-s")
		b.ReportMetric(run("200", "plan", "-refresh=false"), "plan-200-s")
		b.ReportMetric(run("1000", "plan", "-refresh=false"), "plan-1000-new-s")
		run("1000", "apply", "-auto-approve", "-parallelism=50")
		b.ReportMetric(run("1000", "plan", "-refresh=false"), "plan-1000-s")
		b.ReportMetric(run("1000", "apply", "-refresh-only", "-auto-approve", "-parallelism=50"), "refresh-1000-s")
		b.ReportMetric(run("1000", "destroy", "-auto-approve", "-refresh=false", "-parallelism=50"), "destroy-1000-s")
	}
}

// inDirectory prepares a working directory and returns how to run Terraform there for a number of domains; the result is in seconds.
func inDirectory(b *testing.B, s *apiserver.Server) func(count string, args ...string) float64 {
	b.Helper()
	dir := b.TempDir()
	main := fmt.Sprintf(`
terraform {
  required_providers {
    gpufabric = { source = "gpufabric/gpufabric" }
  }
}
variable "domains" { type = number }
provider "gpufabric" { config_path = %q }
resource "gpufabric_compute_domain" "test" {
  count   = var.domains
  name    = "scale-${count.index}"
  channel = { resource_claim_template = "scale-${count.index}" }
}
`, s.Kubeconfig)
	must(b, os.WriteFile(filepath.Join(dir, "main.tf"), []byte(main), 0o600))
	rc := installProvider(b)
	return func(count string, args ...string) float64 {
		start := time.Now()
		newCLI(b, rc, dir, map[string]string{"domains": count}).run(args...)
		return time.Since(start).Seconds()
	}
}
