package deviceplugin

import (
	"context"
	"slices"
	"sync"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Device is one unit of a resource.
type Device struct {
	ID        string // unique in the resource
	Healthy   bool
	NUMANodes []int // where it is, for the kubelet's topology manager; empty: no hint
}

func (d Device) equal(other Device) bool {
	return d.ID == other.ID && d.Healthy == other.Healthy && slices.Equal(d.NUMANodes, other.NUMANodes)
}

// Backend knows the devices of a resource. Its methods are called concurrently.
type Backend interface {
	// Allocate says what one container that was given these devices gets: device nodes, mounts, CDI devices. The pod fails on an error.
	Allocate(ctx context.Context, ids []string) (*pluginapi.ContainerAllocateResponse, error)
}

// Preferrer is a Backend that has an opinion on which of its free devices a container should get.
type Preferrer interface {
	// Prefer returns size of the available devices, among them all the required ones. The kubelet falls back to its own choice where it
	// returns fewer.
	Prefer(available, required []string, size int) []string
}

// list is the devices of a resource and a signal of their change.
type list struct {
	mu       sync.Mutex
	devices  []Device
	ids      map[string]struct{}
	response *pluginapi.ListAndWatchResponse // shared by all streams, never changed once it is here
	changed  chan struct{}                   // closed when response is replaced
}

func newList() *list {
	return &list{response: &pluginapi.ListAndWatchResponse{}, changed: make(chan struct{})}
}

// set replaces the devices, and signals if they differ.
func (l *list) set(devices []Device) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if slices.EqualFunc(l.devices, devices, Device.equal) {
		return
	}
	l.devices = slices.Clone(devices)
	l.ids = make(map[string]struct{}, len(devices))
	l.response = &pluginapi.ListAndWatchResponse{Devices: make([]*pluginapi.Device, len(devices))}
	for i, d := range devices {
		l.ids[d.ID] = struct{}{}
		l.response.Devices[i] = message(d)
	}
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *list) get() (*pluginapi.ListAndWatchResponse, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.response, l.changed
}

func (l *list) has(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, found := l.ids[id]
	return found
}

func (l *list) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.devices)
}

func message(d Device) *pluginapi.Device {
	m := &pluginapi.Device{ID: d.ID, Health: pluginapi.Unhealthy}
	if d.Healthy {
		m.Health = pluginapi.Healthy
	}
	if len(d.NUMANodes) > 0 {
		m.Topology = &pluginapi.TopologyInfo{}
		for _, node := range d.NUMANodes {
			m.Topology.Nodes = append(m.Topology.Nodes, &pluginapi.NUMANode{ID: int64(node)})
		}
	}
	return m
}
