package passthrough

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/api/resource/validation"
	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/fabricpartition"
	"gpufabric.io/drivers/hardware/driver"
	"gpufabric.io/drivers/hardware/pci"
	"gpufabric.io/drivers/node/claimstate"
	"gpufabric.io/drivers/node/draplugin"
	"gpufabric.io/drivers/node/keylock"
	"gpufabric.io/drivers/node/ledger"
	"gpufabric.io/drivers/node/observed"
)

// The reasons of claims that cannot have their GPUs.
const (
	reasonInUse  = "GPUInUse"
	reasonDenied = "GPUNotPassedThrough"
)

// Kind prepares claims of GPUs that are passed through.
type Kind struct {
	Switcher *Switcher
	// Dev is the directory in the place of /dev.
	Dev driver.Place
	// Report reports a problem of the node.
	Report func(reason, message string)
	// Partitions activates the partitions of Fabric Manager; nil: GPUs behind NVSwitches are not offered.
	Partitions *fabricpartition.Keeper

	locks keylock.Locks // by card

	// held counts the claims that have cards.
	held observed.Value[int]

	mu sync.Mutex
	// cards are the cards of the last Find, by device name. seen are the Identities of GPUs before they were taken.
	cards map[string]*Card
	seen  map[string]Identity
	// claims are those that have cards, or whose records cannot be read; blind: there are some of the latter.
	claims map[types.UID]bool
	blind  bool
	// bridged: an NVSwitch is behind a NIC of the node; nil: not looked for yet.
	bridged *bool
	// lost are the partitions of the last report that the fabric manager had forgotten them.
	lost []int
}

var (
	_ draplugin.Preparer  = (*Kind)(nil)
	_ draplugin.Holder    = (*Kind)(nil)
	_ draplugin.Recoverer = (*Kind)(nil)
)

// data is the part of a claim's record.
type data struct {
	Cards []takenCard `json:"passedThrough"`
	// Partition is the ID of their partition of Fabric Manager; nil: they need none.
	Partition *int `json:"partition,omitempty"`
}

type takenCard struct {
	Name      string        `json:"name"`
	Functions []pci.Address `json:"functions"`
}

