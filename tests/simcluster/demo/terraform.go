package demo

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// terraform runs terraform (or tofu) on a configuration with the provider that was built from this checkout.
type terraform struct {
	program  string
	provider string // directory of terraform-provider-gpufabric
	dir      string // where its state is kept
	output   io.Writer
}

// apply applies the configuration without confirmation. A development override names the provider, so no init is needed.
func (t terraform) apply(ctx context.Context, configuration string, args ...string) error {
	if _, err := os.Stat(filepath.Join(t.provider, "terraform-provider-gpufabric")); err != nil {
		return fmt.Errorf("the Terraform provider is not built: %w; run `make build`", err)
	}
	settings := filepath.Join(t.dir, "terraform.rc")
	content := fmt.Sprintf("provider_installation {\n  dev_overrides {\n    \"gpufabric/gpufabric\" = %q\n  }\n  direct {}\n}\n", t.provider)
	if err := os.WriteFile(settings, []byte(content), 0o644); err != nil {
		return fmt.Errorf("write terraform's settings: %w", err)
	}
	args = append([]string{
		"-chdir=" + configuration, "apply", "-auto-approve", "-input=false", "-no-color", "-compact-warnings",
		"-state=" + filepath.Join(t.dir, "terraform.tfstate"),
	}, args...)
	cmd := exec.CommandContext(ctx, t.program, args...)
	cmd.Env = append(os.Environ(), "TF_CLI_CONFIG_FILE="+settings, "TF_DATA_DIR="+filepath.Join(t.dir, "terraform"), "TF_IN_AUTOMATION=1",
		"CHECKPOINT_DISABLE=1")
	log, err := os.Create(filepath.Join(t.dir, "logs", "terraform.log"))
	if err != nil {
		return fmt.Errorf("open terraform's log: %w", err)
	}
	defer log.Close() //nolint:errcheck // terraform's own exit status counts
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		said, _ := os.ReadFile(log.Name()) // if this fails, the error still names the log
		return fmt.Errorf("terraform apply: %w; it said (%s):\n%s", err, log.Name(), said)
	}
	return nil
}
