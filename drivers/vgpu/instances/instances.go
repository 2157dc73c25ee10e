// Package instances gives containers MIG instances of a node's shared GPUs and takes them back when their pod ends.
//
// The scheduler gives either the slot of a layout for a container (Volcano's `UUID[group-position]`) or only an amount of memory
// and cores. In the second case the smallest instance that satisfies both is made. The owner is recorded before anything is made.
// So after a crash every instance either still belongs to its container or is removed, and no placement ever belongs to two
// containers.
package instances

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/gpu/partition"
	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/claimstate"
	"gpufabric.io/drivers/node/keylock"
	"gpufabric.io/drivers/vgpu/annotation"
	"gpufabric.io/drivers/vgpu/settings"
)

// Owner is a container with instances. A restarted container is the same owner.
type Owner struct {
	PodUID, Container string
	// Namespace and Pod are for people.
	Namespace, Pod string
}

func (o Owner) id() types.UID { return types.UID(o.PodUID + "_" + o.Container) }

// Ask is a request for one instance.
type Ask struct {
	GPU *inventory.GPU
	// Slot is an exact place; nil: the smallest that has MemoryMiB and Cores.
	Slot *annotation.MIGSlot
	// MemoryMiB is in MiB; 0: the whole GPU's.
	MemoryMiB int64
	// Cores is in percent of the GPU's SMs; 0: however many come with the memory.
	Cores int
}

// Instance is an instance that was given to a container.
type Instance struct {
	// GPU and UUID are those of the GPU and of the MIG device on it.
	GPU  string `json:"gpu"`
	UUID string `json:"uuid"`
	// Profile is its name ("1g.5gb"), ProfileID the driver's number for it; Start and Size are its memory slices.
	Profile   string `json:"profile"`
	ProfileID int    `json:"profileID"`
	Start     int    `json:"start"`
	Size      int    `json:"size"`
	// MemoryMiB is its size; AskedMiB the request, 0 for a slot.
	MemoryMiB int64 `json:"memoryMiB"`
	AskedMiB  int64 `json:"askedMiB,omitempty"`
	// ID and Compute are NVML's numbers of the GPU instance and the compute instance that fills it.
	ID      int `json:"id"`
	Compute int `json:"compute"`
	// Found means that it existed before without an owner; it is kept at the end.
	Found bool `json:"found,omitempty"`
}

func (i Instance) placement() inventory.Placement {
	return inventory.Placement{Start: i.Start, Size: i.Size}
}

// Options are the dependencies of a Manager.
type Options struct {
	// Directory stores the owners of instances.
	Directory string
	// Boot names the node's current boot.
	Boot string
	// GPU finds a GPU of the node, nil where there is none with that UUID.
	GPU func(uuid string) *inventory.GPU
	// Geometries are the layouts that the administrator allows for a product; none: NVML's placements.
	Geometries func(product string) []settings.Geometry
	// Faulty reports why a placement must not be given out, nil where it may; a nil function allows all.
	Faulty func(uuid string, at inventory.Placement) error
}

// Manager is safe for concurrent use. Make it with New.
type Manager struct {
	options Options
	store   *claimstate.Store
	gpus    keylock.Locks

	work sync.WaitGroup // allocations that continue without a waiter
	mu   sync.Mutex
	// ending are owners whose pods are gone and whose instances may still exist.
	ending map[types.UID]bool
	// giving counts an owner's allocations in progress: its record in the store may not be complete yet.
	giving map[types.UID]int
	wake   chan struct{}
}

// New makes a Manager with the stored records. Files that could not be read are set aside and reported. Their instances then
// have no owner. Idle ones are removed where others need the space.
func New(o Options) (*Manager, []claimstate.Unreadable, error) {
	store, unreadable, err := claimstate.Open(o.Directory, atomicfile.Writer{})
	if err != nil {
		return nil, nil, err
	}
	return &Manager{options: o, store: store, ending: map[types.UID]bool{}, giving: map[types.UID]int{}, wake: make(chan struct{}, 1)},
		unreadable, nil
}

// Collector is the metric of the files that could not be read.
func (m *Manager) Collector() prometheus.Collector { return m.store.Collector() }

