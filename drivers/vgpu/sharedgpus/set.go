// Package sharedgpus computes how a node's GPUs are shared through device plugins: how many containers each GPU takes, how many units of
// memory and percent of cores it has, and the IDs by which the kubelet counts them.
package sharedgpus

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/node/deviceplugin"
	"gpufabric.io/drivers/vgpu/annotation"
	"gpufabric.io/drivers/vgpu/settings"
)

// Card is one shared GPU.
type Card struct {
	GPU     *inventory.GPU
	Mode    annotation.Mode
	Slots   int   // containers
	Units   int64 // memory, in units of Set.Factor MiB
	Cores   int   // percent of the GPU's SMs, times the scaling
	Healthy bool
	// Reason reports why an unhealthy card is so.
	Reason string
}

// Set is the shared GPUs of a node.
type Set struct {
	Cards []Card
	// Factor is the size of a unit of memory in MiB.
	Factor int
	// Refused reports which GPUs are not shared although they are not hidden, and why.
	Refused []error
	// WithoutEffect are the entries of the node's configuration that name no GPU of the node, each with its field.
	WithoutEffect []string
}

// volcanoRefuses reports why a card cannot be shared with Volcano, or nothing. Its scheduler uses the mode of a node's last card for
// all cards (decodeNodeDevices in its vgpu/utils.go). It takes the size of a unit only from gpuMemoryFactor, by which it matches
// MIG instances.
func volcanoRefuses(gpu *inventory.GPU, s settings.Settings, factor int) error {
	mode := s.ModeOf(gpu.UUID)
	if mode != s.Mode {
		return fmt.Errorf("%s (%s): mode %s is configured on a node of mode %s, and Volcano supports one mode per node; it is not shared. "+
			"Give all of "+
			"the node's GPUs one mode, hide the others (filterdevices) and claim them through DRA, or have gpufabric's scheduler place the pods "+
			"(--scheduler=gpufabric)", gpu.UUID, gpu.ProductName, mode, s.Mode)
	}
	if mode == annotation.ModeMIG && factor > 1 && s.MemoryFactor == 0 {
		return fmt.Errorf("%s (%s): one unit of memory is %d MiB, which was chosen automatically, and Volcano assumes 1 MiB when it chooses "+
			"MIG instances; it is not shared. Set gpuMemoryFactor: %d in Volcano's ConfigMap volcano-vgpu-device-config", gpu.UUID,
			gpu.ProductName, factor, factor)
	}
	return nil
}

// Compute computes the set of the node's GPUs. factorInForce is the cluster's factor, 0 where there is none yet; a factor in the
// settings takes precedence.
func Compute(node *inventory.Node, s settings.Settings, factorInForce int) (*Set, error) {
	gpus := &Set{Factor: s.MemoryFactor, WithoutEffect: withoutEffect(node, s)}
	var shared []*inventory.GPU
	var memory []int64
	for _, gpu := range node.GPUs {
		if s.Hides(gpu.UUID, gpu.Index) {
			continue
		}
		if s.ModeOf(gpu.UUID) == annotation.ModeMIG && (gpu.MIG == nil || len(gpu.MIG.Profiles) == 0) {
			gpus.Refused = append(gpus.Refused, fmt.Errorf("%s (%s): mode mig is configured and the GPU cannot be partitioned; it is not shared. "+
				"Set mode hami-core for it in gpumodes", gpu.UUID, gpu.ProductName))
			continue
		}
		shared = append(shared, gpu)
		memory = append(memory, MiB(gpu))
	}
	if gpus.Factor == 0 {
		needed, err := SmallestFactor(memory, s.MemoryScaling, Budget)
		if err != nil {
			return nil, err
		}
		gpus.Factor = AgreeFactor(factorInForce, needed)
	} else if err := CheckFactor(gpus.Factor, memory, s.MemoryScaling); err != nil {
		return nil, err
	}
	for _, gpu := range shared {
		if s.Scheduler == settings.Volcano {
			if err := volcanoRefuses(gpu, s, gpus.Factor); err != nil {
				gpus.Refused = append(gpus.Refused, err)
				continue
			}
		}
		gpus.Cards = append(gpus.Cards, Card{
			GPU: gpu, Mode: s.ModeOf(gpu.UUID), Slots: slots(gpu, s), Healthy: true,
			// Without any unit the node would lack the resource
			Units: CountUnits(MiB(gpu), s.MemoryScaling, gpus.Factor), Cores: max(1, int(math.Round(100*s.CoreScaling))),
		})
	}
	return gpus, nil
}

