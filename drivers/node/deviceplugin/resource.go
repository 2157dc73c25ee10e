package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/klog/v2"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	// kubeletSocket is where the kubelet takes registrations, in its device plugin directory.
	kubeletSocket = "kubelet.sock"
	// registerTimeout bounds one registration. The kubelet dials back only after it answered, so it answers at once or not at all.
	registerTimeout = 5 * time.Second
	// The pause between failed registrations. A new kubelet.sock ends it early.
	firstRetry, lastRetry = 50 * time.Millisecond, 2 * time.Second
	// streamPatience is how long the kubelet may take to open its stream after it took a registration. It does so at once. But where an
	// earlier stream of the resource ends at that moment, the kubelet closes the new connection instead of the old one, marks the
	// devices unhealthy and does not connect again (runClient in pkg/kubelet/cm/devicemanager/plugin/v1beta1/handler.go, 1.36.3).
	streamPatience = 10 * time.Second
	// maxSocketPath is the longest path in a sockaddr_un, without the terminating zero.
	maxSocketPath = 107
)

// Resource is an extended resource that is being served.
type Resource struct {
	name    string
	backend Backend
	host    *Host
	socket  string
	list    *list
	waiting wait
	// withheld are devices that a pod may still use though the kubelet has released them.
	withheld withheld

	wakeup   chan struct{} // something in the kubelet's directory changed, or a stream ended
	stopOnce sync.Once
	stop     chan struct{}
	done     chan struct{} // closed when run has returned
}

