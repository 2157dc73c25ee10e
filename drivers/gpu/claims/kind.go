// Package claims prepares claims on a node's GPUs: whole GPUs, MIG placements and shares. It is the device kind behind the driver
// gpu.nvidia.com; drivers/node/draplugin serves it to the kubelet.
//
// Work on one GPU is serialised, work on different GPUs never is: a MIG instance takes about a second to make.
package claims

import (
	"context"
	"fmt"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/edits"
	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/gpu/sharing"
	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/draplugin"
	"gpufabric.io/drivers/node/keylock"
	"gpufabric.io/drivers/node/ledger"
	"gpufabric.io/drivers/node/observed"
	"gpufabric.io/drivers/node/store"
)

// Hardware is what the plugin knows of the node at one moment. It is replaced as a whole when the hardware changes.
type Hardware struct {
	Node *inventory.Node
	// Offer says how the GPUs are offered, Pool is what came of it.
	Offer devices.Options
	Pool  *devices.Pool
	// Edits waits for what nvcdi finds: it looks while the plugin already registers and publishes.
	Edits func(context.Context) (*edits.Set, error)
}

// Kind prepares claims. Make it with New.
type Kind struct {
	options  Options
	hardware observed.Value[*Hardware]
	locks    keylock.Locks // by GPU UUID
	aside    []types.UID   // claims whose records cannot be read
	resuming resumes       // claims whose MPS daemons are started again

	layingOut sync.Mutex // held while the pool is made again
	reported  string     // the problems of the pool that were reported last; layingOut guards it

	mu sync.Mutex
	// sharing says how each GPU is shared, and by which claims: by GPU UUID, then claim.
	sharing map[string]map[types.UID]share
	// unseen are the recovered claims whose device was not to be seen so far, by the device's name.
	// The value says that the claim shares the device.
	unseen map[string]map[types.UID]bool
	// left are the GPUs that could not be shared in the ordinary way again, by UUID.
	left map[string]sharingData
	// leftFile keeps left; nil: nothing does.
	leftFile *store.File[[]sharingData]
	// held are the devices that claims have, so that they stay published whatever forms are wanted.
	held map[types.UID][]devices.Held
	// modes are the MIG modes that claims switched.
	modes *modes
	// made says which claim the MIG instance at a placement was made for, or is about to be.
	made map[place]types.UID
}

// place is where a MIG instance of a profile stands or shall stand.
type place struct {
	gpu            string
	profile, start int
}

// Options are what a Kind needs of its surroundings.
type Options struct {
	// Capabilities finds the nodes that open MIG devices.
	Capabilities edits.Capabilities
	// TimeSlices sets the length of GPUs' time slices.
	TimeSlices TimeSlices
	// MPS runs a control daemon for each claim that asks for one, and MPSDir is where the claims' containers find it.
	MPS    sharing.Daemons
	MPSDir string
	// LeftFile keeps which GPUs could not be shared in the ordinary way again, written by Writer; empty: a restart forgets it.
	LeftFile string
	Writer   atomicfile.Writer
	// ModesFile keeps which GPUs claims brought into MIG mode, written by Writer; empty: a restart forgets it. Where there never was a file
	// and AdoptModes is set (a version that kept none ran before), every GPU that is in MIG mode now counts as brought there by claims.
	ModesFile  string
	AdoptModes bool
	// RemoveUnknown has MIG instances that belong to no claim removed at the start. Otherwise they are offered as they are.
	RemoveUnknown bool
	// Ledger knows who holds which device. Pool is the name of the node's pool, by which claims hold devices that cannot be seen.
	Ledger *ledger.Ledger
	Pool   string
	Events NodeEvents
	// Limits holds the containers of shares to them.
	Limits Limits
}

// TimeSlices sets the length of a GPU's time slices. sharing.TimeSlicer is one.
type TimeSlices interface {
	Set(ctx context.Context, interval v1beta1.TimeSliceInterval, gpu string) error
}

// NodeEvents are Events on the Node object. reason is a CamelCase word.
type NodeEvents interface {
	// Report reports trouble with the node as a whole.
	Report(reason, message string)
	// Note says in the same way what may be as it should.
	Note(reason, message string)
}

