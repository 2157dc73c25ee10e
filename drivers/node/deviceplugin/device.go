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
	NUMANodes []int // where it is, for the kubelet's topology manager; empty: no hint
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

// list is the devices of a resource as the kubelet gets them, and a signal of their change. They are kept as the bytes that are sent:
// a node's shares are 40,000 devices and more, of some 24 bytes each there and 300 as messages.
type list struct {
	mu sync.Mutex
	// encoded are the devices of a ListAndWatchResponse on the wire, never changed once they are here.
	encoded []byte
	// ids are where in encoded each device's ID stands, by ID.
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

// get returns the devices, as a message that nobody may change.
func (l *list) get() (*pluginapi.ListAndWatchResponse, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	response := &pluginapi.ListAndWatchResponse{}
	// Fields that a message was not made from are sent as they are.
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

// The numbers of the API's fields (api.proto of v1beta1).
const (
	fieldDevices protowire.Number = 1 // of ListAndWatchResponse
	fieldID      protowire.Number = 1 // of Device
)

// encode returns the devices as they are sent, and where in that each ID stands, by ID.
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
		ids = append(ids, uint32(len(encoded)+before)) // the kubelet takes no list over 4 MiB
		encoded = append(encoded, one...)
	}
	slices.SortFunc(ids, func(a, b uint32) int { return bytes.Compare(idAt(encoded, a), idAt(encoded, b)) })
	return bytes.Clone(encoded), ids // without the room that appending left
}

// idAt is the ID that stands at a place in an encoded list.
func idAt(encoded []byte, at uint32) []byte {
	id, _ := protowire.ConsumeBytes(encoded[at:])
	return id
}

// attributes are a device's fields but for its ID, encoded.
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
	encoded, _ := proto.Marshal(m) // fails on text that is no UTF-8 alone
	return encoded
}
