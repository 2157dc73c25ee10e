package provider

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/provider"

	"gpufabric.io/provider/internal/object"
)

// programName is the provider's program. This test binary is the provider where it is called by that name, so that nothing else is
// built for Terraform to start.
const programName = "terraform-provider-gpufabric"

// patienceVariable makes such a provider wait less long for an API server that does not answer: a duration.
const patienceVariable = "GPUFABRIC_TEST_PATIENCE"

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) != programName {
		os.Exit(m.Run())
	}
	patience, _ := time.ParseDuration(os.Getenv(patienceVariable)) // unset: zero, which is the provider's own
	constructor := func() provider.Provider {
		return &fabricProvider{version: "test", getenv: os.Getenv, origin: object.NewOrigin(), patience: patience}
	}
	if err := Serve(context.Background(), constructor, false); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// cli runs a real Terraform or OpenTofu with the provider as a program of its own, in a directory of its own.
type cli struct {
	tb        testing.TB
	terraform string
	dir       string
	env       []string
	vars      []string
}

// installProvider puts the provider's program into a directory and returns the command-line configuration that makes Terraform use it.
func installProvider(tb testing.TB) (rc string) {
	tb.Helper()
	dir := tb.TempDir()
	self, err := os.Executable()
	must(tb, err)
	must(tb, os.Symlink(self, filepath.Join(dir, programName)))
	rc = filepath.Join(dir, "dev.tfrc")
	// OpenTofu reads a source without a host as its own registry's.
	config := fmt.Sprintf(
		"provider_installation {\n  dev_overrides {\n    %q = %q\n    \"registry.opentofu.org/gpufabric/gpufabric\" = %q\n  }\n}\n",
		Address,
		dir,
		dir,
	)
	must(tb, os.WriteFile(rc, []byte(config), 0o600))
	return rc
}

// newCLI prepares a working directory; needTerraform has set which program runs.
func newCLI(tb testing.TB, rc, dir string, variables map[string]string) *cli {
	c := &cli{
		tb:        tb,
		terraform: os.Getenv("TF_ACC_TERRAFORM_PATH"),
		dir:       dir,
		env:       append(os.Environ(), "TF_CLI_CONFIG_FILE="+rc, "TF_IN_AUTOMATION=1"),
	}
	for name, value := range variables {
		c.vars = append(c.vars, "-var", name+"="+value)
	}
	return c
}

// run runs a command that takes variables and must succeed.
func (c *cli) run(args ...string) string {
	c.tb.Helper()
	out, err := c.try(args...)
	if err != nil {
		c.tb.Fatalf("terraform %v: %v\n%s", args, err, out[max(0, len(out)-6000):])
	}
	return out
}

// plain runs a command that takes no variables and must succeed.
func (c *cli) plain(args ...string) string {
	c.tb.Helper()
	cmd := exec.CommandContext(c.tb.Context(), c.terraform, args...)
	cmd.Dir, cmd.Env = c.dir, c.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		c.tb.Fatalf("terraform %v: %v\n%s", args, err, out[max(0, len(out)-6000):])
	}
	return string(out)
}

func (c *cli) try(args ...string) (string, error) {
	flags := append([]string{args[0], "-no-color", "-input=false"}, c.vars...)
	args = append(flags, args[1:]...) // options come before the address of an import
	cmd := exec.CommandContext(c.tb.Context(), c.terraform, args...)
	cmd.Dir, cmd.Env = c.dir, c.env
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// changes reports whether a plan would change something.
func (c *cli) changes() (bool, string) {
	c.tb.Helper()
	out, err := c.try("plan", "-detailed-exitcode")
	exit := &exec.ExitError{}
	switch {
	case err == nil:
		return false, out
	case errors.As(err, &exit) && exit.ExitCode() == 2:
		return true, out
	}
	c.tb.Fatalf("terraform plan: %v\n%s", err, out)
	return false, ""
}

// outputs reads the outputs as JSON values.
func (c *cli) outputs() map[string]any {
	c.tb.Helper()
	cmd := exec.CommandContext(c.tb.Context(), c.terraform, "output", "-json")
	cmd.Dir, cmd.Env = c.dir, c.env
	text, err := cmd.Output()
	must(c.tb, err)
	var all map[string]struct{ Value any }
	must(c.tb, json.Unmarshal(text, &all))
	values := map[string]any{}
	for name, o := range all {
		values[name] = o.Value
	}
	return values
}
