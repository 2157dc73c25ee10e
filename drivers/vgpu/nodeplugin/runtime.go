package nodeplugin

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/nri/pkg/stub"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/vgpu/hook"
)

// A runtime that restarts is back within seconds; its socket is tried again in between, and each failure says so once.
const firstReconnect, lastReconnect = 200 * time.Millisecond, 10 * time.Second

// connect keeps the hook connected to the container runtime until ctx ends. Without a socket it has nothing to do.
func connect(ctx context.Context, socket string, h *hook.Hook) error {
	if socket == "" {
		return nil
	}
	wait := firstReconnect
	for ctx.Err() == nil {
		closed := make(chan struct{})
		plugin, err := stub.New(h, stub.WithSocketPath(socket), stub.WithPluginName("gpufabric-vgpu"), stub.WithPluginIdx("20"),
			stub.WithOnClose(func() { close(closed) }))
		if err != nil {
			return fmt.Errorf("make the NRI plugin: %w", err)
		}
		if err = plugin.Start(ctx); err == nil {
			wait = firstReconnect
			select {
			case <-closed:
			case <-ctx.Done():
				plugin.Stop()
			}
		}
		h.Disconnected()
		if ctx.Err() != nil {
			break
		}
		klog.FromContext(ctx).Info("Not connected to the container runtime's NRI; no share is given until it is back", "socket", socket, "after", wait, "err", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
		wait = min(2*wait, lastReconnect)
	}
	return nil
}
