// Package decks computes how a node's GPUs are shared through device plugins: how many containers each GPU takes, how many units of
// memory and percent of cores it has, and the IDs by which the kubelet counts them.
package decks

import (
	"fmt"
	"math"
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
	Units   int64 // memory, in units of Deck.Factor MiB
	Cores   int   // percent of the GPU's SMs, times the scaling
	Healthy bool
	// Reason says why an unhealthy card is so.
	Reason string
}

// Deck is the shared GPUs of a node.
type Deck struct {
	Cards []Card
	// Factor is the size of a unit of memory in MiB.
	Factor int
	// Refused says which GPUs are not shared although they are not hidden, and why.
	Refused []error
}

// volcanoRefuses says why a card cannot be shared with Volcano, or nothing. Its scheduler uses the mode of a node's last card for
// all cards (decodeNodeDevices in its vgpu/utils.go). It takes the size of a unit only from gpuMemoryFactor, by which it matches
// MIG instances.
func volcanoRefuses(gpu *inventory.GPU, s settings.Settings, factor int) error {
	mode := s.ModeOf(gpu.UUID)
	if mode != s.Mode {
		return fmt.Errorf("%s (%s): mode %s is asked for on a node of mode %s, and Volcano knows one mode a node; it is not shared. Give all of "+
			"the node's GPUs one mode, hide the others (filterdevices) and claim them through DRA, or have gpufabric's scheduler place the pods "+
			"(--scheduler=gpufabric)", gpu.UUID, gpu.ProductName, mode, s.Mode)
	}
	if mode == annotation.ModeMIG && factor > 1 && s.MemoryFactor == 0 {
		return fmt.Errorf("%s (%s): one unit of memory is %d MiB, which was chosen automatically, and Volcano takes it for 1 MiB when it "+
			"chooses MIG instances; it is not shared. Set gpuMemoryFactor: %d in Volcano's ConfigMap volcano-vgpu-device-config", gpu.UUID,
			gpu.ProductName, factor, factor)
	}
	return nil
}

// Lay computes the deck of the node's GPUs. factorInForce is the cluster's factor, 0 where there is none yet; a factor in the
// settings takes precedence.
func Lay(node *inventory.Node, s settings.Settings, factorInForce int) (*Deck, error) {
	deck := &Deck{Factor: s.MemoryFactor}
	var shared []*inventory.GPU
	var memory []int64
	for _, gpu := range node.GPUs {
		if s.Hides(gpu.UUID, gpu.Index) {
			continue
		}
		if s.ModeOf(gpu.UUID) == annotation.ModeMIG && (gpu.MIG == nil || len(gpu.MIG.Profiles) == 0) {
			deck.Refused = append(deck.Refused, fmt.Errorf("%s (%s): mode mig is asked for and the GPU cannot be partitioned; it is not shared. "+
				"Set mode hami-core for it in gpumodes", gpu.UUID, gpu.ProductName))
			continue
		}
		shared = append(shared, gpu)
		memory = append(memory, MiB(gpu))
	}
	if deck.Factor == 0 {
		needed, err := SmallestFactor(memory, s.MemoryScaling, Budget)
		if err != nil {
			return nil, err
		}
		deck.Factor = AgreeFactor(factorInForce, needed)
	} else if err := CheckFactor(deck.Factor, memory, s.MemoryScaling); err != nil {
		return nil, err
	}
	for _, gpu := range shared {
		if s.Scheduler == settings.Volcano {
			if err := volcanoRefuses(gpu, s, deck.Factor); err != nil {
				deck.Refused = append(deck.Refused, err)
				continue
			}
		}
		deck.Cards = append(deck.Cards, Card{
			GPU: gpu, Mode: s.ModeOf(gpu.UUID), Slots: slots(gpu, s), Healthy: true,
			// Without any unit the node would lack the resource
			Units: CountUnits(MiB(gpu), s.MemoryScaling, deck.Factor), Cores: max(1, int(math.Round(100*s.CoreScaling))),
		})
	}
	return deck, nil
}

// MiB is a GPU's memory in MiB, rounded down.
func MiB(gpu *inventory.GPU) int64 { return int64(gpu.MemoryBytes >> 20) }

// MarkUnhealthy marks each card as unhealthy for which reason returns a text.
func (d *Deck) MarkUnhealthy(reason func(*Card) string) {
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

// Registered is the deck as the scheduler sees it.
func (d *Deck) Registered() []annotation.GPU {
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
func (d *Deck) Number() []deviceplugin.Device {
	return d.devices(func(c Card) int { return c.Slots }, func(_ int, c Card, n int) string { return c.GPU.UUID + "-" + strconv.Itoa(n) })
}

// Memory returns the IDs that count units of memory.
func (d *Deck) Memory() []deviceplugin.Device {
	return d.devices(func(c Card) int { return int(c.Units) }, func(i int, _ Card, n int) string { return UnitID(i, n) })
}

// Percentage returns the IDs that count percent of memory: 100 for each GPU. Without them the node would be refused for a pod that
// requests memory in percent. The scheduler decides how much memory that is.
func (d *Deck) Percentage() []deviceplugin.Device {
	return d.devices(func(Card) int { return 100 }, func(i int, _ Card, n int) string { return UnitID(i, n) })
}

// Cores returns the IDs that count percent of cores.
func (d *Deck) Cores() []deviceplugin.Device {
	return d.devices(func(c Card) int { return c.Cores }, func(i int, _ Card, n int) string { return UnitID(i, n) })
}

func (d *Deck) devices(count func(Card) int, id func(int, Card, int) string) []deviceplugin.Device {
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

// ByUUID finds a card, nil where the deck has none.
func (d *Deck) ByUUID(uuid string) *Card {
	for i := range d.Cards {
		if d.Cards[i].GPU.UUID == uuid {
			return &d.Cards[i]
		}
	}
	return nil
}

// Index is a GPU's number on the node, in the order of PCI addresses. A GPU that is not in the deck gets a number after those
// of the deck.
func (d *Deck) Index(uuid string) int {
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
