package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"gpufabric.io/tests/simcluster/controlplane"
	"gpufabric.io/tests/simcluster/process"
	"gpufabric.io/tests/simcluster/simnode"
)

// nodesPerShard is how many nodes one process simulates: 14 racks of 18. A node takes about 30 open files, and a process
// may have 20,000 on the smallest machines meant; one inotify instance serves them all, of the 128 a user has.
const nodesPerShard = 252

// DetachedOptions define what cluster to bring up that outlives the caller.
type DetachedOptions struct {
	Dir        string
	Nodes      int
	Machines   Machines
	Binaries   map[string]string
	Port       int
	Audit      []string // see controlplane.Options
	Kubernetes string   // see controlplane.Options
	// Progress gets a line for each step.
	Progress func(format string, args ...any)
}

// UpDetached brings up a cluster whose processes outlive the caller; its nodes live in processes of this same program
// (`simcluster nodes`). Remove ends it.
func UpDetached(ctx context.Context, options DetachedOptions) (err error) {
	block, err := simnode.TakeBlock()
	if err != nil {
		return err
	}
	defer block.Release() // from here on the shards hold it
	if err := occupy(options.Dir, Record{Nodes: options.Nodes, Machines: options.Machines, Block: block.Number}); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_, removeErr := Remove(options.Dir)
			err = errors.Join(err, removeErr)
		}
	}()
	begin := time.Now()
	plane, err := controlplane.Start(ctx, controlplane.Options{
		Dir: options.Dir, Binaries: options.Binaries, Port: options.Port, Audit: options.Audit, Kubernetes: options.Kubernetes, Detach: true,
	})
	if err != nil {
		return err
	}
	options.Progress("control plane serves after %.1f s", time.Since(begin).Seconds())
	hold, err := block.File()
	if err != nil {
		return err
	}
	defer hold.Close() //nolint:errcheck // the shards have their own
	shards, err := startShards(options.Dir, options.Machines, block.Number, 0, options.Nodes, hold)
	if err != nil {
		return err
	}
	config, err := plane.Admin()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make the administrator's client: %w", err)
	}
	if err := whileTheyRun(ctx, shards, func(ctx context.Context) error { return AwaitNodes(ctx, client, options.Nodes, nil) }); err != nil {
		return err
	}
	if err := controlplane.AwaitDefaultAccount(ctx, client, metav1.NamespaceDefault); err != nil {
		return err
	}
	options.Progress("%d nodes Ready after %.1f s", options.Nodes, time.Since(begin).Seconds())
	return nil
}

// Add adds nodes to the cluster in dir, which UpDetached brought up, and returns their names when they are Ready. An empty profile is the
// cluster's own; the rest of what they are is the cluster's.
func Add(ctx context.Context, dir, profile string, count int) (names []string, err error) {
	before, err := reserve(dir, count)
	if err != nil {
		return nil, err
	}
	machines := before.Machines
	if profile != "" {
		machines.Profile = profile
	}
	config, err := controlplane.LoadConfig(filepath.Join(dir, "kubeconfig"))
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make the administrator's client: %w", err)
	}
	shards, err := startShards(dir, machines, before.Block, before.Nodes, count, nil) // the first shards hold the block
	if err != nil {
		return nil, err
	}
	for i := range count {
		names = append(names, NodeName(before.Nodes+i))
	}
	ready := func(ctx context.Context) error { return awaitNodes(ctx, client, len(names), names, nil) }
	if err := whileTheyRun(ctx, shards, ready); err != nil {
		for _, shard := range shards {
			shard.Stop(stopGrace)
		}
		return nil, err
	}
	return names, nil
}

// whileTheyRun calls wait with a context that ends when a shard does.
func whileTheyRun(ctx context.Context, shards []*process.Process, wait func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for _, shard := range shards {
		go func() { // ends with the shard, or with this process
			<-shard.Exited()
			cancel(shard.Err())
		}()
	}
	return wait(ctx)
}

// startShards starts the processes of count nodes, from number first on. They hold the file hold open.
func startShards(dir string, machines Machines, block, first, count int, hold *os.File) ([]*process.Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program to start the nodes with: %w", err)
	}
	var inherit []*os.File
	if hold != nil {
		inherit = append(inherit, hold)
	}
	var shards []*process.Process
	for end := first + count; first < end; first += nodesPerShard {
		shard, err := process.Start(process.Spec{
			Name: fmt.Sprintf("nodes-%d", first), ClusterDir: dir, LogDir: filepath.Join(dir, "logs"),
			Path: self, Detach: true, Inherit: inherit,
			Args: []string{
				"nodes", "--dir=" + dir, "--profile=" + machines.Profile, "--containers=" + machines.Mode, "--nodes=" + strconv.Itoa(end),
				"--features=" + strconv.FormatBool(machines.Features), "--slices=" + machines.Slices,
				"--extended=" + strconv.FormatBool(machines.Extended), "--nvidia-plugins=" + strconv.FormatBool(machines.NVIDIAPlugins),
				"--first=" + strconv.Itoa(first), "--count=" + strconv.Itoa(min(nodesPerShard, end-first)), "--block=" + strconv.Itoa(block),
			},
		})
		if err != nil {
			return nil, err
		}
		shards = append(shards, shard)
	}
	return shards, nil
}