var (
	_ draplugin.Kind      = (*Kind)(nil)
	_ draplugin.Holder    = (*Kind)(nil)
	_ draplugin.Recoverer = (*Kind)(nil)
)

// New makes a Kind for a node's hardware.
func New(h *Hardware, o Options) *Kind {
	k := &Kind{options: o, made: map[place]types.UID{}, unseen: map[string]map[types.UID]bool{}, held: map[types.UID][]devices.Held{},
		sharing: map[string]map[types.UID]share{}, left: map[string]sharingData{}}
	k.hardware.Set(h)
	k.readLeft()
	var err error
	if k.modes, err = openModes(o.ModesFile, o.Writer, h.Node.GPUs, o.AdoptModes); err != nil {
		o.Events.Report("StateUnreadable", err.Error())
	}
	return k
}

// Collectors are the metrics of the files that the Kind keeps.
func (k *Kind) Collectors() []prometheus.Collector {
	var out []prometheus.Collector
	if k.leftFile != nil {
		out = append(out, k.leftFile)
	}
	if k.modes.file != nil {
		out = append(out, k.modes.file)
	}
	return out
}

// Hardware is the current one.
func (k *Kind) Hardware() *Hardware { return k.hardware.Now() }

// Watch is the current hardware, and a channel that is closed when another takes its place.
func (k *Kind) Watch() (*Hardware, <-chan struct{}) { return k.hardware.Get() }

// Node is what is known of the node's GPUs.
func (k *Kind) Node() *inventory.Node { return k.Hardware().Node }

// Lock keeps everything else from changing the GPUs until the returned function is called.
func (k *Kind) Lock(ctx context.Context, uuids ...string) (unlock func(), err error) {
	return k.locks.Lock(ctx, uuids...)
}

// Holds says which parts of a GPU a device occupies: a partition its memory slices, alone; a whole GPU every slice, alone; a share every
// slice, beside other shares. So the ledger refuses a second form of a GPU even where the scheduler was told otherwise.
func (k *Kind) Holds(device draplugin.AllocatedDevice) []ledger.Hold {
	d := k.Hardware().Pool.Device(device.Device)
	if d == nil {
		return []ledger.Hold{{Key: nameKey(device.Pool, device.Device), Shared: device.ShareID != nil}}
	}
	return HoldsOf(d.As(device.ShareID != nil, device.ConsumedCapacity))
}

// HoldsOf are the holds of a device; whoever hands GPUs out by another way takes the same ones.
func HoldsOf(d *devices.Device) []ledger.Hold {
	if d.GPU.MIG == nil || d.GPU.MIG.MemorySlices == 0 {
		return []ledger.Hold{{Key: holdKey(d.GPU), Shared: d.Form == devices.Shared}}
	}
	from, to := 0, d.GPU.MIG.MemorySlices
	if d.Form == devices.MIG {
		from, to = d.Placement.Start, d.Placement.Start+d.Placement.Size
	}
	holds := make([]ledger.Hold, 0, to-from)
	for i := from; i < to; i++ {
		holds = append(holds, ledger.Hold{Key: fmt.Sprintf("%s, memory slice %d", holdKey(d.GPU), i), Shared: d.Form == devices.Shared})
	}
	return holds
}

// nameKey is what is held of a device that is not known.
func nameKey(pool, device string) string { return pool + "/" + device }

func holdKey(g *inventory.GPU) string { return fmt.Sprintf("gpu-%d (%s)", g.Minor, g.UUID) }

// owner is the claim that a placement's instance belongs to, empty for none.
func (k *Kind) owner(at place) types.UID {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.made[at]
}

// MadeOn says whether a MIG instance on a GPU was made for a claim, or is about to be.
func (k *Kind) MadeOn(gpu string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for at := range k.made {
		if at.gpu == gpu {
			return true
		}
	}
	return false
}

// own notes that a placement's instance is a claim's; an empty uid takes the note back.
func (k *Kind) own(at place, uid types.UID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if uid == "" {
		delete(k.made, at)
		return
	}
	k.made[at] = uid
}
