package provider

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// cli runs a real Terraform or OpenTofu with the provider as built from this tree, in a directory of its own.
type cli struct {
	tb        testing.TB
	terraform string
	dir       string
	env       []string
	vars      []string
}

// buildProvider builds the provider once for a test and returns the command-line configuration that makes Terraform use it.
func buildProvider(tb testing.TB) (rc string) {
	tb.Helper()
	dir := tb.TempDir()
	build := exec.CommandContext(
		tb.Context(),
		"go",
		"build",
		"-ldflags=-s -w",
		"-o",
		filepath.Join(dir, "terraform-provider-gpufabric"),
		"../..",
	)
	if out, err := build.CombinedOutput(); err != nil {
		tb.Fatalf("build the provider: %v\n%s", err, out)
	}
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
	args = append(append(args, "-no-color", "-input=false"), c.vars...)
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
