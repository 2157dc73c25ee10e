// Package demo shows the main job on a simulated cluster, from nothing to a compute domain over a whole rack, as a list of
// steps that a person can follow.
package demo

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"k8s.io/client-go/kubernetes"

	"gpufabric.io/build/repository"
	"gpufabric.io/build/steps"
	"gpufabric.io/build/toolchain"
	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/controlplane"
	"gpufabric.io/tests/simcluster/domain"
	"gpufabric.io/tests/simcluster/manifests"
)

// Nodes is a GB200 rack: 18 compute trays of four GPUs.
const Nodes = 18

// Profile is the machine that each node is.
const Profile = "gb200-nvl72"

// domainName is the quickstart's own name for its domain; its pods claim channels from the template <name>-channel.
const domainName = "quickstart"

// chartValues turn on what the manifests of examples/manifests want: GPUs, and RDMA devices by the ConfigMap in kube-system.
//
//go:embed values.yaml
var chartValues []byte

// Demo is one run. Its cluster keeps running afterwards.
type Demo struct {
	// Dir is the cluster's directory.
	Dir string
	Out io.Writer
	// Up brings the cluster up in Dir in processes that outlive this one.
	Up func(ctx context.Context) error

	root     string // of the checkout
	printer  *steps.Printer
	client   kubernetes.Interface
	manifest *manifests.Client
	findings []finding
	rack     domain.Domain // as it was Ready
}

// patience is how long a step may take in which nothing but the cluster works. On a busy machine of two cores the rack takes minutes.
const patience = 10 * time.Minute

// Run runs the demo.
func (d *Demo) Run(ctx context.Context) error {
	root, err := repository.Root()
	if err != nil {
		return err
	}
	d.root, d.printer = root, steps.NewPrinter(d.Out)
	begin := time.Now()
	if _, err := d.printer.Run(ctx,
		step{fmt.Sprintf("a cluster of %d simulated nodes (%s)", Nodes, Profile), d.bringUp},
		step{"terraform apply examples/terraform/quickstart", d.apply},
		step{"the manifests of examples/manifests whose kinds the cluster has", d.applyManifests},
		step{fmt.Sprintf("a pod with a channel on each of %d nodes", Nodes), d.startRack},
		step{"the rack's compute domain", d.awaitRack},
	); err != nil {
		return err
	}
	if err := d.show(ctx); err != nil {
		return err
	}
	kubectl := "kubectl"
	if _, err := exec.LookPath(kubectl); err != nil { // no earlier step needs it
		kubectl = "$(go run ./build/cmd/toolchain kubectl)"
	}
	fmt.Fprintf(d.Out, "\n%.0f s in all. Look around:\n  export KUBECONFIG=%s\n  %s get computedomains,pods -o wide\n  bin/simcluster "+
		"devices --dir %s rack-0\n  bin/gpufabric topology\n  bin/gpufabric console   # a page of the rack in your browser, live\n"+
		"and remove it all with `make demo-down`.\n",
		time.Since(begin).Seconds(), d.kubeconfig(), kubectl, d.Dir)
	return nil
}

// oldestTerraform is the first version that the quickstart's required_version allows.
const oldestTerraform = "1.6.0"

type step struct {
	name string
	run  func(context.Context) error
}

func (s step) Name() string                      { return s.name }
func (s step) Execute(ctx context.Context) error { return s.run(ctx) }

func (d *Demo) kubeconfig() string { return filepath.Join(d.Dir, "kubeconfig") }

func (d *Demo) bringUp(ctx context.Context) error {
	if err := d.Up(ctx); err != nil {
		return err
	}
	config, err := controlplane.LoadConfig(d.kubeconfig())
	if err != nil {
		return err
	}
	if d.client, err = kubernetes.NewForConfig(config); err != nil {
		return fmt.Errorf("make the administrator's client: %w", err)
	}
	d.manifest, err = manifests.NewClient(config)
	return err
}

func (d *Demo) apply(ctx context.Context) error {
	program, err := toolchain.EnsureSince(ctx, "terraform", oldestTerraform)
	if err != nil {
		return err
	}
	quickstart := filepath.Join(d.root, "examples/terraform/quickstart")
	values := filepath.Join(d.Dir, "values.yaml")
	if err := os.WriteFile(values, chartValues, 0o644); err != nil {
		return fmt.Errorf("write the chart's values: %w", err)
	}
	return terraform{program: program, provider: filepath.Join(d.root, "bin"), dir: d.Dir, output: d.printer}.apply(ctx, quickstart,
		"-var-file="+filepath.Join(quickstart, "fake-hardware.tfvars"),
		"-var=kubeconfig="+d.kubeconfig(), "-var=nodes="+strconv.Itoa(Nodes), "-var=domain="+domainName,
		fmt.Sprintf("-var=values_files=[%q]", values))
}

// received prints what a pod's first container received, for the devices among it.
func (d *Demo) received(ctx context.Context, namespace, pod string) error {
	containers, err := cluster.ReceivedBy(ctx, d.Dir, d.client, namespace, pod)
	if err != nil {
		return err
	}
	fmt.Fprintf(d.Out, "\nDevices that pod %s received:\n", pod)
	for _, container := range containers {
		for _, device := range container.Devices {
			mode := ""
			if device.FileMode != nil {
				mode = fmt.Sprintf(", mode %04o", device.FileMode.Perm())
			}
			fmt.Fprintf(d.Out, "  %s  (%s %d:%d%s)\n", device.Path, device.Type, device.Major, device.Minor, mode)
		}
	}
	return nil
}