func newResource(h *Host, name string, backend Backend) *Resource {
	return &Resource{
		name: name, backend: backend, host: h, socket: socketPath(h.dir, name), list: newList(),
		wakeup: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
}

// Update replaces the devices. The kubelet is notified only if something changed. Update does not block.
func (r *Resource) Update(devices []Device) {
	if !r.exclusive() {
		r.offer(devices)
		return
	}
	r.withheld.mu.Lock()
	defer r.withheld.mu.Unlock()
	r.offer(r.withheld.apply(devices))
}

// offer makes devices the list that the kubelet gets.
func (r *Resource) offer(devices []Device) {
	healthy := 0
	for _, d := range devices {
		if d.Healthy {
			healthy++
		}
	}
	r.host.metrics.devices.WithLabelValues(r.name, pluginapi.Healthy).Set(float64(healthy))
	r.host.metrics.devices.WithLabelValues(r.name, pluginapi.Unhealthy).Set(float64(len(devices) - healthy))
	r.list.set(devices)
}

// Stop ends serving. The kubelet then counts the devices as unhealthy, and drops the resource after some minutes. Running pods keep
// their devices.
func (r *Resource) Stop() {
	r.stopOnce.Do(func() { close(r.stop) })
	r.host.forget(r)
	r.host.metrics.forget(r.name)
}

func (r *Resource) wake() {
	select {
	case r.wakeup <- struct{}{}:
	default:
	}
}

// run serves the resource until ctx ends or it is stopped. It runs a server on its own socket and registers it with the current
// kubelet.
func (r *Resource) run(ctx context.Context) {
	defer close(r.done)
	ctx, cancel := context.WithCancel(klog.NewContext(ctx, klog.FromContext(ctx).WithValues("resource", r.name)))
	defer cancel()
	go func() { // Ends with ctx, which ends with run.
		select {
		case <-r.stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	log := klog.FromContext(ctx)
	var current *server
	defer func() { current.close() }()
	var registered, seen identity // the kubelet.sock that we are registered with, and the last one we saw
	var at time.Time              // of the last registration
	retry := firstRetry
	for ctx.Err() == nil {
		wait := time.Duration(-1) // until woken
		kubelet, err := identify(filepath.Join(r.host.dir, kubeletSocket))
		if kubelet != seen {
			seen, retry = kubelet, firstRetry
		}
		switch {
		case err != nil:
			registered = identity{} // No kubelet. The event of its socket's appearance wakes us.
		case kubelet != registered || !current.alive():
			if !current.alive() {
				current.close()
				current, err = r.listen()
			}
			if err == nil {
				err = r.register(ctx, kubelet)
			}
			if err != nil {
				log.V(2).Info("Registering with the kubelet failed; trying again", "after", retry, "err", err)
				wait, retry = retry, min(2*retry, lastRetry)
				break
			}
			log.Info("Registered with the kubelet")
			r.host.metrics.registrations.WithLabelValues(r.name).Inc()
			registered, at, retry = kubelet, time.Now(), firstRetry
			wait = r.host.streamPatience
		case current.abandoned():
			// The kubelet closed its stream without a visible restart, and will not connect again by itself. A kubelet that shuts down does
			// this too: the pause lets its socket disappear.
			registered = identity{}
			current.adopt()
			wait = firstRetry
		case !current.watched():
			if wait = r.host.streamPatience - time.Since(at); wait <= 0 {
				log.Info("The kubelet took the registration and opened no stream; registering again", "after", r.host.streamPatience)
				registered, wait = identity{}, 0
			}
		}
		r.pause(ctx, wait)
	}
}

// pause waits for a wakeup, or for d where d is not negative.
func (r *Resource) pause(ctx context.Context, d time.Duration) {
	var timer <-chan time.Time
	if d >= 0 {
		timer = time.After(d)
	}
	select {
	case <-ctx.Done():
	case <-r.wakeup:
	case <-timer:
	}
}

// register registers the resource with the kubelet whose socket was identified. The kubelet then connects to the resource's socket. It
// fails where another kubelet's socket has taken the place: a registration with that one would be repeated, and the kubelet closes the
// connection of the first, with what it allocates by it.
func (r *Resource) register(ctx context.Context, kubelet identity) error {
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	target := filepath.Join(r.host.dir, kubeletSocket)
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		connection, err := new(net.Dialer).DialContext(ctx, "unix", target)
		if err != nil {
			return nil, err
		}
		if now, err := identify(target); err != nil || now != kubelet {
			return nil, errors.Join(errors.New("the kubelet's socket was replaced"), err, connection.Close())
		}
		return connection, nil
	}
	connection, err := grpc.NewClient("unix:"+target, grpc.WithContextDialer(dial), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("dial the kubelet at %s: %w", target, err)
	}
	defer func() { _ = connection.Close() }()
	_, err = pluginapi.NewRegistrationClient(connection).Register(ctx, &pluginapi.RegisterRequest{
		Version: pluginapi.Version, Endpoint: filepath.Base(r.socket), ResourceName: r.name, Options: r.options(),
	})
	if err != nil {
		return fmt.Errorf("register %s with the kubelet at %s: %w", r.name, target, err)
	}
	return nil
}

func (r *Resource) options() *pluginapi.DevicePluginOptions {
	_, prefers := r.backend.(Preferrer)
	return &pluginapi.DevicePluginOptions{GetPreferredAllocationAvailable: prefers}
}

// identity distinguishes two files of one name. Inode numbers are reused at once, so the change time is part of it.
type identity struct {
	inode uint64
	made  int64
}

func identify(path string) (identity, error) {
	info, err := os.Lstat(path)
	if err == nil && info.Mode().Type() != fs.ModeSocket {
		return identity{}, fmt.Errorf("%s is not a socket", path)
	}
	return stamp(path)
}

// stamp returns the identity of a file of any type.
func stamp(path string) (identity, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return identity{}, err
	}
	id := identity{made: info.ModTime().UnixNano()}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		id.inode = stat.Ino
	}
	return id, nil
}

// socketPath is the resource's socket. Where the name makes the path too long for a socket address, its hash is used.
func socketPath(dir, resource string) string {
	path := filepath.Join(dir, "gpufabric-"+strings.ReplaceAll(resource, "/", "_")+".sock")
	if len(path) <= maxSocketPath {
		return path
	}
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(resource))
	return filepath.Join(dir, fmt.Sprintf("gpufabric-%016x.sock", hash.Sum64()))
}
