// Package docker runs the docker command. It uses only the command line, so any daemon works that the command reaches.
package docker

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
)

// Run runs `docker ARGS...` and returns its standard output without surrounding white space. An error has docker's output.
func Run(ctx context.Context, args ...string) (string, error) { return RunWith(ctx, nil, args...) }

// RunWith is Run with standard input.
func RunWith(ctx context.Context, stdin io.Reader, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "docker", args...)
	var out, complaint bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &out, &complaint
	if err := cmd.Run(); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		said := strings.TrimSpace(complaint.String() + "\n" + out.String())
		return "", fmt.Errorf("docker %s: %w: %s", strings.Join(args, " "), err, said)
	}
	return strings.TrimSpace(out.String()), nil
}

// Script runs a bash script inside a container; the first command that fails ends it.
func Script(ctx context.Context, container, script string, env ...string) (string, error) {
	args := []string{"exec", "-i"}
	for _, pair := range env {
		args = append(args, "--env", pair)
	}
	return RunWith(ctx, strings.NewReader(script), append(args, container, "bash", "-euo", "pipefail", "-s")...)
}

// Answers returns nil when the daemon can be used, else an error with the remedy.
func Answers(ctx context.Context) error {
	if _, err := exec.LookPath("docker"); err != nil {
		return fmt.Errorf("docker is not on the PATH: install it (Debian: run .ci/docker.sh as root, which installs and starts docker.io)")
	}
	if _, err := Run(ctx, "version", "--format", "{{.Server.Version}}"); err != nil {
		return fmt.Errorf("docker does not answer: start the daemon (on a machine without systemd: .ci/docker.sh): %w", err)
	}
	return nil
}

// HasImage reports whether the daemon has the image.
func HasImage(ctx context.Context, name string) bool {
	_, err := Run(ctx, "image", "inspect", "--format", "{{.Id}}", name)
	return err == nil
}