// ErrPending is wrapped by Give's error while the instances are still being made.
var ErrPending = errors.New("MIG instances are still being made; the next attempt uses them")

// Give gives a container its instances, all or none; a container that has them gets the same again. It continues after ctx ends,
// since NVML's calls cannot be interrupted, and a later try finds the instances.
func (m *Manager) Give(ctx context.Context, owner Owner, asks []Ask) ([]Instance, error) {
	type result struct {
		given []Instance
		err   error
	}
	done := make(chan result, 1)
	m.begin(owner.id())
	m.work.Go(func() {
		given, err := m.give(context.WithoutCancel(ctx), owner, asks)
		m.finish(owner.id()) // before the answer: the caller may end the pod at once, and rely on its place
		done <- result{given, err}
	})
	select {
	case r := <-done:
		return r.given, r.err
	case <-ctx.Done():
		return nil, fmt.Errorf("pod %s/%s, container %s: %w", owner.Namespace, owner.Pod, owner.Container, ErrPending)
	}
}

// begin records an allocation to an owner, whose pod is therefore alive.
func (m *Manager) begin(owner types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.ending, owner)
	m.giving[owner]++
}

// finish lets the instances be removed again if the pod ended in between.
func (m *Manager) finish(owner types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.giving[owner]--; m.giving[owner] == 0 {
		delete(m.giving, owner)
	}
	if m.ending[owner] {
		m.poke()
	}
}

// poke makes Run handle ended owners.
func (m *Manager) poke() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

func (m *Manager) give(ctx context.Context, owner Owner, asks []Ask) ([]Instance, error) {
	var uuids []string
	for _, ask := range asks {
		uuids = append(uuids, ask.GPU.UUID)
	}
	unlock, err := m.gpus.Lock(ctx, uuids...)
	if err != nil {
		return nil, err
	}
	defer unlock()
	m.mu.Lock()
	over := m.ending[owner.id()]
	m.mu.Unlock()
	if over {
		return nil, fmt.Errorf("pod %s/%s, container %s: the pod ended before its MIG instances were made", owner.Namespace, owner.Pod,
			owner.Container)
	}
	m.settle(ctx, uuids)
	given, had := m.has(owner.id())
	if !had || !answers(given, asks) {
		if given, err = m.plan(owner, asks); err != nil {
			return nil, err
		}
	}
	if err := m.keep(owner, claimstate.Preparing, given); err != nil {
		return nil, err
	}
	for i := range given {
		if err := m.make(asks[i].GPU, &given[i]); err != nil {
			return nil, errors.Join(err, m.takeBack(owner.id(), given))
		}
	}
	return given, m.keep(owner, claimstate.Prepared, given)
}

// answers reports whether a container's instances are on the GPUs that it requests.
func answers(given []Instance, asks []Ask) bool {
	return slices.EqualFunc(given, asks, func(i Instance, a Ask) bool {
		return i.GPU == a.GPU.UUID && (a.Slot != nil || i.AskedMiB == a.MemoryMiB)
	})
}

// plan chooses a placement for each request, beside the placements of others.
func (m *Manager) plan(owner Owner, asks []Ask) ([]Instance, error) {
	var out []Instance
	for _, ask := range asks {
		standing, err := partition.List(ask.GPU)
		if err != nil {
			return nil, err
		}
		holders := m.holders(ask.GPU, owner)
		for _, chosen := range out {
			if chosen.GPU == ask.GPU.UUID {
				holders = append(holders, holder{placement: chosen.placement(), name: "the same container"})
			}
		}
		where, err := m.seat(ask, standing, holders)
		if err != nil {
			return nil, err
		}
		_, found := partition.At(standing, where.profile.ID, where.placement.Start)
		i := Instance{
			GPU: ask.GPU.UUID, Profile: where.profile.Name, ProfileID: where.profile.ID, Start: where.placement.Start, Size: where.placement.Size,
			MemoryMiB: int64(where.profile.MemoryBytes >> 20), Found: found, //nolint:gosec // MiB
		}
		if ask.Slot == nil {
			i.AskedMiB = ask.MemoryMiB
		}
		out = append(out, i)
	}
	return out, nil
}

