// Package deviceplugin serves extended resources to the kubelet through its device plugin API (v1beta1). It handles no kind of
// device itself; a Backend does.
//
// The package has the parts that the kubelet's protocol leaves to the plugin: it registers again whenever the kubelet restarts or drops the
// stream, it sends the list of devices only when it changed, and it refuses a device that the plugin does not have.
package deviceplugin

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"gpufabric.io/drivers/node/cdi"
	"gpufabric.io/drivers/node/filewatch"
)

// rescanInterval is how often sockets and CDI specs are checked without a change. It catches a kubelet whose new socket appeared before the
// directory was watched.
const rescanInterval = 10 * time.Second

// Host serves the resources of one process. Make it with NewHost.
type Host struct {
	dir     string
	files   *filewatch.Watcher
	metrics *Metrics

	streamPatience time.Duration

	// Trouble reports a problem of the node as a whole, for example as an Event; nil: no report. Set it before Run. reason is a
	// CamelCase word.
	Trouble func(reason, message string)
	// Holders follows the pods that have devices, by the device's key; nil: the kubelet's word is enough. Set it before Run. Devices of
	// Exclusive backends are then given to a container only when no process of another pod can use them.
	Holders *Holders

	mu        sync.Mutex
	resources map[string]*Resource
	start     func(*Resource) // nil until Run
	looked    chan struct{}   // makes followHolders look again
}

// NewHost makes a Host for the kubelet whose root directory is kubeletRoot (/var/lib/kubelet). files watches that directory.
// metrics may be nil.
func NewHost(kubeletRoot string, files *filewatch.Watcher, metrics *Metrics) *Host {
	if metrics == nil {
		metrics = NewMetrics()
	}
	return &Host{dir: filepath.Join(kubeletRoot, "device-plugins"), files: files, metrics: metrics, resources: make(map[string]*Resource),
		streamPatience: streamPatience, looked: make(chan struct{}, 1)}
}

// Serve starts serving resource ("rdma/hca_shared_devices_a") with these devices. It serves while Run runs, until the Resource is
// stopped. Serving one resource twice at the same time is an error.
func (h *Host) Serve(resource string, backend Backend, devices []Device) (*Resource, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.resources[resource] != nil {
		return nil, fmt.Errorf("resource %s is served already: give one of the two another name", resource)
	}
	r := newResource(h, resource, backend)
	r.Update(devices)
	h.resources[resource] = r
	if h.start != nil {
		h.start(r)
	}
	return r, nil
}

// Run serves until ctx ends, then stops every resource. It returns an error when the kubelet's directory cannot be made.
func (h *Host) Run(ctx context.Context) error {
	if err := os.MkdirAll(h.dir, 0o750); err != nil {
		return fmt.Errorf("the kubelet's device plugin directory: %w (its parent is set by --kubelet-root)", err)
	}
	var group sync.WaitGroup
	defer group.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sockets := h.files.Entries(ctx, h.dir)

	h.mu.Lock()
	h.start = func(r *Resource) { group.Go(func() { r.run(ctx) }) }
	for _, r := range h.resources {
		h.start(r)
	}
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		h.start = nil
		h.mu.Unlock()
	}()
	if h.Holders != nil {
		group.Go(func() { h.followHolders(ctx) })
	}
	if h.Trouble != nil {
		group.Go(func() { (&cdi.Watch{Unread: h.unread, Report: h.Trouble}).Run(ctx) })
	}
	h.watch(ctx, sockets)
	return nil
}

// unread returns the resources whose CDI spec the runtime has not read, and for which containers wait since before the given time.
func (h *Host) unread(before time.Time) ([]string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var names []string
	for _, name := range slices.Sorted(maps.Keys(h.resources)) {
		unread, err := h.resources[name].unread(before)
		if err != nil {
			return nil, err
		}
		if unread {
			names = append(names, "resource "+name)
		}
	}
	return names, nil
}

// watch notifies the resources when sockets in the kubelet's directory appear or disappear.
func (h *Host) watch(ctx context.Context, sockets <-chan struct{}) {
	tick := time.NewTicker(rescanInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-sockets:
		case <-tick.C:
		}
		h.keepSpecs(ctx)
		h.wake()
		h.look()
	}
}

func (h *Host) wake() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.resources {
		r.wake()
	}
}

func (h *Host) forget(r *Resource) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.resources[r.name] == r {
		delete(h.resources, r.name)
	}
}
