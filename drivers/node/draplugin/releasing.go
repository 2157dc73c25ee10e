package draplugin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"

	"gpufabric.io/drivers/node/claimstate"
)

const (
	// ReleasingTaint keeps new claims off devices whose last claim is released while a container still uses them: the scheduler, to which
	// they look free, would choose them again and again.
	ReleasingTaint = "gpufabric.io/releasing"
	// reportAfter is how long devices wait for a container before that is worth an Event and a taint.
	reportAfter = 10 * time.Second
)

// reportReleasing reports a claim whose devices have waited for a container for releaseTold, and taints them.
func (p *Plugin) reportReleasing(ctx context.Context, uid types.UID) {
	record, recorded := p.state.Get(uid)
	p.releases.mu.Lock()
	r := p.releases.claims[uid]
	if r == nil || !recorded {
		p.releases.mu.Unlock()
		return
	}
	r.tainted = true
	why := &stillUsed{users: r.users, since: r.since}
	p.releases.mu.Unlock()
	devices := make([]string, len(record.Devices))
	for i, d := range record.Devices {
		devices[i] = d.Device
	}
	message := fmt.Sprintf("devices %q of claim %s/%s are %v", devices, record.Namespace, record.Name, why)
	p.report.node(reasonStillUsed, message)
	p.report.events(claimOfRecord(record), corev1.EventTypeWarning, reasonStillUsed, message)
	p.published.again(ctx)
}

// claimOfRecord is a recorded claim as the subject of Events.
func claimOfRecord(record claimstate.Record) *resourceapi.ResourceClaim {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: record.Namespace, Name: record.Name, UID: record.UID}}
	for _, pod := range record.Pods {
		claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods",
			Name: strings.TrimPrefix(pod.Name, record.Namespace+"/"), UID: pod.UID})
	}
	return claim
}

// withReleasing returns resources with the taint on every device that a claim cannot get while others are being released.
func (p *Plugin) withReleasing(resources resourceslice.DriverResources) resourceslice.DriverResources {
	tainted := map[string]bool{}
	p.releases.mu.Lock()
	for uid, r := range p.releases.claims {
		if r.tainted {
			tainted[string(uid)] = true
		}
	}
	p.releases.mu.Unlock()
	if len(tainted) == 0 {
		return resources
	}
	pools := make(map[string]resourceslice.Pool, len(resources.Pools))
	for name, pool := range resources.Pools {
		pool.Slices = slices.Clone(pool.Slices)
		for i := range pool.Slices {
			devices := slices.Clone(pool.Slices[i].Devices)
			for d := range devices {
				if p.heldBy(name, devices[d], tainted) {
					devices[d].Taints = append(slices.Clone(devices[d].Taints), resourceapi.DeviceTaint{Key: ReleasingTaint,
						Effect: resourceapi.DeviceTaintEffectNoSchedule})
				}
			}
			pool.Slices[i].Devices = devices
		}
		pools[name] = pool
	}
	resources.Pools = pools
	return resources
}

// heldBy reports whether one of the owners, by ID, excludes every new claim from a device.
func (p *Plugin) heldBy(pool string, device resourceapi.Device, owners map[string]bool) bool {
	allocated := AllocatedDevice{DeviceRequestAllocationResult: resourceapi.DeviceRequestAllocationResult{
		Driver: p.config.Driver, Pool: pool, Device: device.Name}}
	if ptr.Deref(device.AllowMultipleAllocations, false) {
		allocated.ShareID = new(types.UID)
	}
	for _, hold := range p.restoredHolds(p.ctx, allocated) {
		for _, conflict := range p.ledger.Conflicts(hold) {
			if owners[conflict.Holder.ID] {
				return true
			}
		}
	}
	return false
}
