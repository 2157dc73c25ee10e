package deviceplugin

import (
	"bytes"
	"context"
	"slices"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Device is one unit of a resource.
type Device struct {
	ID        string // unique in the resource
	Healthy   bool
	NUMANodes []int // the device's NUMA nodes, for the kubelet's topology manager; empty: no hint
}

// Backend has the devices of a resource. Its methods are called concurrently.
type Backend interface {
	// Allocate returns the device nodes, mounts and CDI devices of a container with these devices. An error fails the pod.
	Allocate(ctx context.Context, ids []string) (*pluginapi.ContainerAllocateResponse, error)
}

// Preferrer is a Backend that can report which of its free devices suit a container best.
type Preferrer interface {
	// Prefer returns size of the available devices, including all the required ones. The kubelet makes its own choice where it returns
	// fewer.
	Prefer(available, required []string, size int) []string
}

// list holds the devices of a resource as the kubelet gets them, and signals changes. It keeps them as encoded bytes: a node can
// have 40,000 shares and more, of about 24 bytes each encoded and 300 as messages.
type list struct {
	mu sync.Mutex
	// encoded holds the devices of a ListAndWatchResponse in wire format. It never changes once it is set.
	encoded []byte
	// ids are the positions of the devices' IDs in encoded, sorted by ID.
	ids     []uint32
	changed chan struct{} // closed when encoded is replaced
}

func newList() *list { return &list{changed: make(chan struct{})} }

// set replaces the devices, and signals if they differ.
func (l *list) set(devices []Device) {
	encoded, ids := encode(devices)
	l.mu.Lock()
	defer l.mu.Unlock()
	if bytes.Equal(l.encoded, encoded) {
		return
	}
	l.encoded, l.ids = encoded, ids
	close(l.changed)
	l.changed = make(chan struct{})
}

// get returns the devices as a message that the caller must not change.
func (l *list) get() (*pluginapi.ListAndWatchResponse, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	response := &pluginapi.ListAndWatchResponse{}
	// Unknown fields of a message are sent as they are.
	response.ProtoReflect().SetUnknown(l.encoded)
	return response, l.changed
}

func (l *list) has(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, found := slices.BinarySearchFunc(l.ids, []byte(id), func(at uint32, id []byte) int { return bytes.Compare(idAt(l.encoded, at), id) })
	return found
}

func (l *list) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.ids)
}

// The field numbers of the API (api.proto of v1beta1).
const (
	fieldDevices protowire.Number = 1 // of ListAndWatchResponse
	fieldID      protowire.Number = 1 // of Device
)

// encode returns the devices in wire format, and the position of each ID in it, sorted by ID.
func encode(devices []Device) (encoded []byte, ids []uint32) {
	ids = make([]uint32, 0, len(devices))
	var one, rest []byte
	for i, d := range devices {
		if i == 0 || d.Healthy != devices[i-1].Healthy || !slices.Equal(d.NUMANodes, devices[i-1].NUMANodes) {
			rest = attributes(d)
		}
		one = protowire.AppendTag(one[:0], fieldID, protowire.BytesType)
		before := len(one)
		one = append(protowire.AppendString(one, d.ID), rest...)
		encoded = protowire.AppendTag(encoded, fieldDevices, protowire.BytesType)
		encoded = protowire.AppendVarint(encoded, uint64(len(one)))
		ids = append(ids, uint32(len(encoded)+before)) // the kubelet refuses a list over 4 MiB
		encoded = append(encoded, one...)
	}
	slices.SortFunc(ids, func(a, b uint32) int { return bytes.Compare(idAt(encoded, a), idAt(encoded, b)) })
	return bytes.Clone(encoded), ids // without the spare capacity that appending left
}

// idAt returns the ID at a position in an encoded list.
func idAt(encoded []byte, at uint32) []byte {
	id, _ := protowire.ConsumeBytes(encoded[at:])
	return id
}

// attributes encodes a device's fields except its ID.
func attributes(d Device) []byte {
	m := &pluginapi.Device{Health: pluginapi.Unhealthy}
	if d.Healthy {
		m.Health = pluginapi.Healthy
	}
	if len(d.NUMANodes) > 0 {
		m.Topology = &pluginapi.TopologyInfo{}
		for _, node := range d.NUMANodes {
			m.Topology.Nodes = append(m.Topology.Nodes, &pluginapi.NUMANode{ID: int64(node)})
		}
	}
	encoded, _ := proto.Marshal(m) // fails only on text that is not UTF-8
	return encoded
}
