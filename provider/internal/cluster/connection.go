package cluster

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"gpufabric.io/provider/internal/feed"
	"gpufabric.io/provider/internal/inventory"
)

// probeTimeout bounds the first request to an API server, so that an address that drops packets is reported within seconds.
const probeTimeout = 15 * time.Second

// failureMemory is how long a failed probe is reused for other resources: with a hundred resources and an unreachable server, the
// user waits for one probe and not for a hundred.
const failureMemory = 10 * time.Second

// Client calls one API server.
type Client struct {
	Config  *rest.Config
	Source  string // where the address came from, for messages
	Dynamic dynamic.Interface
	Typed   kubernetes.Interface
	Version *version.Info
	Feeds   *feed.Set // shared watches, one for each kind

	Inventory *inventory.Cache // the nodes' devices, for advice at plan time
}

// Connection is a cluster that may not be known or reachable yet. It connects at its first use, because a provider is also
// configured at plan time, when the cluster may not exist.
type Connection struct {
	settings Settings
	unknown  string // attribute whose value is still unknown; no client can be made

	mu       sync.Mutex
	client   *Client
	failure  error
	failedAt time.Time
}

// NewConnection returns a connection to the cluster of s.
func NewConnection(s Settings) *Connection { return &Connection{settings: s} }

// NewUnknownConnection returns a connection that cannot be used yet, because the named provider attribute is only known after
// apply.
func NewUnknownConnection(attribute string) *Connection { return &Connection{unknown: attribute} }

// UnknownError is returned for a cluster whose address depends on a resource that does not exist yet.
type UnknownError struct{ Attribute string }

func (e *UnknownError) Error() string {
	return fmt.Sprintf("the provider's %s is not known yet: it depends on a resource that is still to be created. "+
		"Create that resource first (terraform apply -target=...), keep the cluster and what runs in it in two configurations, or, for a data "+
		"source, write depends_on with that resource, so that it is read in the apply.", e.Attribute)
}

// Known reports whether the cluster's address is known, not whether it answers.
func (c *Connection) Known() bool { return c.unknown == "" }

// Client returns a client whose server has answered once. Errors are *UnknownError, *SettingError, or the server's or the
// network's; Explain describes them.
func (c *Connection) Client(ctx context.Context) (*Client, error) {
	if c.unknown != "" {
		return nil, &UnknownError{c.unknown}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.client != nil {
		return c.client, nil
	}
	if c.failure != nil && time.Since(c.failedAt) < failureMemory {
		return nil, c.failure
	}
	client, err := connect(ctx, c.settings)
	if err != nil {
		// A caller without time left, such as a plan that only wants advice, must not record a failure of the server.
		if ctx.Err() == nil {
			c.failure, c.failedAt = err, time.Now()
		}
		return nil, err
	}
	c.client, c.failure = client, nil
	return client, nil
}

func connect(ctx context.Context, s Settings) (*Client, error) {
	config, source, err := s.RESTConfig()
	if err != nil {
		return nil, err
	}
	typed, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for %s: %w", config.Host, err)
	}
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for %s: %w", config.Host, err)
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	// /version does not need rights, so a failure here is about reaching the server or logging in, never about permissions.
	info := &version.Info{}
	raw, err := typed.Discovery().RESTClient().Get().AbsPath("/version").DoRaw(ctx)
	if err == nil {
		err = decodeVersion(raw, info)
	}
	if err != nil {
		return nil, &ConnectError{Host: config.Host, Source: source, Err: err}
	}
	return &Client{
		Config:    config,
		Source:    source,
		Dynamic:   dyn,
		Typed:     typed,
		Version:   info,
		Feeds:     feed.NewSet(dyn),
		Inventory: inventory.NewCache(typed),
	}, nil
}
