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
	Profile    string
	Mode       string // how containers run, passed on to the shards
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
	if err := occupy(options.Dir, Record{Nodes: options.Nodes, Profile: options.Profile}); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_, removeErr := Remove(options.Dir)
			err = errors.Join(err, removeErr)
		}
	}()
	block, err := simnode.TakeBlock()
	if err != nil {
		return err
	}
	defer block.Release() // from here on the shards hold it
	begin := time.Now()
	plane, err := controlplane.Start(ctx, controlplane.Options{
		Dir: options.Dir, Binaries: options.Binaries, Port: options.Port, Audit: options.Audit, Kubernetes: options.Kubernetes, Detach: true,
	})
	if err != nil {
		return err
	}
	options.Progress("control plane serves after %.1f s", time.Since(begin).Seconds())
	shards, err := startShards(options, block)
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
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for _, shard := range shards {
		go func() { // ends with the shard, or with this process
			<-shard.Exited()
			cancel(shard.Err())
		}()
	}
	if err := AwaitNodes(ctx, client, options.Nodes, nil); err != nil {
		return err
	}
	if err := controlplane.AwaitDefaultAccount(ctx, client, metav1.NamespaceDefault); err != nil {
		return err
	}
	options.Progress("%d nodes Ready after %.1f s", options.Nodes, time.Since(begin).Seconds())
	return nil
}

func startShards(options DetachedOptions, block *simnode.Block) ([]*process.Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program to start the nodes with: %w", err)
	}
	hold, err := block.File()
	if err != nil {
		return nil, err
	}
	defer hold.Close() //nolint:errcheck // the shards have their own
	var shards []*process.Process
	for first := 0; first < options.Nodes; first += nodesPerShard {
		count := min(nodesPerShard, options.Nodes-first)
		shard, err := process.Start(process.Spec{
			Name: fmt.Sprintf("nodes-%d", first), ClusterDir: options.Dir, LogDir: filepath.Join(options.Dir, "logs"),
			Path: self, Detach: true, Inherit: []*os.File{hold},
			Args: []string{
				"nodes", "--dir=" + options.Dir, "--profile=" + options.Profile, "--containers=" + options.Mode,
				"--nodes=" + strconv.Itoa(options.Nodes),
				"--first=" + strconv.Itoa(first), "--count=" + strconv.Itoa(count), "--block=" + strconv.Itoa(block.Number),
			},
		})
		if err != nil {
			return nil, err
		}
		shards = append(shards, shard)
	}
	return shards, nil
}
