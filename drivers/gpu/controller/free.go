package controller

import (
	"context"
	"slices"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/drivers/gpu/devices"
)

// heldFor is how old the list of the cluster's claims may be: every profile is counted each minute, and one list serves them all.
const heldFor = 10 * time.Second

// capacities are the amounts that claims consume of a device that several claims may have; empty for a device of one claim.
type capacities map[resourceapi.QualifiedName]resource.Quantity

// deviceID names a device of the GPU driver.
type deviceID struct{ pool, name string }

// allocatedDevices are the devices of the GPU driver that the cluster's ResourceClaims have.
type allocatedDevices map[deviceID]capacities

// claims reads the held devices, at most once in heldFor.
type claims struct {
	reader client.Reader
	now    func() time.Time

	mutex sync.Mutex
	at    time.Time
	last  allocatedDevices
}

func (c *claims) allocated(ctx context.Context) (allocatedDevices, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.last != nil && c.now().Sub(c.at) < heldFor {
		return c.last, nil
	}
	found := allocatedDevices{}
	page := &resourceapi.ResourceClaimList{}
	for {
		if err := c.reader.List(ctx, page, client.Limit(pageSize), client.Continue(page.Continue)); err != nil {
			return nil, err
		}
		for i := range page.Items {
			found.add(&page.Items[i])
		}
		if page.Continue == "" {
			break
		}
	}
	c.last, c.at = found, c.now()
	return found, nil
}

func (h allocatedDevices) add(claim *resourceapi.ResourceClaim) {
	if claim.Status.Allocation == nil {
		return
	}
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != devices.Driver || result.AdminAccess != nil && *result.AdminAccess { // admin access does not reduce the free devices
			continue
		}
		id := deviceID{result.Pool, result.Device}
		if h[id] == nil {
			h[id] = capacities{}
		}
		for name, amount := range result.ConsumedCapacity {
			sum := h[id][name]
			sum.Add(amount)
			h[id][name] = sum
		}
	}
}

// nodeDevices are a node's devices of a profile, and the held devices of their GPUs in any form.
type nodeDevices struct {
	served []resourceapi.Device
	// consumed are the used amounts of each served device, by its name.
	consumed map[string]capacities
	// inUse are the held devices of each GPU. slots are the memory slices that those use.
	inUse map[string][]string
	slots map[string]map[string]bool
}

// see counts one of the node's devices.
func (n *nodeDevices) see(d resourceapi.Device, pool string, serves bool, h allocatedDevices) {
	if serves {
		n.served = append(n.served, d)
	}
	consumed, isHeld := h[deviceID{pool, d.Name}]
	if !isHeld {
		return
	}
	if n.consumed == nil {
		n.consumed, n.inUse, n.slots = map[string]capacities{}, map[string][]string{}, map[string]map[string]bool{}
	}
	set := gpu(d)
	n.consumed[d.Name] = consumed
	n.inUse[set] = append(n.inUse[set], d.Name)
	if n.slots[set] == nil {
		n.slots[set] = map[string]bool{}
	}
	place(d, n.slots[set])
}

// free counts how many more slices of the profile fit.
func (n *nodeDevices) free() int32 {
	var total int64
	for _, d := range n.served {
		if tainted(d) {
			continue
		}
		set := gpu(d)
		switch devices.Form(text(d, devices.AttrType)) {
		case devices.Shared:
			// While a share exists, no other form of the GPU is available, and vice versa.
			if !slices.ContainsFunc(n.inUse[set], func(name string) bool { return name != d.Name }) {
				total += shares(d, n.consumed[d.Name])
			}
		case devices.Whole:
			if len(n.inUse[set]) == 0 {
				total++
			}
		default:
			if slices.Contains(n.inUse[set], d.Name) {
				continue // placements that cannot overlap use no memory slice counters
			}
			if n.slots == nil {
				n.slots = map[string]map[string]bool{}
			}
			if n.slots[set] == nil {
				n.slots[set] = map[string]bool{}
			}
			if place(d, n.slots[set]) {
				total++
			}
		}
	}
	return int32(total) //nolint:gosec // at most a few hundred a node
}

// tainted reports whether a device excludes pods without tolerations.
func tainted(d resourceapi.Device) bool {
	return slices.ContainsFunc(d.Taints, func(t resourceapi.DeviceTaint) bool {
		return t.Effect == resourceapi.DeviceTaintEffectNoSchedule || t.Effect == resourceapi.DeviceTaintEffectNoExecute
	})
}