// Find looks for the node's cards, and returns those that can be passed through and why others cannot.
func (k *Kind) Find(ctx context.Context) ([]*Card, []error, error) {
	cards, problems, err := Find(ctx, k.Switcher.Places)
	if err != nil {
		return nil, nil, err
	}
	cards, problem := k.partitioned(ctx, cards)
	if problem != nil {
		problems = append(problems, problem)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.seen == nil {
		k.seen = map[string]Identity{}
	}
	for name, e := range k.Switcher.Journal.Entries() {
		if k.seen[name] == (Identity{}) {
			k.seen[name] = e.Identity
		}
	}
	k.cards = map[string]*Card{}
	for _, c := range cards {
		if c.Identity == (Identity{}) {
			c.Identity = k.seen[c.Name()]
		} else {
			k.seen[c.Name()] = c.Identity
		}
		k.cards[c.Name()] = c
	}
	return cards, problems, nil
}

// Holds implements draplugin.Holder: a GPU is for one claim, in one form.
func (k *Kind) Holds(device draplugin.AllocatedDevice) []ledger.Reservation {
	return []ledger.Reservation{{Key: device.Pool + "/" + device.Device}}
}

// Prepare binds the claim's GPUs to vfio-pci.
func (k *Kind) Prepare(ctx context.Context, claim *draplugin.Claim, progress draplugin.Progress) (*draplugin.Prepared, error) {
	if errs := validation.Claim(&claim.Spec, field.NewPath("spec")); len(errs) > 0 {
		return nil, draplugin.Refuse("InvalidConfig", "%w", errs.ToAggregate())
	}
	cards := make([]*Card, len(claim.Devices))
	iommu := make([]v1beta1.IOMMU, len(claim.Devices))
	var record data
	for i, d := range claim.Devices {
		var err error
		if cards[i], err = k.card(d); err != nil {
			return nil, err
		}
		if iommu[i], err = configure(d.Configs); err != nil {
			return nil, err
		}
		record.Cards = append(record.Cards, takenCard{Name: d.Device, Functions: cards[i].Functions})
	}
	var err error
	if record.Partition, err = k.partition(cards); err != nil {
		return nil, err
	}
	if err := progress.Intend(record); err != nil {
		return nil, err
	}
	k.know(claim.UID, true)
	if err := k.activate(ctx, claim.UID, record.Partition); err != nil {
		return nil, err
	}
	errs := make([]error, len(cards))
	var wg sync.WaitGroup
	for i, c := range cards { // side by side: the driver of a large GPU takes seconds to let it go
		wg.Go(func() {
			errs[i] = k.take(ctx, claim, progress, c)
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	prepared := &draplugin.Prepared{Data: record, Edits: make([]specs.ContainerEdits, len(cards)),
		Described: true, // KubeVirt finds a GPU's PCI address there
		Attributes: func(i int) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
			return k.Device(cards[i]).Attributes
		}}
	served := map[string]bool{}
	for i, c := range cards {
		e, err := k.edits(c, iommu[i], !served[claim.Devices[i].Request])
		if err != nil {
			return nil, err
		}
		served[claim.Devices[i].Request] = true
		prepared.Edits[i] = e
	}
	return prepared, nil
}

// card finds the card of an allocated device.
func (k *Kind) card(d draplugin.AllocatedDevice) (*Card, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := k.cards[d.Device]
	switch {
	case !IsName(d.Device):
		return nil, draplugin.Refuse("DeviceUnknown", "device %s of pool %s is not on this node any more, whose GPUs are passed through to "+
			"virtual machines (form %s): delete the claim (or its pod), and the scheduler chooses another", d.Device, d.Pool, devices.ModeVFIO)
	case c == nil:
		return nil, draplugin.Refuse(reasonDenied, "GPU %s of pool %s cannot be passed through any more: the node's condition GPUForms has "+
			"the reason; delete the claim (or its pod), and the scheduler chooses another", d.Device, d.Pool)
	case d.Admin():
		return nil, draplugin.Refuse(reasonDenied, "GPU %s is asked for with adminAccess: a GPU that is passed through is one virtual "+
			"machine's, and cannot be watched beside it", d.Device)
	}
	return c, nil
}

// configure reads the configurations of a device, of which the last VfioDeviceConfig counts.
func configure(configs []draplugin.OpaqueConfig) (v1beta1.IOMMU, error) {
	result := v1beta1.IOMMU{BackendPolicy: v1beta1.LegacyOnly}
	for _, c := range configs {
		decoded, err := validation.Decode(devices.Driver, c.Raw)
		if err != nil {
			return result, draplugin.Refuse("InvalidConfig", "%s: %w", c.Path, err)
		}
		config, ours := decoded.(*v1beta1.VfioDeviceConfig)
		if !ours {
			return result, draplugin.Refuse("InvalidConfig", "%s: only VfioDeviceConfig configures a GPU that is passed through to a virtual "+
				"machine", c.Path)
		}
		result = *config.IOMMU
	}
	return result, nil
}

func (k *Kind) take(ctx context.Context, claim *draplugin.Claim, progress draplugin.Progress, c *Card) error {
	unlock, err := k.locks.Lock(ctx, c.Name())
	if err != nil {
		return err
	}
	defer unlock()
	err = k.Switcher.Take(ctx, claim.UID, c, func(why error) { progress.Waiting(reasonInUse, why.Error()) })
	var used *InUseError
	switch {
	case errors.As(err, &used) || errors.Is(err, ErrNoAnswer):
		return draplugin.Refuse(reasonInUse, "%w", err)
	case err != nil:
		return draplugin.Refuse(reasonDenied, "GPU %s: %w", c.GPU.Address, err)
	}
	return nil
}

// edits are the device nodes of a card. The API device comes once a request.
func (k *Kind) edits(c *Card, iommu v1beta1.IOMMU, first bool) (specs.ContainerEdits, error) {
	paths, api := []string{fmt.Sprintf("/dev/vfio/%d", c.Group)}, "/dev/vfio/vfio"
	if iommu.BackendPolicy == v1beta1.PreferIOMMUFD {
		nodes, err := k.byDevice(c)
		if err != nil {
			return specs.ContainerEdits{}, err
		}
		if nodes != nil {
			paths, api = nodes, "/dev/iommu"
		}
	}
	var e specs.ContainerEdits
	if first {
		// It keeps a container runtime that injects GPUs by environment from this container.
		e.Env = []string{"NVIDIA_VISIBLE_DEVICES=void"}
		if iommu.EnableAPIDevice != nil && *iommu.EnableAPIDevice {
			paths = append(paths, api)
		}
	}
	for _, path := range paths {
		below := strings.TrimPrefix(path, "/dev/")
		if !k.exists(below) {
			return e, draplugin.Refuse("DeviceNodeMissing", "device node %s: there is none below %s, though %s has the GPU %s", path,
				k.Dev.Path, c.VFIO, c.GPU.Address)
		}
		node := &specs.DeviceNode{Path: path}
		if host := k.Dev.Join(below).Host; host != path {
			node.HostPath = host
		}
		e.DeviceNodes = append(e.DeviceNodes, node)
	}
	return e, nil
}

// byDevice are the nodes of a card's functions under iommufd; nil where the kernel has none.
func (k *Kind) byDevice(c *Card) ([]string, error) {
	if !k.exists("iommu") {
		return nil, nil
	}
	var out []string
	for _, f := range c.Functions {
		names, err := k.Switcher.Places.nodesOf(f)
		if err != nil || len(names) == 0 || !k.exists("vfio/devices/"+names[0]) {
			return nil, err
		}
		out = append(out, "/dev/vfio/devices/"+names[0])
	}
	return out, nil
}

// Unprepare returns the claim's GPUs to the drivers that they had. While a virtual machine has one open, it waits until ctx ends.
func (k *Kind) Unprepare(ctx context.Context, record claimstate.Record) error {
	kept, err := claimstate.Decode[data](record)
	if err != nil {
		return err
	}
	errs := make([]error, len(kept.Cards))
	var wg sync.WaitGroup
	for i, c := range kept.Cards {
		wg.Go(func() { errs[i] = k.give(ctx, record.UID, c) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	// The pod's end does not wait for a fabric manager: Return deactivates the partition later. Until then no other claim gets it.
	if err := k.deactivate(ctx, record.UID, kept.Partition); err != nil {
		k.Report("GPUNotReturned", err.Error())
	}
	k.know(record.UID, false)
	return nil
}

func (k *Kind) give(ctx context.Context, claim types.UID, c takenCard) error {
	unlock, err := k.locks.Lock(ctx, c.Name)
	if err != nil {
		return err
	}
	defer unlock()
	e, known := k.Switcher.Journal.get(c.Name)
	switch {
	case known && e.Claim != claim:
		return nil // another claim took it over
	case !known && k.Switcher.Journal.Lost:
		return k.Switcher.GiveUnknown(ctx, c.Functions)
	}
	note, err := k.Switcher.Give(ctx, c.Name)
	if note != "" {
		k.Report("GPUNotReturned", note)
	}
	return err
}

// Recover notes the claims of earlier runs. Return gives back GPUs that belong to no claim.
func (k *Kind) Recover(_ context.Context, records []claimstate.Record, aside []types.UID) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.claims, k.blind = map[types.UID]bool{}, len(aside) > 0
	for _, r := range records {
		if slices.ContainsFunc(r.Devices, func(d claimstate.Device) bool { return IsName(d.Device) }) {
			k.claims[r.UID] = true
			if err := k.restore(r); err != nil {
				return err
			}
		}
	}
	k.held.Set(len(k.claims))
	return nil
}

// Held returns how many claims have GPUs, and a channel that is closed when that changes.
func (k *Kind) Held() (int, <-chan struct{}) { return k.held.Get() }

// Return gives back the cards that a claim took which has no record any more. While records lie aside unread, it gives back none: they
// may be theirs.
func (k *Kind) Return(ctx context.Context) error {
	var errs []error
	all := k.Switcher.Journal.Entries()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		errs = append(errs, k.returnOne(ctx, name))
	}
	return errors.Join(append(errs, k.returnPartitions(ctx))...)
}

func (k *Kind) returnOne(ctx context.Context, card string) error {
	unlock, err := k.locks.Lock(ctx, card)
	if err != nil {
		return err
	}
	defer unlock()
	e, taken := k.Switcher.Journal.get(card)
	k.mu.Lock()
	kept := k.blind || k.claims[e.Claim]
	k.mu.Unlock()
	if !taken || kept {
		return nil
	}
	note, err := k.Switcher.Give(ctx, card)
	if note != "" {
		k.Report("GPUNotReturned", note)
	}
	return err
}

// know records the cards of a claim, or their release.
func (k *Kind) know(claim types.UID, has bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.claims == nil {
		k.claims = map[types.UID]bool{}
	}
	if has {
		k.claims[claim] = true
	} else {
		delete(k.claims, claim)
	}
	k.held.Set(len(k.claims))
}

// exists reports whether there is a file below the directory in the place of /dev.
func (k *Kind) exists(below string) bool {
	_, err := os.Stat(k.Dev.Join(below).Path)
	return err == nil
}
