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

// Hardware is the plugin's knowledge of the node at one moment. It is replaced as a whole when the hardware changes.
type Hardware struct {
	Node *inventory.Node
	// Offer is the form in which the GPUs are offered. Pool is the result.
	Offer devices.Options
	Pool  *devices.Pool
	// Edits waits for the result of nvcdi, which searches while the plugin already registers and publishes.
	Edits func(context.Context) (*edits.Set, error)
}

// Preparer prepares claims. Make it with New.
type Preparer struct {
	options  Options
	hardware observed.Value[*Hardware]
	locks    keylock.Locks // by GPU UUID
	aside    []types.UID   // claims whose records cannot be read
	resuming resumes       // claims whose MPS daemons are started again

	layingOut sync.Mutex // held while the pool is rebuilt
	reported  string     // the last reported problems of the pool; layingOut guards it

	mu sync.Mutex
	// sharing is the way in which each GPU is shared, and by which claims: by GPU UUID, then by claim.
	sharing map[string]map[types.UID]share
	// unseen are the recovered claims whose device has not been seen since the start, by the device's name. The value: the
	// claim shares the device.
	unseen map[string]map[types.UID]bool
	// left are the GPUs whose sharing could not be reset, by UUID.
	left map[string]sharingData
	// leftFile stores left; nil: it is not stored.
	leftFile *store.File[[]sharingData]
	// held are the devices that claims have. They stay published whatever forms are wanted.
	held map[types.UID][]devices.HeldDevice
	// use is held as a list.
	use observed.Value[[]devices.HeldDevice]
	// recorded are the effects in claims' records that are to be undone with them.
	recorded map[types.UID]data
	// names are the claims that have devices.
	names map[types.UID]types.NamespacedName
	// modes are the MIG modes that claims switched.
	modes *modes
	// made is the claim for which the MIG instance at a placement was made, or is about to be made.
	made map[place]types.UID
}

// place is the present or future place of a MIG instance of a profile.
type place struct {
	gpu            string
	profile, start int
}

// Options are the dependencies of a Preparer.
type Options struct {
	// Capabilities finds the device nodes that open MIG devices.
	Capabilities edits.Capabilities
	// TimeSlices sets the length of GPUs' time slices.
	TimeSlices TimeSlices
	// MPS runs a control daemon for each claim that requests one. MPSDir is where the claims' containers find it.
	MPS    sharing.Daemons
	MPSDir string
	// LeftFile stores, through Writer, the GPUs whose sharing could not be reset; empty: a restart forgets them.
	LeftFile string
	Writer   atomicfile.Writer
	// PartitionsFile stores, through Writer, the MIG instances of claims that ended while there was no driver; empty: there are none.
	PartitionsFile string
	// ModesFile stores, through Writer, the GPUs whose MIG mode claims switched on; empty: a restart forgets them.
	ModesFile string
	// RemoveUnknown removes MIG instances that belong to no claim at the start. Otherwise they are offered as they are.
	RemoveUnknown bool
	// Ledger records which claim has which device. Pool is the name of the node's pool; devices of claims that are not seen are reserved
	// under it.
	Ledger *ledger.Ledger
	Pool   string
	Events NodeEvents
	// Limits enforces the limits of shares in their containers.
	Limits Limits
}

// TimeSlices sets the length of a GPU's time slices. sharing.TimeSlicer is one.
type TimeSlices interface {
	Set(ctx context.Context, interval v1beta1.TimeSliceInterval, gpu string) error
}

// NodeEvents are Events on the Node object. reason is a CamelCase word.
type NodeEvents interface {
	// Report reports a problem of the node as a whole.
	Report(reason, message string)
	// Note reports in the same way something that may be intended.
	Note(reason, message string)
}

var (
	_ draplugin.Preparer  = (*Preparer)(nil)
	_ draplugin.Holder    = (*Preparer)(nil)
	_ draplugin.Recoverer = (*Preparer)(nil)
)

