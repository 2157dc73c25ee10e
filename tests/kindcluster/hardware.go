package kindcluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"gpufabric.io/build/repository"
	"gpufabric.io/build/steps"
	"gpufabric.io/build/toolchain"
	"gpufabric.io/tests/docker"
)

// How the chart fake-hardware is installed.
const (
	hardwareRelease   = "fake-hardware"
	hardwareNamespace = "fake-hardware"
	hardwareLabels    = "fakefabric.gpufabric.io/" // profile, index and nodes
)

// Equip gives every worker the fake hardware of a fakefabric profile, and returns when it is there: the workers become the nodes of one
// fabric, in the order of their names. The control plane stays a node without a GPU.
func (c *Cluster) Equip(ctx context.Context, printer *steps.Printer, profile string) error {
	_, err := printer.Run(ctx, labels{c, profile}, agents{c, printer}, rendered{c, profile})
	return err
}

// Workers are the nodes beside the control plane.
func (c *Cluster) Workers() []string { return c.Nodes[1:] }

// labels sets the labels from which the agents learn the hardware of each node.
type labels struct {
	cluster *Cluster
	profile string
}

func (l labels) Name() string {
	return fmt.Sprintf("Profile %s on %d nodes", l.profile, len(l.cluster.Workers()))
}

func (l labels) Execute(ctx context.Context) error {
	workers := l.cluster.Workers()
	for i, node := range workers {
		if _, err := l.cluster.Kubectl(ctx, nil, "label", "--overwrite", "node", node, hardwareLabels+"profile="+l.profile,
			hardwareLabels+"index="+strconv.Itoa(i), hardwareLabels+"nodes="+strconv.Itoa(len(workers))); err != nil {
			return err
		}
	}
	return nil
}

// agents renders the hardware.
type agents struct {
	cluster *Cluster
	printer *steps.Printer
}

func (agents) Name() string { return "Fake hardware" }

func (a agents) Execute(ctx context.Context) error {
	root, err := repository.Root()
	if err != nil {
		return err
	}
	_, err = a.cluster.Helm(ctx, a.printer, "upgrade", "--install", hardwareRelease, filepath.Join(root, "charts/fake-hardware"),
		"--namespace", hardwareNamespace, "--create-namespace", "--wait", "--timeout", "4m",
		// A kind node is a container, which sees the GPUs of its host machine.
		"--set", "besideGPUs=true")
	return err
}

// How long the agents may take to render, and how often to check, since a file on a node has no event. Most of the time is the
// pull of their image.
const (
	renderPatience = 4 * time.Minute
	renderInterval = 250 * time.Millisecond
)

// rendered waits until every worker has the hardware of its labels. Helm's wait is not enough. It allows all pods of this
// DaemonSet to be absent, and an agent that has rendered a machine stays ready while it renders the next.
type rendered labels

func (rendered) Name() string { return "Hardware rendered" }

func (r rendered) Execute(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, renderPatience)
	defer cancel()
	for _, node := range r.cluster.Workers() {
		for {
			// A rendering writes this file last.
			out, err := docker.Script(ctx, node, "cat /var/lib/fakefabric/state/rendered.json")
			var is struct{ Profile string }
			if err == nil && json.Unmarshal([]byte(out), &is) == nil && is.Profile == r.profile {
				break
			}
			select {
			case <-ctx.Done():
				pods, _ := r.cluster.Kubectl(context.WithoutCancel(ctx), nil, "--namespace", hardwareNamespace, "describe", "pods")
				return fmt.Errorf("%s is no %s after %s, its rendered.json has %q: %w\n%s", node, r.profile, renderPatience, out,
					errors.Join(err, ctx.Err()), pods)
			case <-time.After(renderInterval):
			}
		}
	}
	return nil
}

// Helm runs `helm ARGS...` against the cluster and returns its output. If helm has to be built first, the printer shows that.
func (c *Cluster) Helm(ctx context.Context, printer *steps.Printer, args ...string) (string, error) {
	chain, err := toolchain.New(printer)
	if err != nil {
		return "", err
	}
	tools, err := chain.Ensure(ctx, "helm")
	if err != nil {
		return "", err
	}
	args = append([]string{"--kubeconfig", c.Kubeconfig}, args...)
	said, err := exec.CommandContext(ctx, tools["helm"], args...).CombinedOutput()
	if err != nil {
		return string(said), fmt.Errorf("helm %v: %w\n%s", args, err, said)
	}
	return string(said), nil
}
