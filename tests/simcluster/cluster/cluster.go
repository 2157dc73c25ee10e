// Package cluster brings a simulated cluster up and down: a real control plane and a number of simulated nodes.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"gpufabric.io/tests/simcluster/apiproxy"
	"gpufabric.io/tests/simcluster/controlplane"
	"gpufabric.io/tests/simcluster/simnode"
)

// Options define what cluster to bring up.
type Options struct {
	// Dir is the cluster's directory; keep it short, see simnode.Config.Dir.
	Dir string
	// Nodes is how many there are.
	Nodes int
	// Binaries are the control plane's programs, see controlplane.Programs.
	Binaries map[string]string
	// Port is the API server's; 0 is any free one.
	Port int
	// Audit and AuditAdmin, see controlplane.Options.
	Audit      []string
	AuditAdmin bool
	// Kubernetes and FeatureGates, see controlplane.Options.
	Kubernetes   string
	FeatureGates map[string]bool
	// NodeGrace, see controlplane.Options.
	NodeGrace time.Duration
	Runtime   simnode.Runtime
	Hardware  Hardware
	// PrepareRetry, RestartBackoff and MaxRestartBackoff, see simnode.Config.
	PrepareRetry, RestartBackoff, MaxRestartBackoff time.Duration
	// Proxy puts an apiproxy.Proxy between the pods and the API server, for tests that disturb the drivers' watches and writes.
	Proxy bool
	// ReuseAddresses gives a new pod the lowest free address of its node, which another pod may have had a moment ago.
	ReuseAddresses bool
}

// Cluster is a running cluster whose nodes live in this process.
type Cluster struct {
	Dir    string
	Plane  *controlplane.ControlPlane
	Fleet  *Fleet
	Config *rest.Config // the administrator's
	Client kubernetes.Interface
	Proxy  *apiproxy.Proxy // nil without Options.Proxy

	block  *simnode.Block
	cancel context.CancelFunc
	ended  chan struct{} // closed when the fleet has ended
	err    error         // why, read after ended is closed
}

// Up brings a cluster up whose nodes live in this process, and returns when every node is registered and pods may be made.
func Up(ctx context.Context, options Options) (_ *Cluster, err error) {
	c := &Cluster{Dir: options.Dir, ended: make(chan struct{})}
	if err := occupy(options.Dir, Record{Nodes: options.Nodes}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			c.Down()
		}
	}()
	if c.block, err = simnode.TakeBlock(); err != nil {
		return nil, err
	}
	c.Plane, err = controlplane.Start(ctx, controlplane.Options{
		Dir: options.Dir, Binaries: options.Binaries, Port: options.Port, Audit: options.Audit, AuditAdmin: options.AuditAdmin,
		NodeGrace: options.NodeGrace, Kubernetes: options.Kubernetes,
		FeatureGates: options.FeatureGates,
	})
	if err != nil {
		return nil, err
	}
	if c.Config, err = c.Plane.Admin(); err != nil {
		return nil, err
	}
	if c.Client, err = kubernetes.NewForConfig(c.Config); err != nil {
		return nil, fmt.Errorf("make the administrator's client: %w", err)
	}
	access := c.Plane.Access()
	if options.Proxy {
		if err := c.openProxy(access); err != nil {
			return nil, err
		}
	}
	fleet, err := NewFleet(ctx, FleetOptions{
		Dir: options.Dir, Count: options.Nodes, Block: c.block.Number, Access: access, Runtime: options.Runtime,
		Hardware: options.Hardware, PrepareRetry: options.PrepareRetry,
		RestartBackoff: options.RestartBackoff, MaxRestartBackoff: options.MaxRestartBackoff,
		ReuseAddresses: options.ReuseAddresses,
		// Four heartbeats within the grace period, as in Kubernetes.
		Heartbeat: options.NodeGrace / 4,
	})
	if err != nil {
		return nil, err
	}
	c.Fleet = fleet
	// The nodes live until Down, beyond the context that brings them up.
	var life context.Context
	life, c.cancel = context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		defer close(c.ended)
		c.err = fleet.Run(life)
	}()
	if err := AwaitNodes(ctx, c.Client, options.Nodes, nil); err != nil {
		return nil, errors.Join(err, c.Err())
	}
	if err := controlplane.AwaitDefaultAccount(ctx, c.Client, metav1.NamespaceDefault); err != nil {
		return nil, errors.Join(err, c.Err())
	}
	return c, nil
}

// openProxy opens the proxy and has pods use it.
func (c *Cluster) openProxy(access *controlplane.Access) error {
	certificate, err := access.Serving("api-proxy", net.IPv4(127, 0, 0, 1))
	if err != nil {
		return err
	}
	if c.Proxy, err = apiproxy.Open(access.Server, access.CA(), certificate); err != nil {
		return err
	}
	access.Pods = c.Proxy.URL()
	return nil
}

// Err reports which node, or which component of the control plane, ended unexpectedly.
func (c *Cluster) Err() error {
	select {
	case <-c.ended:
		return c.err
	default:
		return c.Plane.Err()
	}
}

// Down ends everything and removes the cluster's directory.
func (c *Cluster) Down() {
	if c.cancel != nil {
		c.cancel()
		<-c.ended
	}
	if c.Proxy != nil {
		c.Proxy.Close()
	}
	if c.Plane != nil {
		c.Plane.Stop()
	}
	if c.block != nil {
		c.block.Release()
	}
	_, _ = Remove(c.Dir) // nothing runs any more; the next Up reports a remaining directory
}
