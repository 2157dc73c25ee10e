// Package kindcluster brings a kind cluster up for tests: one control plane and workers at the Kubernetes version of the toolchain, on
// machines with and without an image registry, with and without cgroup v2. Bring-up is a list of named steps; see Up.
package kindcluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"gpufabric.io/build/repository"
	"gpufabric.io/build/toolchain"
	"gpufabric.io/tests/kindcluster/registry"
)

// DefaultName is the cluster that `make demo` and the end-to-end tests use.
const DefaultName = "gpufabric"

// Cluster is a running cluster. It is also stored on disk, so that a later command finds it.
type Cluster struct {
	Name       string
	Kubeconfig string   // a file of its own; the user's ~/.kube/config is never touched
	Nodes      []string // names of the Kubernetes nodes, which are also those of the Docker containers; the control plane first
	Image      string   // node image
	Published  bool     // Image is kind's own: this machine can pull images
	Registry   registry.Registry
	Timings    []Timing      // of the bring-up's steps
	Took       time.Duration // of the whole bring-up
}

// Timing is the duration of one step of the bring-up.
type Timing struct {
	Step    string
	Seconds float64
}

// Paths of a cluster's files, inside the checkout and ignored by git.
func kubeconfigPath(root, name string) string {
	return filepath.Join(root, ".cache", name+".kubeconfig")
}
func recordPath(root, name string) string { return filepath.Join(root, ".cache", name+".json") }
func logsPath(root, name string) string   { return filepath.Join(root, "tests/logs", name) }

// Find returns the cluster that Up brought up before; the error wraps fs.ErrNotExist where there is none.
func Find(name string) (*Cluster, error) {
	root, err := repository.Root()
	if err != nil {
		return nil, err
	}
	content, err := os.ReadFile(recordPath(root, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no cluster %q: bring it up with `harness kind up`: %w", name, err)
	}
	if err != nil {
		return nil, err
	}
	c := &Cluster{}
	if err := json.Unmarshal(content, c); err != nil {
		return nil, fmt.Errorf("read %s: %w", recordPath(root, name), err)
	}
	return c, nil
}

// record stores the cluster for Find.
func (c *Cluster) record(root string) error {
	content, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	path := recordPath(root, c.Name)
	if err := os.WriteFile(path+".unfinished", append(content, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".unfinished", path)
}

// oldestKubectl is the oldest kubectl of the PATH that is taken. Earlier ones take a flow mapping such as {kind: Pod} for broken JSON
// (apimachinery's YAMLOrJSONDecoder before 0.34).
const oldestKubectl = "1.34.0"

// Kubectl runs `kubectl ARGS...` against the cluster and returns its standard output without surrounding white space.
func (c *Cluster) Kubectl(ctx context.Context, stdin io.Reader, args ...string) (string, error) {
	kubectl, err := toolchain.EnsureSince(ctx, "kubectl", oldestKubectl)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, kubectl, append([]string{"--kubeconfig", c.Kubeconfig}, args...)...)
	cmd.Stdin = stdin
	var complaint strings.Builder
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(complaint.String()))
	}
	return strings.TrimSpace(string(out)), nil
}

// ExportLogs writes the nodes' and pods' logs into a directory under tests/logs, which it returns.
func (c *Cluster) ExportLogs(ctx context.Context) (string, error) {
	root, err := repository.Root()
	if err != nil {
		return "", err
	}
	return exportLogs(ctx, root, c.Name)
}

func exportLogs(ctx context.Context, root, name string) (string, error) {
	dir := logsPath(root, name)
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	err := runKind(ctx, nil, "export", "logs", dir, "--name", name)
	return dir, err
}

// Down removes the cluster, its registry and its stored record. A missing cluster is no error.
func Down(ctx context.Context, name string) error {
	root, err := repository.Root()
	if err != nil {
		return err
	}
	kubeconfig := kubeconfigPath(root, name)
	if err := runKind(ctx, nil, "delete", "cluster", "--name", name, "--kubeconfig", kubeconfig); err != nil {
		return err
	}
	if err := registry.Stop(ctx, registryName(name)); err != nil {
		return err
	}
	for _, path := range []string{kubeconfig, recordPath(root, name)} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func registryName(cluster string) string { return cluster + "-registry" }

// runKind runs kind, from the toolchain; an error has kind's output.
func runKind(ctx context.Context, stdin io.Reader, args ...string) error {
	tools, err := toolchain.Ensure(ctx, "kind")
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, tools["kind"], args...)
	cmd.Stdin = stdin
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("kind %s: %w\n%s", strings.Join(args, " "), err, said)
	}
	return nil
}
