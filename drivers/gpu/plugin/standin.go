package plugin

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"gpufabric.io/drivers/gpu/claims"
	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/node/draplugin"
	"gpufabric.io/drivers/node/metrics"
	"gpufabric.io/drivers/node/observed"
)

const (
	// startPatience is how long the role may take to serve the kubelet. A driver that hangs never returns from its start.
	startPatience = 10 * time.Second
	// startPause is the time between two starts on a driver that is there in part.
	startPause = 10 * time.Second
)

// errNotYet is wrapped by the error of a start that may succeed later, without a change of the role's options.
var errNotYet = errors.New("the node's GPUs cannot be offered yet")

// standIn serves the kubelet while the role waits for a driver: pods that have GPUs must be able to end, above all where the driver is
// to be mended. Its zero value serves nothing.
type standIn struct {
	message observed.Value[string]
	begun   chan struct{} // closed by the first begin
	once    sync.Once
	stop    context.CancelFunc
	wg      sync.WaitGroup
}

// standIn makes a stand-in. It serves once begin is called or startPatience has passed, until end is called.
func (s *starter) standIn(ctx context.Context, p *plugin) *standIn {
	ctx, stop := context.WithCancel(ctx)
	i := &standIn{begun: make(chan struct{}), stop: stop}
	i.message.Set("the node's NVIDIA driver does not answer yet")
	i.wg.Go(func() {
		select {
		case <-i.begun:
		case <-time.After(cmp.Or(s.tuning.start, startPatience)):
		case <-ctx.Done():
			return
		}
		i.serve(ctx, s, p)
	})
	return i
}

// begin serves the kubelet from now on. message is the reason of the role's wait.
func (i *standIn) begin(message string) {
	i.message.Set(message)
	i.once.Do(func() { close(i.begun) })
}

// end stops serving, and returns when it has stopped. It may be repeated.
func (i *standIn) end() {
	if i == nil {
		return
	}
	i.stop()
	i.wg.Wait()
}

func (i *standIn) serve(ctx context.Context, s *starter, p *plugin) {
	limits := claims.Limits{}
	if found, err := p.options.limits(p.tuning.writer); err == nil {
		limits = found
	}
	dra, err := draplugin.Start(ctx, draplugin.Config{
		Driver: devices.Driver, Node: s.options.Node, Client: s.client,
		Preparer: claims.Driverless{Options: p.claimOptions(limits), Why: i.message.Now},
		// The plugin proper has metrics and its own count of claims as soon as there is a driver.
		Metrics: metrics.New(devices.Driver), Recorder: p.events.recorder, Writer: s.tuning.writer,
	})
	if err != nil {
		klog.FromContext(ctx).Error(err, "Calls of the kubelet fail while the role waits for a driver: pods with claims of GPUs stay")
		return
	}
	defer dra.Stop()
	select {
	case <-ctx.Done():
	case <-dra.Done():
		klog.FromContext(ctx).Error(dra.Err(), "Calls of the kubelet fail from now on, while the role waits for a driver")
	}
}
