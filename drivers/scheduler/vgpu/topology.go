package vgpu

import (
	"strconv"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/client-go/tools/cache"

	"gpufabric.io/drivers/scheduler/cards"
)

// Attributes of the GPU driver's devices with the place of a GPU.
const (
	gpuDriver       = "gpu.nvidia.com"
	attributeUUID   = "uuid"
	attributeNVLink = "nvlinkDomain"
	attributeNUMA   = "resource.kubernetes.io/numaNode"
	attributeSwitch = "gpufabric.io/pcieSwitch"
)

// topology has the places of the nodes' GPUs, from the ResourceSlices of the GPU driver. These also list a GPU that is given to
// the vGPU plugin (tainted). Without that driver it is empty, and the choice of GPUs ignores their places.
type topology struct {
	mutex sync.RWMutex
	nodes map[string]map[string]map[string]cards.Near // node, slice, UUID
}

func newTopology() *topology { return &topology{nodes: map[string]map[string]map[string]cards.Near{}} }

func (t *topology) near(node, uuid string) cards.Near {
	t.mutex.RLock()
	defer t.mutex.RUnlock()
	for _, slice := range t.nodes[node] {
		if near, ok := slice[uuid]; ok {
			return near
		}
	}
	return cards.Near{}
}

func (t *topology) handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { t.set(object) },
		UpdateFunc: func(_, object any) { t.set(object) },
		DeleteFunc: func(object any) {
			if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = gone.Obj
			}
			t.remove(object)
		},
	}
}

func (t *topology) set(object any) {
	slice, ok := object.(*resourceapi.ResourceSlice)
	if !ok || slice.Spec.Driver != gpuDriver || slice.Spec.NodeName == nil {
		return
	}
	known := map[string]cards.Near{}
	for _, device := range slice.Spec.Devices {
		if uuid := text(device, attributeUUID); uuid != "" {
			known[uuid] = cards.Near{NVLink: text(device, attributeNVLink), NUMA: text(device, attributeNUMA), Switch: text(device, attributeSwitch)}
		}
	}
	t.mutex.Lock()
	defer t.mutex.Unlock()
	node := *slice.Spec.NodeName
	if t.nodes[node] == nil {
		t.nodes[node] = map[string]map[string]cards.Near{}
	}
	t.nodes[node][slice.Name] = known
}

func (t *topology) remove(object any) {
	slice, ok := object.(*resourceapi.ResourceSlice)
	if !ok || slice.Spec.NodeName == nil {
		return
	}
	t.mutex.Lock()
	defer t.mutex.Unlock()
	delete(t.nodes[*slice.Spec.NodeName], slice.Name)
	if len(t.nodes[*slice.Spec.NodeName]) == 0 {
		delete(t.nodes, *slice.Spec.NodeName)
	}
}

// text is an attribute's value, empty where the device has none of that name.
func text(device resourceapi.Device, name resourceapi.QualifiedName) string {
	switch value := device.Attributes[name]; {
	case value.StringValue != nil:
		return *value.StringValue
	case value.IntValue != nil:
		return strconv.FormatInt(*value.IntValue, 10)
	}
	return ""
}
