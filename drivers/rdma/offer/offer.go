// Package offer offers a pool to the kubelet: units with a health and a NUMA node, and the device nodes that a container gets for
// them.
package offer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/hardware/infiniband"
	"gpufabric.io/drivers/hardware/pci"
	"gpufabric.io/drivers/node/cdi"
	"gpufabric.io/drivers/node/deviceplugin"
	"gpufabric.io/drivers/rdma/health"
	"gpufabric.io/drivers/rdma/inventory"
	"gpufabric.io/drivers/rdma/pool"
)

// Offer is the units of one pool. It is a deviceplugin.Backend, Preferrer and Exclusive.
type Offer struct {
	dev inventory.DeviceNodes
	cdi *cdi.Dir // where a spec of the pool is stored; nil: the kubelet gives containers their device nodes

	mu      sync.Mutex
	pool    pool.Pool
	members map[string]*poolHCA // by HCA key
	layout  pool.Layout         // of a shared pool
	failed  map[string]bool     // HCAs that were unhealthy when the units were last listed, by key
}

// poolHCA is an HCA of the pool.
type poolHCA struct {
	pool.Member
	gone bool // it is gone, but pods may have units of it
}

// New makes an empty offer. dev has the device nodes. With a CDI directory containers get them by CDI, else from the kubelet.
func New(dev inventory.DeviceNodes, layout pool.Layout, cdi *cdi.Dir) *Offer {
	return &Offer{dev: dev, cdi: cdi, layout: layout, members: make(map[string]*poolHCA)}
}

// Resume sets the configuration for which an earlier run in the same boot made the layout. The layout's HCAs count as gone until
// Set finds them.
func (o *Offer) Resume(config v1alpha1.RDMAPoolConfig) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pool.RDMAPoolConfig = config
	for _, key := range o.layout {
		if o.members[key] == nil {
			// Only the key of an absent HCA is known.
			o.members[key] = &poolHCA{Member: pool.Member{HCA: &inventory.HCA{Device: infiniband.Device{Name: key}}}, gone: true}
		}
	}
}

// Set sets the offer's pool. An HCA that is gone keeps its units, as unhealthy ones, while the pool's configuration is the same: it
// comes back after its driver was loaded again.
func (o *Offer) Set(p pool.Pool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	members := make(map[string]*poolHCA, len(p.Members))
	for _, m := range p.Members {
		members[m.HCA.Key()] = &poolHCA{Member: m}
	}
	if equality.Semantic.DeepEqual(o.pool.RDMAPoolConfig, p.RDMAPoolConfig) {
		for key, m := range o.members {
			if members[key] == nil {
				members[key] = &poolHCA{Member: m.Member, gone: true}
			}
		}
	}
	o.pool, o.members = p, members
	if !p.Exclusive() {
		o.layout = o.layout.Divide(int(p.RDMAHCAMax), o.keys())
	}
}

// Exclusive implements deviceplugin.Exclusive.
func (o *Offer) Exclusive() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.pool.Exclusive()
}

// Layout is the division of the units among the HCAs, to be stored across restarts.
func (o *Offer) Layout() pool.Layout {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.layout)
}

// whole reports whether a unit gives every HCA of the pool, as a unit of k8s-rdma-shared-dev-plugin does (its server.go: Allocate
// returns the resource's deviceSpec, whichever unit is requested). Such a unit has no NUMA node, there as here.
func (o *Offer) whole() bool { return o.pool.DeviceNodes == v1alpha1.RDMANodesAll }

// Devices lists the units, with the health that state reports for their HCA's ports. A unit of the whole pool is healthy while any of
// the pool's HCAs is.
func (o *Offer) Devices(state func(health.Key) health.State) []deviceplugin.Device {
	o.mu.Lock()
	defer o.mu.Unlock()
	healthy, anyHealthy := make(map[string]bool, len(o.members)), false
	for key, m := range o.members {
		healthy[key] = !m.gone && m.Trouble(state) == ""
		anyHealthy = anyHealthy || healthy[key]
	}
	o.failed = make(map[string]bool)
	for key := range healthy {
		o.failed[key] = !healthy[key]
	}
	device := func(id, key string) deviceplugin.Device {
		if o.whole() {
			return deviceplugin.Device{ID: id, Healthy: anyHealthy}
		}
		d := deviceplugin.Device{ID: id, Healthy: healthy[key]}
		if node := o.members[key].HCA.NUMANode(); node != pci.NUMAUnknown && !o.pool.ExcludeTopology {
			d.NUMANodes = []int{node}
		}
		return d
	}
	var devices []deviceplugin.Device
	if o.pool.Exclusive() {
		for _, key := range o.keys() {
			devices = append(devices, device(key, key))
		}
		return devices
	}
	for i, key := range o.layout {
		devices = append(devices, device(strconv.Itoa(i), key))
	}
	return devices
}

