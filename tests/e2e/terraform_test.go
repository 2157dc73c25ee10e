package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/gruntwork-io/terratest/modules/logger"
	"github.com/gruntwork-io/terratest/modules/terraform"

	"gpufabric.io/build/toolchain"
)

// providerVersion is the version in the local mirror of the provider that `make build` built.
const providerVersion = "0.1.0"

// quickstart prepares examples/terraform/quickstart, in a copy so that nothing is left in the checkout, to be run by terraform (or tofu)
// with the provider that `make build` built, against the cluster.
func quickstart(t *testing.T, e *environment) *terraform.Options {
	t.Helper()
	chain, err := toolchain.New(e.printer)
	must(t, err)
	tools, err := chain.Ensure(t.Context(), "terraform")
	must(t, err)
	dir := filepath.Join(t.TempDir(), "quickstart")
	must(t, os.CopyFS(dir, os.DirFS(filepath.Join(e.root, "examples/terraform/quickstart"))))
	for _, leftover := range []string{".terraform", ".terraform.lock.hcl", "terraform.tfstate", "terraform.tfstate.backup"} {
		must(t, os.RemoveAll(filepath.Join(dir, leftover))) // of a user who ran the example in the checkout
	}
	return terraform.WithDefaultRetryableErrors(t, &terraform.Options{
		TerraformBinary: tools["terraform"],
		TerraformDir:    dir,
		EnvVars:         map[string]string{"TF_CLI_CONFIG_FILE": mirror(t, e)},
		Vars:            map[string]any{"kubeconfig": e.Kubeconfig, "chart": filepath.Join(e.root, "charts/gpufabric")},
		VarFiles:        []string{"fake-hardware.tfvars"},
		NoColor:         true,
		Logger:          logger.Discard,
	})
}

// changesNothing checks that a plan after the apply changes no resource. An output about the cluster's state, such as a
// domain's message, may differ.
func changesNothing(t *testing.T, options *terraform.Options) {
	t.Helper()
	planned, err := options.Clone()
	must(t, err)
	planned.PlanFilePath = filepath.Join(t.TempDir(), "plan")
	said, err := terraform.PlanE(t, planned)
	must(t, err)
	plan, err := terraform.ShowWithStructE(t, planned)
	must(t, err)
	for address, resource := range plan.ResourceChangesMap {
		if !resource.Change.Actions.NoOp() {
			t.Errorf("a second plan wants to %v %s:\n%s", resource.Change.Actions, address, said)
		}
	}
}

// mirror writes a provider mirror with the built provider in it, and returns a CLI configuration that names it as the only source of
// providers.
func mirror(t *testing.T, e *environment) string {
	t.Helper()
	built := filepath.Join(e.root, "bin/terraform-provider-gpufabric")
	binary, err := os.ReadFile(built)
	if err != nil {
		t.Fatalf("%v: run `make build`", err)
	}
	dir := t.TempDir()
	// Each of terraform and tofu looks under its own registry's name.
	for _, host := range []string{"registry.terraform.io", "registry.opentofu.org"} {
		place := filepath.Join(dir, host, "gpufabric/gpufabric", providerVersion, runtime.GOOS+"_"+runtime.GOARCH)
		must(t, os.MkdirAll(place, 0o755))
		must(t, os.WriteFile(filepath.Join(place, "terraform-provider-gpufabric_v"+providerVersion), binary, 0o755))
	}
	config := filepath.Join(dir, "terraform.rc")
	must(t, os.WriteFile(config, fmt.Appendf(nil, "provider_installation {\n  filesystem_mirror {\n    path = %q\n  }\n}\n", dir), 0o644))
	return config
}

// installed lists everything in the cluster that belongs to the drivers.
func (e *environment) installed(ctx context.Context) ([]string, error) {
	out, err := e.Kubectl(ctx, nil, "get", "--all-namespaces", "--ignore-not-found", "--selector", "app.kubernetes.io/part-of=gpufabric",
		"--output", "name",
		"deployments,daemonsets,pods,serviceaccounts,secrets,configmaps,services,clusterroles,clusterrolebindings,roles,rolebindings,"+
			"deviceclasses,customresourcedefinitions,validatingadmissionpolicies,validatingadmissionpolicybindings")
	if err != nil {
		return nil, err
	}
	found := strings.Fields(out)
	// Not everything that the drivers installed has their label, so this also searches by name.
	out, err = e.Kubectl(ctx, nil, "get", "--ignore-not-found", "--output", "name",
		"namespaces,customresourcedefinitions,deviceclasses,resourceslices,nodes")
	if err != nil {
		return nil, err
	}
	for _, name := range strings.Fields(out) {
		if strings.Contains(name, "gpufabric-system") || strings.Contains(name, "nvidia.com") || strings.HasPrefix(name, "resourceslice") ||
			strings.HasSuffix(name, ".gpufabric.io") {
			found = append(found, name)
		}
	}
	out, err = e.Kubectl(ctx, nil, "get", "nodes", "--output", "jsonpath={range .items[*]}{.metadata.name}{' '}{.metadata.labels}{'\\n'}{end}")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(out) {
		if strings.Contains(line, "nvidia.com/") {
			found = append(found, "labels of node "+strings.Fields(line)[0])
		}
	}
	return found, nil
}