// withoutEffect returns the entries of the settings without a GPU of the node, or for a hidden one.
func withoutEffect(node *inventory.Node, s settings.Settings) []string {
	var has []string
	for _, g := range node.GPUs {
		has = append(has, fmt.Sprintf("%d (%s)", g.Index, g.UUID))
	}
	var out []string
	check := func(field string, names func(*inventory.GPU) bool) {
		if !slices.ContainsFunc(node.GPUs, names) {
			out = append(out, fmt.Sprintf("%s names no GPU of the node, which has %s", field, strings.Join(has, ", ")))
		}
	}
	for i, uuid := range s.HiddenUUIDs {
		check(fmt.Sprintf("filterdevices.uuid[%d]: %s", i, uuid), func(g *inventory.GPU) bool { return g.UUID == uuid })
	}
	for i, index := range s.HiddenIndexes {
		check(fmt.Sprintf("filterdevices.index[%d]: %d", i, index), func(g *inventory.GPU) bool { return g.Index == index })
	}
	for _, uuid := range slices.Sorted(maps.Keys(s.GPUModes)) {
		check(fmt.Sprintf("gpumodes[%s]", uuid), func(g *inventory.GPU) bool { return g.UUID == uuid })
		if g := node.ByUUID(uuid); g != nil && s.Hides(uuid, g.Index) {
			out = append(out, fmt.Sprintf("gpumodes[%s] names a GPU that filterdevices keeps from being shared", uuid))
		}
	}
	return out
}

// MiB is a GPU's memory in MiB, rounded down.
func MiB(gpu *inventory.GPU) int64 { return int64(gpu.MemoryBytes >> 20) }

// MarkUnhealthy marks each card as unhealthy for which reason returns a text.
func (d *Set) MarkUnhealthy(reason func(*Card) string) {
	for i := range d.Cards {
		if why := reason(&d.Cards[i]); why != "" {
			d.Cards[i].Healthy, d.Cards[i].Reason = false, why
		}
	}
}

// slots is the split count, or in MIG mode the maximum number of instances: more containers than instances could never run.
func slots(gpu *inventory.GPU, s settings.Settings) int {
	if s.ModeOf(gpu.UUID) != annotation.ModeMIG {
		return s.SplitCount
	}
	most := 0
	for _, profile := range gpu.MIG.Profiles {
		most = max(most, profile.MaxInstances)
	}
	return most
}

// Registered is the set as the scheduler sees it.
func (d *Set) Registered() []annotation.GPU {
	out := make([]annotation.GPU, 0, len(d.Cards))
	for _, card := range d.Cards {
		slots := card.Slots
		if !card.Healthy {
			slots = 0 // Volcano parses a card's health but ignores it; it does not use a card with 0 containers
		}
		out = append(out, annotation.GPU{
			UUID: card.GPU.UUID, Slots: slots, Memory: card.Units, Model: card.GPU.ProductName, Healthy: card.Healthy, Mode: card.Mode,
		})
	}
	return out
}

// Number returns the IDs that count containers: UUID-i, as existing monitors expect.
func (d *Set) Number() []deviceplugin.Device {
	return d.devices(func(c Card) int { return c.Slots }, func(_ int, c Card, n int) string { return c.GPU.UUID + "-" + strconv.Itoa(n) })
}

// Memory returns the IDs that count units of memory.
func (d *Set) Memory() []deviceplugin.Device {
	return d.devices(func(c Card) int { return int(c.Units) }, func(i int, _ Card, n int) string { return UnitID(i, n) })
}

// Percentage returns the IDs that count percent of memory: 100 for each GPU. Without them the node would be refused for a pod that
// requests memory in percent. The scheduler decides how much memory that is.
func (d *Set) Percentage() []deviceplugin.Device {
	return d.devices(func(Card) int { return 100 }, func(i int, _ Card, n int) string { return UnitID(i, n) })
}

// Cores returns the IDs that count percent of cores.
func (d *Set) Cores() []deviceplugin.Device {
	return d.devices(func(c Card) int { return c.Cores }, func(i int, _ Card, n int) string { return UnitID(i, n) })
}

func (d *Set) devices(count func(Card) int, id func(int, Card, int) string) []deviceplugin.Device {
	total := 0
	for _, card := range d.Cards {
		total += count(card)
	}
	out := make([]deviceplugin.Device, 0, total)
	for i, card := range d.Cards {
		var numa []int
		if card.GPU.Place.NUMANode >= 0 {
			numa = []int{card.GPU.Place.NUMANode}
		}
		for n := range count(card) {
			out = append(out, deviceplugin.Device{ID: id(i, card, n), Healthy: card.Healthy, NUMANodes: numa})
		}
	}
	return out
}

// ByUUID finds a card, nil where the set has none.
func (d *Set) ByUUID(uuid string) *Card {
	for i := range d.Cards {
		if d.Cards[i].GPU.UUID == uuid {
			return &d.Cards[i]
		}
	}
	return nil
}

// Index is a GPU's number on the node, in the order of PCI addresses. A GPU that is not in the set gets a number after those
// of the set.
func (d *Set) Index(uuid string) int {
	if card := d.ByUUID(uuid); card != nil {
		return card.GPU.Index
	}
	return math.MaxInt
}

// UUIDOf is the GPU of an ID of Number; empty for anything else.
func UUIDOf(id string) string {
	at := strings.LastIndexByte(id, '-')
	if at < 0 || !annotation.ValidUUID(id[:at]) {
		return ""
	}
	return id[:at]
}