// Holding returns the HCAs behind a unit, by key; empty: there is no such unit.
func (o *Offer) Holding(id string) []*inventory.HCA {
	o.mu.Lock()
	defer o.mu.Unlock()
	held := o.members[o.key(id)]
	switch {
	case held == nil:
		return nil
	case !o.whole():
		return []*inventory.HCA{held.HCA}
	}
	var all []*inventory.HCA
	for _, key := range o.keys() {
		if m := o.members[key]; !m.gone {
			all = append(all, m.HCA)
		}
	}
	return all
}

// key returns the key of the HCA of the unit id, or nothing.
func (o *Offer) key(id string) string {
	if o.pool.Exclusive() {
		return id
	}
	if i, err := strconv.Atoi(id); err == nil && 0 <= i && i < len(o.layout) {
		return o.layout[i]
	}
	return ""
}

func (o *Offer) keys() []string { return slices.Sorted(maps.Keys(o.members)) }

// Allocate implements deviceplugin.Backend. It returns the device nodes of the units' HCAs and rdma_cm. A unit of the whole pool gives
// every HCA that is on the node and can be opened; Allocate fails if there is none.
func (o *Offer) Allocate(_ context.Context, ids []string) (*pluginapi.ContainerAllocateResponse, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	allocated := make(map[string]bool)
	for _, id := range ids {
		allocated[o.key(id)] = true
	}
	var nodes []infiniband.CharDevice
	var failures []error
	response := &pluginapi.ContainerAllocateResponse{}
	for _, key := range o.keys() {
		m := o.members[key]
		if !allocated[key] && !o.whole() {
			continue
		}
		found, err := o.opened(m)
		if err != nil {
			failures = append(failures, err)
			continue
		}
		nodes = append(nodes, found...)
		if o.cdi != nil {
			response.CdiDevices = append(response.CdiDevices, &pluginapi.CDIDevice{Name: o.cdi.ID(o.specName(), cdiName(key))})
		}
	}
	if len(failures) > 0 && (!o.whole() || len(nodes) == 0) {
		return nil, errors.Join(failures...)
	}
	if o.cdi != nil {
		return response, nil
	}
	for _, c := range append(nodes, o.dev.Common()...) {
		// The API has no field for a number; the container runtime reads the host's node.
		response.Devices = append(response.Devices, &pluginapi.DeviceSpec{
			ContainerPath: inventory.ContainerPath(c), HostPath: o.dev.HostPath(c), Permissions: inventory.NodePermissions,
		})
	}
	return response, nil
}

// opened are the device nodes of a member that is on the node.
func (o *Offer) opened(m *poolHCA) ([]infiniband.CharDevice, error) {
	if m.gone {
		return nil, fmt.Errorf("%s (%s) is gone from the node: load its driver again, or change the pool's configuration for its units to go "+
			"to other HCAs", m.HCA.Name, m.HCA.Key())
	}
	return o.nodes(m)
}

// nodes are the device nodes of a member's HCA, for its ports in the pool.
func (o *Offer) nodes(m *poolHCA) ([]infiniband.CharDevice, error) {
	return o.dev.Opened(m.HCA, m.Ports...)
}

// fails reports whether Allocate would fail for the HCA, or its ports cannot carry traffic.
func (o *Offer) fails(key string) bool {
	m := o.members[key]
	if m == nil || m.gone || o.failed[key] {
		return true
	}
	_, err := o.nodes(m)
	return err != nil
}

// Prefer implements deviceplugin.Preferrer. It takes each unit from another HCA while there are any, and prefers the HCA with the
// most free units, so that pods spread over the HCAs. An HCA that cannot be used now comes last: a pod that met it returns its unit,
// and the next pod would meet the same HCA again.
func (o *Offer) Prefer(available, required []string, size int) []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	taken := make(map[string]int) // units of each HCA in the answer
	chosen := make(map[string]bool, len(required))
	answer := make([]string, 0, size)
	for _, id := range required {
		answer = append(answer, id)
		chosen[id] = true
		taken[o.key(id)]++
	}
	free := make(map[string][]string) // free units of each HCA, in the kubelet's order
	for _, id := range available {
		if !chosen[id] {
			free[o.key(id)] = append(free[o.key(id)], id)
		}
	}
	for key := range free {
		slices.SortFunc(free[key], compareIDs)
	}
	keys := o.keys()
	failing := make(map[string]bool)
	for key := range free {
		failing[key] = o.fails(key)
	}
	for len(answer) < size {
		best := ""
		for _, key := range keys {
			switch {
			case len(free[key]) == 0, best != "" && failing[key] && !failing[best]:
				continue
			case best != "" && failing[best] && !failing[key]:
				best = key
				continue
			}
			if best == "" || taken[key] < taken[best] || taken[key] == taken[best] && len(free[key]) > len(free[best]) {
				best = key
			}
		}
		if best == "" {
			return answer
		}
		answer = append(answer, free[best][0])
		free[best] = free[best][1:]
		taken[best]++
	}
	return answer
}

// compareIDs orders "2" before "10".
func compareIDs(a, b string) int {
	if len(a) != len(b) {
		return len(a) - len(b)
	}
	return strings.Compare(a, b)
}
