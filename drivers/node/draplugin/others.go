package draplugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/klog/v2"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// The kubelet calls one plugin of a driver's name, the one that registered last, and each of two plugins deletes the ResourceSlices of the
// other. NVIDIA's DRA driver has the names of this one. By mistake both may be on a node, and always for seconds when a node moves from one
// to the other. This plugin gives way: it does not register while another one answers the kubelet, and ends when another one registers.

// reasonOtherDriver is the reason of Events about another plugin of the driver's name.
const reasonOtherDriver = "OtherDriver"

const (
	// takeoverPause is how long the other plugin must have been away before this one registers. One that was restarted is back by then.
	takeoverPause = 10 * time.Second
	// otherInterval is how often the other plugin is called meanwhile.
	otherInterval = 2 * time.Second
	// otherEvents is how often a wait is reported again: Events last for an hour.
	otherEvents = 30 * time.Minute
	// withdrawTimeout bounds the deletion of the node's slices.
	withdrawTimeout = 10 * time.Second
)

// errOtherDriver is why the plugin ends when another one has taken its place.
var errOtherDriver = errors.New("another plugin of this driver's name has registered with the kubelet")

// awaitTurn waits until no other plugin of this driver's name answers the kubelet. The caller has the lock of the state directory, so it is
// no earlier run of this one.
func (p *Plugin) awaitTurn(ctx context.Context, registry string) error {
	pause := cmp.Or(p.config.takeover, takeoverPause)
	var gone, reported time.Time
	for waited := false; ; waited = true {
		other := p.other(ctx, registry)
		switch now := time.Now(); {
		case other != "":
			gone = time.Time{}
			if now.Sub(reported) > otherEvents {
				reported = now
				p.reportOther(ctx, other, "This one registers when the other has ended")
			}
		case !waited:
			return nil
		case gone.IsZero():
			gone = now
		case now.Sub(gone) >= pause:
			klog.FromContext(ctx).Info("The other plugin has ended; registering with the kubelet", "driver", p.config.Driver)
			return nil
		}
		select {
		case <-time.After(min(otherInterval, pause)):
		case <-ctx.Done():
			return fmt.Errorf("wait for another plugin of driver %s to end: %w", p.config.Driver, context.Cause(ctx))
		}
	}
}

// other returns the socket by which another plugin of this driver's name answers the kubelet; empty: none does. Their names begin with the
// driver's, as the library for DRA drivers chooses them.
func (p *Plugin) other(ctx context.Context, registry string) string {
	entries, err := os.ReadDir(registry)
	if err != nil {
		return "" // the registration reports it
	}
	for _, entry := range entries {
		path := filepath.Join(registry, entry.Name())
		if !strings.HasPrefix(entry.Name(), p.config.Driver) || !strings.HasSuffix(entry.Name(), ".sock") ||
			p.registrar != nil && path == p.registrar.path && !p.registrar.replaced() {
			continue
		}
		if p.serves(ctx, path) {
			return path
		}
	}
	return ""
}

// serves reports whether a plugin of this driver's name answers by a registration socket.
func (p *Plugin) serves(ctx context.Context, path string) bool {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	return ask(path, func(connection *grpc.ClientConn) error {
		info, err := registerapi.NewRegistrationClient(connection).GetInfo(ctx, &registerapi.InfoRequest{})
		if err == nil && info.GetName() != p.config.Driver {
			return fmt.Errorf("it is of driver %s", info.GetName())
		}
		return err
	}) == nil
}

// followOthers ends the plugin when another one of its name registers.
func (p *Plugin) followOthers(ctx context.Context, registry string, changed <-chan struct{}) {
	var again <-chan time.Time // a new socket may not answer at once
	for {
		select {
		case <-changed:
			again = time.After(otherInterval)
		case <-again:
			again = nil
		case <-ctx.Done():
			return
		}
		other := p.other(ctx, registry)
		if p.registrar.replaced() { // maybe before the other one answers
			other = p.registrar.path
		}
		if other != "" {
			p.giveWay(ctx, other)
			return
		}
	}
}

// giveWay withdraws the node's devices, which the other plugin offers too, and ends the plugin. Claims stay prepared.
func (p *Plugin) giveWay(ctx context.Context, other string) {
	p.reportOther(ctx, other, "This one has withdrawn its ResourceSlices and waits. Claims that it prepared are kept, but the other plugin "+
		"has no record of them, and may give their devices to others")
	if err := p.slices.withdraw(ctx, p.config.Pool); err != nil {
		klog.FromContext(ctx).Error(err, "The devices of this node stay published beside those of the other plugin")
	}
	p.cancel(fmt.Errorf("%w: driver %s, socket %s", errOtherDriver, p.config.Driver, other))
}

func (p *Plugin) reportOther(ctx context.Context, other, consequence string) {
	message := fmt.Sprintf("another plugin serves driver %s on this node, by socket %s: the kubelet calls only one. %s. Keep one of the two "+
		"off the node, by nodePlugins.nodeSelector or the other's affinity", p.config.Driver, other, consequence)
	klog.FromContext(ctx).Error(errOtherDriver, message)
	p.report.node(reasonOtherDriver, message)
}

// listenRegistrar is listen for the socket of the registration.
func (p *Plugin) listenRegistrar(ctx context.Context, path string) (net.Listener, error) {
	s, err := listen(ctx, path)
	if err != nil {
		return nil, err
	}
	p.registrar = s
	return s, nil
}

// withdraw ends the controller, and deletes the slices of one pool. Later publications have no effect.
func (s *nodeSlices) withdraw(ctx context.Context, pool string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.controller.Stop() // nil is allowed
	s.controller, s.withdrawn = nil, true
	ctx, cancel := context.WithTimeout(ctx, withdrawTimeout)
	defer cancel()
	return s.delete(ctx, "whose devices another plugin offers", func(slice *resourceapi.ResourceSlice) bool {
		return slice.Spec.Pool.Name == pool
	})
}
