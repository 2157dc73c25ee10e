package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"gpufabric.io/tests/simcluster/controlplane"
	"gpufabric.io/tests/simcluster/simnode"
)

// Hardware makes the fake hardware of one node in dir. It returns the paths of the hardware on the node, and the node's labels.
type Hardware func(ctx context.Context, index int, dir string) (mappings []simnode.Mapping, labels map[string]string, err error)

// Described is what the API has of a node's machine: simnode.Config.Machine and Slices.
type Described struct {
	Machine *corev1.Node
	Slices  []*resourceapi.ResourceSlice
}

// Describe returns what the API has of a node whose hardware was made in dir.
type Describe func(ctx context.Context, index int, dir string) (Described, error)

// FleetOptions define which nodes of a cluster run in this process.
type FleetOptions struct {
	// Dir is the cluster's directory.
	Dir string
	// First and Count are the nodes' numbers: First, First+1, ...
	First, Count int
	// Block is the cluster's share of the loopback addresses.
	Block    int
	Access   *controlplane.Access
	Runtime  simnode.Runtime
	Hardware Hardware
	// Describe is nil for GB200 trays without labels.
	Describe Describe
	// Leaves is that of simnode.Config.
	Leaves bool
	// PrepareRetry, RestartBackoff, MaxRestartBackoff and Heartbeat are those of simnode.Config.
	PrepareRetry, RestartBackoff, MaxRestartBackoff, Heartbeat time.Duration
	// ReuseAddresses, see Options.
	ReuseAddresses bool
}

// Fleet is a number of simulated nodes in one process; they share one inotify instance.
type Fleet struct {
	options FleetOptions
	sockets *simnode.SocketWatcher
	gateway *simnode.Gateway // nil where another process has the first nodes

	mu    sync.Mutex
	nodes []*simnode.Node
	power []context.CancelFunc // powers each node off
}

// nodesAtOnce bounds how many nodes are made or started at the same time. That needs only processor time, so few are enough.
const nodesAtOnce = 8

// NodeName is the name of node number i.
func NodeName(i int) string { return fmt.Sprintf("node-%04d", i) }

// NodeDir is the directory of node number i; its name is short because unix sockets lie below it.
func NodeDir(clusterDir string, i int) string {
	return filepath.Join(clusterDir, fmt.Sprintf("n%d", i))
}

// NewFleet makes the nodes and their hardware; Run starts them.
func NewFleet(ctx context.Context, options FleetOptions) (*Fleet, error) {
	sockets, err := simnode.NewSocketWatcher()
	if err != nil {
		return nil, err
	}
	f := &Fleet{options: options, sockets: sockets, nodes: make([]*simnode.Node, options.Count),
		power: make([]context.CancelFunc, options.Count)}
	if options.First == 0 {
		if f.gateway, err = simnode.OpenGateway(controlplane.Gateway(options.Dir)); err != nil {
			return nil, err
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(nodesAtOnce)
	for i := range options.Count {
		group.Go(func() error {
			node, err := f.makeNode(ctx, options.First+i)
			f.nodes[i] = node
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return f, nil
}

func (f *Fleet) makeNode(ctx context.Context, index int) (*simnode.Node, error) {
	dir := NodeDir(f.options.Dir, index)
	var mappings []simnode.Mapping
	var labels map[string]string
	if f.options.Hardware != nil {
		var err error
		if mappings, labels, err = f.options.Hardware(ctx, index, dir); err != nil {
			return nil, fmt.Errorf("make the hardware of %s: %w", NodeName(index), err)
		}
	}
	var described Described
	if f.options.Describe != nil {
		var err error
		if described, err = f.options.Describe(ctx, index, dir); err != nil {
			return nil, fmt.Errorf("describe %s: %w", NodeName(index), err)
		}
	}
	addresses := simnode.NewAddresses(f.options.Block, index)
	addresses.Reuse = f.options.ReuseAddresses
	return simnode.New(simnode.Config{
		Name: NodeName(index), Labels: labels, Dir: dir, Hardware: mappings,
		Addresses: addresses, Access: f.options.Access, Runtime: f.options.Runtime, Sockets: f.sockets,
		PrepareRetry: f.options.PrepareRetry, RestartBackoff: f.options.RestartBackoff, MaxRestartBackoff: f.options.MaxRestartBackoff,
		Heartbeat: f.options.Heartbeat, Machine: described.Machine, Slices: described.Slices, Leaves: f.options.Leaves,
	})
}

// Nodes are the fleet's nodes in order of their numbers.
func (f *Fleet) Nodes() []*simnode.Node {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.nodes)
}

// Run runs the nodes until ctx is done or one of them fails.
func (f *Fleet) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { f.sockets.Run(ctx); return nil })
	if f.gateway != nil {
		group.Go(func() error { return f.gateway.Run(ctx) })
	}
	for i := range f.nodes {
		group.Go(func() error { return f.runNode(ctx, i) })
	}
	return group.Wait()
}

// runNode runs a node, and again after each Reboot. The files of a node that leaves are removed.
func (f *Fleet) runNode(ctx context.Context, i int) error {
	for {
		on, off := context.WithCancel(ctx)
		f.mu.Lock()
		node := f.nodes[i]
		f.power[i] = off
		f.mu.Unlock()
		err := node.Run(on)
		off()
		if err != nil || ctx.Err() != nil {
			return err
		}
		if node.Left() {
			return os.RemoveAll(NodeDir(f.options.Dir, f.options.First+i))
		}
		if node, err = f.makeNode(ctx, f.options.First+i); err != nil {
			return err
		}
		f.mu.Lock()
		f.nodes[i] = node
		f.mu.Unlock()
	}
}

// Reboot switches node number i of the fleet off, as a power cut does, and on again. Its disk stays, /var/run does not, and its pods start
// again.
func (f *Fleet) Reboot(i int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if off := f.power[i]; off != nil {
		off()
	}
}
