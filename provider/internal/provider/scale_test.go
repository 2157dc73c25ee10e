package provider

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"gpufabric.io/provider/internal/apiserver"
)

// BenchmarkScale measures what a user waits for: the built provider under a real Terraform, against a real API server whose ComputeDomain controller is a
// double. Run it with -bench Scale -benchtime 1x; each figure is one run.
func BenchmarkScale(b *testing.B) {
	terraform := os.Getenv("TF_ACC_TERRAFORM_PATH")
	if terraform == "" {
		var err error
		if terraform, err = exec.LookPath("terraform"); err != nil {
			b.Skip("skipped: terraform is not on the PATH")
		}
	}
	server := apiserver.Start(b)
	installCRD(b, server, "testdata/stack/templates/crd.yaml")
	server.ServeDomains(b, func(string) apiserver.Domain { return apiserver.Domain{Status: "Ready"} })
	run := inDirectory(b, terraform, server)
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
func inDirectory(b *testing.B, terraform string, s *apiserver.Server) func(count string, args ...string) float64 {
	b.Helper()
	dir := b.TempDir()
	build := exec.CommandContext(b.Context(), "go", "build", "-o", filepath.Join(dir, "bin", "terraform-provider-gpufabric"), "../..")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("build the provider: %v\n%s", err, out)
	}
	config := fmt.Sprintf("provider_installation {\n  dev_overrides {\n    %q = %q\n  }\n}\n", Address, filepath.Join(dir, "bin"))
	must(b, os.WriteFile(filepath.Join(dir, "dev.tfrc"), []byte(config), 0o600))
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
	return func(count string, args ...string) float64 {
		cmd := exec.CommandContext(b.Context(), terraform, append(args, "-no-color", "-input=false", "-var", "domains="+count)...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "TF_CLI_CONFIG_FILE="+filepath.Join(dir, "dev.tfrc"))
		start := time.Now()
		if out, err := cmd.CombinedOutput(); err != nil {
			b.Fatalf("terraform %v: %v\n%s", args, err, out[max(0, len(out)-4000):])
		}
		return time.Since(start).Seconds()
	}
}