// holder is the owner of a placement that is not free.
type holder struct {
	placement inventory.Placement
	// name is for the requester: it does not name objects of other namespaces.
	name string
	// detail is for the node's log; empty: name.
	detail string
}

// holders returns the placements of a GPU that others have, and those that must not be given out.
func (m *Manager) holders(g *inventory.GPU, asker Owner) []holder {
	var out []holder
	for _, record := range m.store.List() {
		if record.UID == asker.id() {
			continue
		}
		for _, i := range instancesOf(record) {
			if i.GPU == g.UUID {
				h := holder{placement: i.placement(), name: "a pod of another namespace", detail: record.Namespace + "/" + record.Name}
				if record.Namespace == asker.Namespace {
					h.name = h.detail
				}
				out = append(out, h)
			}
		}
	}
	if m.options.Faulty == nil {
		return out
	}
	for start := range g.MIG.MemorySlices {
		one := inventory.Placement{Start: start, Size: 1}
		if err := m.options.Faulty(g.UUID, one); err != nil {
			out = append(out, holder{placement: one, name: "a fault: " + err.Error()})
		}
	}
	return out
}

func (m *Manager) seat(ask Ask, standing []partition.Instance, holders []holder) (at, error) {
	if ask.Slot == nil {
		memory := ask.MemoryMiB
		if memory == 0 {
			for _, p := range ask.GPU.MIG.Profiles {
				memory = max(memory, int64(p.MemoryBytes>>20)) //nolint:gosec // MiB
			}
		}
		held := make([]inventory.Placement, 0, len(holders))
		for _, h := range holders {
			held = append(held, h.placement)
		}
		return choose(ask.GPU, memory, ask.Cores, standing, held)
	}
	equals, err := seats(ask.GPU, m.options.Geometries(ask.GPU.ProductName), *ask.Slot)
	if err != nil {
		return at{}, err
	}
	holding := func(where at) *holder {
		for i, h := range holders {
			if overlap(h.placement, where.placement) {
				return &holders[i]
			}
		}
		return nil
	}
	for _, where := range equals {
		if holding(where) == nil {
			return where, nil
		}
	}
	first := equals[0]
	held := holding(first)
	if held.detail != "" {
		klog.Background().Info("A MIG slot is in use", "gpu", ask.GPU.UUID, "slot", ask.Slot, "holder", held.detail)
	}
	return at{}, fmt.Errorf("%s: MIG slot %s is %s at memory slice %d, which %s has, and the GPU has no free slot of this "+
		"profile", ask.GPU.UUID,
		ask.Slot, first.profile.Name, first.placement.Start, held.name)
}

// make makes sure that an instance exists. It removes idle instances that are in the way. It removes none with an owner, since
// the store has those, and none in use, since NVML refuses that.
func (m *Manager) make(g *inventory.GPU, i *Instance) error {
	profile, ok := g.MIG.Profile(i.ProfileID)
	if !ok {
		return fmt.Errorf("%s: MIG profile %s (%d) is no longer offered", g.UUID, i.Profile, i.ProfileID)
	}
	if err := partition.Require(g, true); err != nil {
		return err
	}
	standing, err := partition.List(g)
	if err != nil {
		return err
	}
	for _, other := range standing {
		if !other.Overlaps(i.placement()) || other.Profile == i.ProfileID && other.Start == i.Start {
			continue
		}
		theirs, _ := g.MIG.Profile(other.Profile)
		if err := partition.Destroy(g, theirs, other.Start); err != nil {
			return fmt.Errorf("remove the instances in the place of %s at memory slice %d: %w", i.Profile, i.Start, err)
		}
	}
	made, err := partition.Create(g, profile, i.placement())
	if err != nil {
		return err
	}
	i.ID, i.Compute, i.UUID = made.ID, made.Compute, made.UUID
	return nil
}

// End removes a pod's instances in the background: the runtime must not wait.
func (m *Manager) End(podUID string) {
	m.endIf(func(uid string) bool { return uid == podUID })
}

// Keep ends every pod that is not in live: those that ended while the plugin was away.
func (m *Manager) Keep(live map[string]bool) {
	m.endIf(func(uid string) bool { return !live[uid] })
}

