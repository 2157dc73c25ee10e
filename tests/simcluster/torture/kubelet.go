package torture

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	resourceapi "k8s.io/api/resource/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registrationpb "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

const (
	// callTimeout is the kubelet's for one call (pkg/kubelet/cm/dra/plugin).
	callTimeout = 45 * time.Second
	// between is how long the kit waits between two calls of one claim.
	between = 200 * time.Millisecond
)

// kubelet has the connection to a registered plugin.
type kubelet struct {
	conn   *grpc.ClientConn
	plugin drapb.DRAPluginClient
}

func dial(socket string) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// connect registers the plugin: it finds its socket, reads what it serves, accepts it and connects to it. It starts a plugin again that
// ends meanwhile.
func (n *node) connect(ctx context.Context) error {
	ctx, cancel := n.bounded(ctx, "no plugin could be registered")
	defer cancel()
	for {
		err := n.tryConnect(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w (the last try: %w)", context.Cause(ctx), err)
		case <-n.plugin.Exited():
			if err := n.revive(ctx); err != nil {
				return err
			}
		case <-time.After(between): // there is no event for a socket that begins to answer
		}
	}
}

// tryConnect registers the first plugin of the driver that answers. A killed plugin leaves its sockets behind.
func (n *node) tryConnect(ctx context.Context) error {
	sockets, err := filepath.Glob(n.path("k/plugins_registry/*.sock"))
	if err != nil {
		return fmt.Errorf("find the plugin's registration socket: %w", err)
	}
	errs := []error{errors.New("no registration socket answered")}
	for _, socket := range sockets {
		endpoint, err := n.accept(ctx, socket)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		conn, err := dial(endpoint)
		if err != nil {
			return kit("connect to %s: %w", endpoint, err)
		}
		n.disconnect()
		n.kubelet = &kubelet{conn, drapb.NewDRAPluginClient(conn)}
		return nil
	}
	return errors.Join(errs...)
}

// accept does the kubelet's two calls at a registration socket, and returns the socket for claims.
func (n *node) accept(ctx context.Context, socket string) (endpoint string, err error) {
	conn, err := dial(socket)
	if err != nil {
		return "", kit("connect to %s: %w", socket, err)
	}
	defer conn.Close() //nolint:errcheck // it was used up
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	client := registrationpb.NewRegistrationClient(conn)
	info, err := client.GetInfo(ctx, &registrationpb.InfoRequest{})
	switch {
	case err != nil:
		return "", fmt.Errorf("GetInfo: %w", err)
	case info.Type != registrationpb.DRAPlugin || info.Name != n.driver.DriverName:
		return "", fmt.Errorf("GetInfo returned %s %q, want %s %q", info.Type, info.Name, registrationpb.DRAPlugin, n.driver.DriverName)
	case !slices.Contains(info.SupportedVersions, drapb.DRAPluginService):
		return "", fmt.Errorf("the plugin serves %v; the kit calls %s", info.SupportedVersions, drapb.DRAPluginService)
	}
	if _, err := client.NotifyRegistrationStatus(ctx, &registrationpb.RegistrationStatus{PluginRegistered: true}); err != nil {
		return "", fmt.Errorf("NotifyRegistrationStatus: %w", err)
	}
	return info.Endpoint, nil
}

func (n *node) disconnect() {
	if n.kubelet != nil {
		_ = n.kubelet.conn.Close() // it was used up
		n.kubelet = nil
	}
}

func reference(claim *resourceapi.ResourceClaim) *drapb.Claim {
	return &drapb.Claim{Namespace: claim.Namespace, Name: claim.Name, Uid: string(claim.UID)}
}

// prepare asks for one claim once, within limit, and returns its CDI devices in order.
func (n *node) prepare(ctx context.Context, claim *resourceapi.ResourceClaim, limit time.Duration) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	response, err := n.kubelet.plugin.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{reference(claim)}})
	if err != nil {
		return nil, fmt.Errorf("NodePrepareResources: %w", err)
	}
	result := response.Claims[string(claim.UID)]
	switch {
	case result == nil:
		return nil, fmt.Errorf("NodePrepareResources answered without claim %s", claim.UID)
	case result.Error != "":
		return nil, fmt.Errorf("NodePrepareResources: %s", result.Error)
	}
	var ids []string
	for _, d := range result.Devices {
		ids = append(ids, d.CdiDeviceIds...)
	}
	slices.Sort(ids)
	return ids, nil
}

func (n *node) unprepare(ctx context.Context, claim *resourceapi.ResourceClaim, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	response, err := n.kubelet.plugin.NodeUnprepareResources(ctx,
		&drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{reference(claim)}})
	if err != nil {
		return fmt.Errorf("NodeUnprepareResources: %w", err)
	}
	if result := response.Claims[string(claim.UID)]; result == nil {
		return fmt.Errorf("NodeUnprepareResources answered without claim %s", claim.UID)
	} else if result.Error != "" {
		return fmt.Errorf("NodeUnprepareResources: %s", result.Error)
	}
	return nil
}

// repeat calls until it succeeds, as the kubelet does, and starts a plugin again that ends meanwhile. It returns how many calls failed.
func (n *node) repeat(ctx context.Context, what string, call func(context.Context) error) (failed int, err error) {
	ctx, cancel := n.bounded(ctx, what+" did not succeed")
	defer cancel()
	for ; ; failed++ {
		if err = call(ctx); err == nil {
			return failed, nil
		}
		select {
		case <-ctx.Done():
			return failed, fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-n.plugin.Exited():
			if err := n.revive(ctx); err != nil {
				return failed, err
			}
			if err := n.connect(ctx); err != nil {
				return failed, err
			}
		case <-time.After(between): // the kubelet's own pause is longer
		}
	}
}

// mustPrepare prepares a claim and checks that the container runtime would find its devices.
func (n *node) mustPrepare(ctx context.Context, claim *resourceapi.ResourceClaim) (ids []string, err error) {
	if _, err = n.repeat(ctx, "prepare", func(ctx context.Context) (err error) {
		ids, err = n.prepare(ctx, claim, callTimeout)
		return err
	}); err != nil {
		return nil, err
	}
	return ids, n.resolve(ids)
}

// mustUnprepare unprepares a claim and checks that none of its CDI devices is left.
func (n *node) mustUnprepare(ctx context.Context, claim *resourceapi.ResourceClaim) error {
	if _, err := n.repeat(ctx, "unprepare", func(ctx context.Context) error {
		return n.unprepare(ctx, claim, callTimeout)
	}); err != nil {
		return err
	}
	return n.noneLeft(claim)
}

// specs reads the CDI specs as a container runtime does.
func (n *node) specs() (*cdi.Cache, error) {
	cache, err := cdi.NewCache(cdi.WithSpecDirs(n.path("cdi")), cdi.WithAutoRefresh(false))
	if err != nil {
		return nil, kit("read the CDI specs: %w", err)
	}
	return cache, nil
}

func (n *node) resolve(ids []string) error {
	cache, err := n.specs()
	if err != nil {
		return err
	}
	for _, id := range ids {
		if cache.GetDevice(id) == nil {
			return fmt.Errorf("prepared as CDI device %s, which no CDI spec has: the container would not start", id)
		}
	}
	return nil
}

func (n *node) noneLeft(claim *resourceapi.ResourceClaim) error {
	cache, err := n.specs()
	if err != nil {
		return err
	}
	for _, id := range cache.ListDevices() {
		if strings.Contains(id, string(claim.UID)) {
			return fmt.Errorf("unprepared, and its CDI device %s is left", id)
		}
	}
	return nil
}
