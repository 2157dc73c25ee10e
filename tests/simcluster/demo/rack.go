package demo

import (
	"context"
	_ "embed"
	"fmt"
	"text/tabwriter"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/domain"
)

//go:embed rack.yaml
var rackManifest []byte

func (d *Demo) startRack(ctx context.Context) error {
	objects, err := parse(rackManifest)
	if err != nil {
		return err
	}
	return d.manifest.Apply(ctx, "default", objects...)
}

// awaitRack waits for the domain and prints each change of its progress.
func (d *Demo) awaitRack(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("the domain is not Ready, or its pods do not run, after %s", patience))
	defer cancel()
	last := -1
	progress := func(now domain.Domain) bool {
		if now.Ready != last {
			last = now.Ready
			fmt.Fprintf(d.printer, "%d/%d\n", now.Ready, Nodes)
		}
		return now.Status == domain.Ready && now.Ready >= Nodes
	}
	if _, err := domain.Await(ctx, d.manifest.Objects(), "default", domainName, progress); err != nil {
		return err
	}
	// The kubelet tries a claim again that was refused before the domain was Ready. On a busy machine that takes a while.
	if err := cluster.AwaitPodStarted(ctx, d.client, "default", "rack-0"); err != nil {
		return err
	}
	var err error // a daemon that was late meanwhile is waited for: what is shown is a rack that is Ready
	d.rack, err = domain.Await(ctx, d.manifest.Objects(), "default", domainName, progress)
	return err
}

// show prints the final state.
func (d *Demo) show(ctx context.Context) error {
	rack := d.rack
	table := tabwriter.NewWriter(d.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "\nNODE\tGPUS\tCLIQUE\tINDEX\tIMEX DAEMON\tSTATUS\n")
	gpus := 0
	for _, node := range rack.Nodes {
		hardware, err := renderedGPUs(d.Dir, node.Name)
		if err != nil {
			return err
		}
		gpus += hardware
		fmt.Fprintf(table, "%s\t%d\t%s\t%d\t%s\t%s\n", node.Name, hardware, node.Clique, node.Index, node.Address, node.Status)
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	fmt.Fprintf(d.Out, "\nCompute domain %s: %s, %d/%d nodes, %d GPUs\n", domainName, rack.Status, rack.Ready, Nodes, gpus)
	if err := d.showFindings(ctx); err != nil {
		return err
	}
	pods, err := d.client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=rack"})
	if err != nil {
		return fmt.Errorf("list the rack's pods: %w", err)
	}
	for i := range pods.Items {
		if pods.Items[i].Name == "rack-0" {
			return d.received(ctx, "default", "rack-0")
		}
	}
	return fmt.Errorf("pod rack-0 is not there; there are %d others", len(pods.Items))
}