func (m *Manager) endIf(over func(podUID string) bool) {
	m.mu.Lock()
	for _, record := range m.store.List() {
		if uid, _, _ := strings.Cut(string(record.UID), "_"); over(uid) {
			m.ending[record.UID] = true
		}
	}
	for owner := range m.giving {
		if uid, _, _ := strings.Cut(string(owner), "_"); over(uid) {
			m.ending[owner] = true
		}
	}
	m.mu.Unlock()
	m.poke()
}

// The pauses between tries to remove an instance that a process still uses.
const firstRetry, lastRetry = time.Second, 30 * time.Second

// Run removes the instances of ended owners until ctx ends, and then waits for allocations in progress.
func (m *Manager) Run(ctx context.Context) error {
	defer m.work.Wait()
	retry := firstRetry
	for {
		var timer <-chan time.Time
		if left := m.sweep(ctx); left > 0 {
			timer, retry = time.After(retry), min(2*retry, lastRetry)
		} else {
			retry = firstRetry
		}
		select {
		case <-ctx.Done():
			return nil
		case <-m.wake:
		case <-timer:
		}
	}
}

// sweep tries every ended owner once and returns how many are left.
func (m *Manager) sweep(ctx context.Context) int {
	for _, uid := range m.ended() {
		given, _ := m.has(uid)
		uuids := gpusOf(given)
		unlock, err := m.gpus.Lock(ctx, uuids...)
		if err != nil {
			break // ctx ended
		}
		m.settle(ctx, uuids)
		unlock()
	}
	return len(m.ended())
}

func gpusOf(given []Instance) []string {
	var uuids []string
	for _, i := range given {
		uuids = append(uuids, i.GPU)
	}
	return uuids
}

func (m *Manager) ended() []types.UID {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []types.UID
	for uid := range m.ending {
		if m.giving[uid] == 0 { // otherwise when the allocation is done
			out = append(out, uid)
		}
	}
	slices.Sort(out)
	return out
}

// settle removes the instances of ended owners that are only on these GPUs, whose locks the caller holds. An instance that cannot
// be removed yet is tried again later.
func (m *Manager) settle(ctx context.Context, locked []string) {
	for _, uid := range m.ended() {
		given, _ := m.has(uid)
		if slices.ContainsFunc(gpusOf(given), func(uuid string) bool { return !slices.Contains(locked, uuid) }) {
			continue
		}
		if err := m.takeBack(uid, given); err != nil {
			klog.FromContext(ctx).Error(err, "A MIG instance of a pod that ended still exists; trying again", "owner", uid)
			continue
		}
		m.mu.Lock()
		delete(m.ending, uid)
		m.mu.Unlock()
	}
}

// takeBack removes instances that were made for an owner, and the owner's record once all are gone.
func (m *Manager) takeBack(uid types.UID, given []Instance) error {
	var errs []error
	for _, i := range given {
		g := m.options.GPU(i.GPU)
		if g == nil || i.Found {
			continue
		}
		if profile, ok := g.MIG.Profile(i.ProfileID); ok {
			errs = append(errs, partition.Destroy(g, profile, i.Start))
		}
	}
	if err := errors.Join(errs...); err != nil {
		m.mu.Lock()
		m.ending[uid] = true
		m.mu.Unlock()
		return err
	}
	return m.store.Delete(uid)
}

// Len is the number of containers with instances, including ended ones whose instances still exist.
func (m *Manager) Len() int { return m.store.Len() }

func (m *Manager) has(uid types.UID) ([]Instance, bool) {
	record, ok := m.store.Get(uid)
	return instancesOf(record), ok
}

func instancesOf(record claimstate.Record) []Instance {
	var given []Instance
	// The store checks a sum over the bytes, so unreadable data was not written by this program.
	_ = json.Unmarshal(record.Data, &given)
	return given
}

func (m *Manager) keep(owner Owner, phase claimstate.Phase, given []Instance) error {
	data, err := json.Marshal(given)
	if err != nil {
		return err
	}
	return m.store.Put(claimstate.Record{UID: owner.id(), Namespace: owner.Namespace, Name: owner.Pod + ", container " + owner.Container,
		Phase: phase, BootID: m.options.Boot, Data: data})
}
