package demand

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"gpufabric.io/drivers/gpu/devices"
)

// claimIndex has the cluster's claims by name, and how many have each device. Watch events keep it up to date, so that a decision does
// not read all claims.
type claimIndex struct {
	mu     sync.Mutex
	byName map[types.NamespacedName]*resourceapi.ResourceClaim
	held   map[deviceID]int
	// taken are the devices that a claim got since the last call of newlyTaken.
	taken map[deviceID]bool
}

func newClaimIndex() *claimIndex {
	return &claimIndex{byName: map[types.NamespacedName]*resourceapi.ResourceClaim{}, held: map[deviceID]int{},
		taken: map[deviceID]bool{}}
}

// follow keeps the index up to date until ctx ends. synced: all claims that existed are in it.
func (x *claimIndex) follow(ctx context.Context, watched cache.Cache) (synced toolscache.InformerSynced, err error) {
	informer, err := watched.GetInformer(ctx, &resourceapi.ResourceClaim{}, cache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("watch the ResourceClaims: %w", err)
	}
	registered, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    x.set,
		UpdateFunc: func(_, now any) { x.set(now) },
		DeleteFunc: x.remove,
	})
	if err != nil {
		return nil, fmt.Errorf("watch the ResourceClaims: %w", err)
	}
	return registered.HasSynced, nil
}

// set adds a claim, or replaces its former state.
func (x *claimIndex) set(object any) {
	c, is := object.(*resourceapi.ResourceClaim)
	if !is {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	name := types.NamespacedName{Namespace: c.Namespace, Name: c.Name}
	x.drop(name)
	x.byName[name] = c
	for _, device := range held(c) {
		x.held[device]++
		x.taken[device] = true
	}
}

// newlyTaken returns the devices that claims got since its last call, also those of claims that have ended meanwhile.
func (x *claimIndex) newlyTaken() map[deviceID]bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := x.taken
	x.taken = map[deviceID]bool{}
	return out
}

func (x *claimIndex) remove(object any) {
	if last, is := object.(toolscache.DeletedFinalStateUnknown); is {
		object = last.Obj
	}
	c, is := object.(*resourceapi.ResourceClaim)
	if !is {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.drop(types.NamespacedName{Namespace: c.Namespace, Name: c.Name})
}

// drop removes a claim and its devices.
func (x *claimIndex) drop(name types.NamespacedName) {
	before := x.byName[name]
	if before == nil {
		return
	}
	delete(x.byName, name)
	for _, device := range held(before) {
		if x.held[device]--; x.held[device] == 0 {
			delete(x.held, device)
		}
	}
}

// get returns a claim, nil where there is none.
func (x *claimIndex) get(name types.NamespacedName) *resourceapi.ResourceClaim {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.byName[name]
}

// has reports whether a claim has a device.
func (x *claimIndex) has(device deviceID) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.held[device] > 0
}

// held are the devices of our driver that a claim has. Those with admin access are not taken.
func held(c *resourceapi.ResourceClaim) []deviceID {
	if c.Status.Allocation == nil {
		return nil
	}
	var out []deviceID
	for _, r := range c.Status.Allocation.Devices.Results {
		if r.Driver == devices.Driver && (r.AdminAccess == nil || !*r.AdminAccess) {
			out = append(out, deviceID{r.Pool, r.Device})
		}
	}
	return out
}

// holderOf describes the claims that have a device of a node, with the pods that they are reserved for.
func (x *claimIndex) holderOf(node, device string) []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	var out []string
	for name, c := range x.byName {
		if !slices.Contains(held(c), deviceID{devices.PoolName(node), device}) {
			continue
		}
		text := fmt.Sprintf("claim %s (%s)", name, device)
		for _, r := range c.Status.ReservedFor {
			text += fmt.Sprintf(", %s %s", strings.TrimSuffix(r.Resource, "s"), r.Name)
		}
		out = append(out, text)
	}
	slices.Sort(out)
	return out
}
