// Package runtimehook keeps one of our plugins connected to the container runtime through NRI, the Node Resource Interface.
package runtimehook

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/nri/pkg/stub"
	"k8s.io/klog/v2"
)

// A runtime that restarts is back within seconds. The plugin retries the socket in between, and logs each failure once.
const firstReconnect, lastReconnect = 200 * time.Millisecond, 10 * time.Second

// Plugin is an NRI plugin. The runtime calls it for those methods of the package stub that it has.
type Plugin interface {
	// Disconnected is called when the connection to the runtime is lost, or could not be made.
	Disconnected()
}

// Settings identify a plugin to the runtime.
type Settings struct {
	// Socket is the runtime's NRI socket; empty: there is none, and Run has nothing to do.
	Socket string
	// Name is the plugin's name. Index is two digits that give the order in which plugins are called.
	Name, Index string
	// Without names the function that is missing while the runtime is not connected.
	Without string
}

// Run keeps the plugin connected until ctx ends. An error means that it can never connect.
func Run(ctx context.Context, s Settings, plugin Plugin) error {
	if s.Socket == "" {
		return nil
	}
	wait := firstReconnect
	for ctx.Err() == nil {
		closed := make(chan struct{})
		connection, err := stub.New(plugin, stub.WithSocketPath(s.Socket), stub.WithPluginName(s.Name), stub.WithPluginIdx(s.Index),
			stub.WithOnClose(func() { close(closed) }))
		if err != nil {
			return fmt.Errorf("make the NRI plugin %s: %w", s.Name, err)
		}
		if err = connection.Start(ctx); err == nil {
			wait = firstReconnect
			select {
			case <-closed:
			case <-ctx.Done():
				connection.Stop()
			}
		}
		plugin.Disconnected()
		if ctx.Err() != nil {
			break
		}
		klog.FromContext(ctx).Info("Not connected to the container runtime's NRI; "+s.Without+" until it is back", "socket", s.Socket, "after",
			wait, "err", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
		wait = min(2*wait, lastReconnect)
	}
	return nil
}
