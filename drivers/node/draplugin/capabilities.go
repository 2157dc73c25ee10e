package draplugin

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/node/capability"
)

// reasonNeedsFeature is the reason of Events about devices that are not published because the cluster lacks a feature.
const reasonNeedsFeature = "NeedsKubernetesFeature"

// capabilities are the fields of this node's ResourceSlices that the API server keeps.
type capabilities struct {
	server capability.Server
	// dropped receives the fields that the library found dropped.
	dropped chan *resourceslice.DroppedFieldsError

	once sync.Once

	mu      sync.Mutex
	missing capability.Missing
	query   capability.Query
	// reported is the last report of withheld features.
	reported string
}

func newCapabilities(config Config) *capabilities {
	server := capability.Server{Client: config.Client, Driver: config.Driver, Node: config.Node.NodeName, Pool: config.Pool}
	return &capabilities{server: server, dropped: make(chan *resourceslice.DroppedFieldsError, 1)}
}

func (c *capabilities) now() capability.Missing {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.missing
}

// learn queries the API server, until it answers or ctx ends. If the server refuses the query, every feature is taken to be there until the
// library reports dropped fields.
func (c *capabilities) learn(ctx context.Context) {
	backoff := wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.5, Steps: 6, Cap: 30 * time.Second}
	for ctx.Err() == nil {
		state, _ := c.server.State(ctx)
		missing, err := c.server.Missing(ctx)
		if err == nil {
			c.set(missing, state)
			return
		}
		if capability.Refused(err) {
			klog.FromContext(ctx).Error(err, "Could not detect the API server's features; assuming that all are on, until a write loses fields")
			known := c.now()
			known.CountedShares = missing.CountedShares
			c.set(known, state)
			return
		}
		klog.FromContext(ctx).Error(err, "Could not detect the API server's features yet; devices are not published")
		select {
		case <-time.After(backoff.Step()):
		case <-ctx.Done():
		}
	}
}

func (c *capabilities) set(missing capability.Missing, state capability.State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.missing = missing
	c.query.Made(state)
}

// drop records gates that are off, regardless of the server's answer, until the next query.
func (c *capabilities) drop(gates []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.missing = c.missing.Dropped(gates)
}

// stale reports whether the server must be queried again.
func (c *capabilities) stale(ctx context.Context) bool {
	state, err := c.server.State(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.query.Stale(state, err)
}

// followCapabilities repeats the query when the API server has another version, was restarted, or has dropped a field that it was taken to
// keep.
func (p *Plugin) followCapabilities(ctx context.Context) {
	tick := time.NewTicker(capability.StateInterval)
	defer tick.Stop()
	for {
		var dropped *resourceslice.DroppedFieldsError
		select {
		case dropped = <-p.capabilities.dropped:
		case <-tick.C:
			if !p.capabilities.stale(ctx) {
				continue
			}
		case <-ctx.Done():
			return
		}
		before := p.capabilities.now() // not earlier: the first publication queries the server too
		p.capabilities.learn(ctx)
		if dropped != nil {
			p.capabilities.drop(dropped.DisabledFeatures()) // of several API servers, another one may have answered
		}
		if p.capabilities.now() != before {
			p.passMissing(ctx)
			p.published.again(ctx)
		}
	}
}

// Learn waits until the missing features of the cluster are found, and Config.Missing was called with them. The first Publish does it too.
func (p *Plugin) Learn() {
	p.capabilities.once.Do(func() {
		p.capabilities.learn(p.ctx)
		p.passMissing(p.ctx)
	})
}

// passMissing passes the missing features to the kind, which then offers its devices in forms that need fewer.
func (p *Plugin) passMissing(ctx context.Context) {
	missing := p.capabilities.now()
	if missing.Any() {
		klog.FromContext(ctx).Info("The cluster lacks features", "missing", missing.Error())
	}
	if p.config.Missing != nil {
		p.config.Missing(missing)
	}
}

// publishable returns the resources without the parts that the server would drop, and reports these.
func (p *Plugin) publishable(resources resourceslice.DriverResources) resourceslice.DriverResources {
	offered, err := p.capabilities.now().Withhold(p.withReleasing(resources))
	text := ""
	if err != nil {
		text = err.Error()
	}
	p.capabilities.mu.Lock()
	news := text != p.capabilities.reported
	p.capabilities.reported = text
	p.capabilities.mu.Unlock()
	if news && err != nil {
		klog.FromContext(p.ctx).Error(err, "Devices are withheld")
		p.report.node(reasonNeedsFeature, text)
	}
	return offered
}

// droppedFields passes on the library's report of fields that the API server dropped.
func (p *Plugin) droppedFields(err error) {
	var dropped *resourceslice.DroppedFieldsError
	if !errors.As(err, &dropped) {
		return
	}
	select {
	case p.capabilities.dropped <- dropped:
	default: // a result waits already, and serves all
	}
}
