// Package deviceplugin serves extended resources to the kubelet through its device plugin API (v1beta1). It knows no kind of device; a
// Backend does.
//
// What the kubelet's protocol leaves to the plugin is done here: a registration is repeated whenever the kubelet restarts or drops the
// stream, the list of devices is sent when it changed and not otherwise, and a device that the plugin does not have is refused.
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

// rescanInterval is how often sockets are checked without a change: a net for a kubelet whose new socket was there before the directory was
// watched.
const rescanInterval = 10 * time.Second

// Host serves the resources of one process. Make it with NewHost.
type Host struct {
	dir     string
	files   *filewatch.Watcher
	metrics *Metrics
	// Trouble reports trouble with the node as a whole, such as by an Event; nil: it is not reported. Set it before Run. reason is a CamelCase
	// word.
	Trouble func(reason, message string)

	mu        sync.Mutex
	resources map[string]*Resource
	start     func(*Resource) // nil until Run
}

// NewHost makes a Host for the kubelet whose root directory is kubeletRoot (/var/lib/kubelet), whose directory files watches. metrics may
// be nil.
func NewHost(kubeletRoot string, files *filewatch.Watcher, metrics *Metrics) *Host {
	if metrics == nil {
		metrics = NewMetrics()
	}
	return &Host{dir: filepath.Join(kubeletRoot, "device-plugins"), files: files, metrics: metrics, resources: make(map[string]*Resource)}
}

// Serve starts to serve resource ("rdma/hca_shared_devices_a") with these devices, and does so while Run runs, until the Resource is
// stopped. Serving a resource twice at a time is an error.
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
	if h.Trouble != nil {
		group.Go(func() { (&cdi.Watch{Unread: h.unread, Tell: h.Trouble}).Run(ctx) })
	}
	h.watch(ctx, sockets)
	return nil
}

// unread names the resources whose CDI spec containers have waited for since before a time, and nobody has read.
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

// watch tells the resources when sockets in the kubelet's directory come and go.
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
		h.wake()
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