// New makes a Preparer for a node's hardware.
func New(h *Hardware, o Options) *Preparer {
	k := &Preparer{options: o, made: map[place]types.UID{}, unseen: map[string]map[types.UID]bool{},
		held:     map[types.UID][]devices.HeldDevice{},
		recorded: map[types.UID]data{}, names: map[types.UID]types.NamespacedName{}, sharing: map[string]map[types.UID]share{},
		left: map[string]sharingData{}}
	k.hardware.Set(h)
	k.readLeft()
	var err error
	if k.modes, err = openModes(o.ModesFile, o.Writer, h.Node.GPUs); err != nil {
		o.Events.Report("StateUnreadable", err.Error())
	}
	return k
}

// Collectors returns the metrics of the files that the Preparer keeps, and of the limits of shares.
func (k *Preparer) Collectors() []prometheus.Collector {
	out := []prometheus.Collector{newShares(k.options.Limits, k.name)}
	if k.leftFile != nil {
		out = append(out, k.leftFile)
	}
	if k.modes.file != nil {
		out = append(out, k.modes.file)
	}
	return out
}

// Hardware returns the current hardware.
func (k *Preparer) Hardware() *Hardware { return k.hardware.Now() }

// Watch returns the current hardware, and a channel that is closed when it is replaced.
func (k *Preparer) Watch() (*Hardware, <-chan struct{}) { return k.hardware.Get() }

// Forms returns the forms in which the GPUs are offered.
func (k *Preparer) Forms() devices.Forms { return k.Hardware().Offer.Forms }

// Idle reports whether no claim has a device.
func (k *Preparer) Idle() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.held) == 0
}

// Node returns the node's GPUs.
func (k *Preparer) Node() *inventory.Node { return k.Hardware().Node }

// Lock keeps everything else from changing the GPUs until the returned function is called.
func (k *Preparer) Lock(ctx context.Context, uuids ...string) (unlock func(), err error) {
	return k.locks.Lock(ctx, uuids...)
}

// Holds returns the parts of a GPU that a device occupies. A partition holds its memory slices, exclusively. A whole GPU holds every
// slice, exclusively. A share holds every slice, shared with other shares. So the ledger refuses a second form of a GPU even where
// the scheduler had wrong information.
func (k *Preparer) Holds(device draplugin.AllocatedDevice) []ledger.Reservation {
	d := k.Hardware().Pool.Device(device.Device)
	if d == nil {
		return []ledger.Reservation{{Key: nameKey(k.options.Pool, device.Device), Shared: device.ShareID != nil}}
	}
	return HoldsOf(d.As(device.ShareID != nil, device.ConsumedCapacity))
}

// HoldsOf returns the holds of a device. Other ways of allocation (a device plugin) take the same holds.
func HoldsOf(d *devices.Device) []ledger.Reservation {
	if d.GPU.MIG == nil || d.GPU.MIG.MemorySlices == 0 {
		return []ledger.Reservation{{Key: holdKey(d.GPU), Shared: d.Form == devices.Shared}}
	}
	from, to := 0, d.GPU.MIG.MemorySlices
	if d.Form == devices.MIG {
		from, to = d.Placement.Start, d.Placement.Start+d.Placement.Size
	}
	holds := make([]ledger.Reservation, 0, to-from)
	for i := from; i < to; i++ {
		holds = append(holds, ledger.Reservation{Key: fmt.Sprintf("%s, memory slice %d", holdKey(d.GPU), i), Shared: d.Form == devices.Shared})
	}
	return holds
}

// nameKey is the key by which an unknown device is held.
func nameKey(pool, device string) string { return pool + "/" + device }

func holdKey(g *inventory.GPU) string { return fmt.Sprintf("gpu-%d (%s)", g.Minor, g.UUID) }

// owner returns the claim that owns the instance at a placement; empty for none.
func (k *Preparer) owner(at place) types.UID {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.made[at]
}

// MadeOn reports whether a MIG instance on a GPU was made for a claim, or is about to be made.
func (k *Preparer) MadeOn(gpu string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for at := range k.made {
		if at.gpu == gpu {
			return true
		}
	}
	return false
}

// own records that a claim owns the instance at a placement; an empty uid removes the record.
func (k *Preparer) own(at place, uid types.UID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if uid == "" {
		delete(k.made, at)
		return
	}
	k.made[at] = uid
}
