package inventory

import (
	"maps"

	resourcev1 "k8s.io/api/resource/v1"
)

// Request is the request of one claim for one device.
type Request struct {
	Driver string
	Type   string // the attribute type: gpu, mig or shared; empty: any
	// Profile is a MIG profile's name; empty: any.
	Profile string
	// Capacity is the use of a share, in the units of the capacity (memory in bytes, cores in percent); empty for a whole device.
	Capacity map[resourcev1.QualifiedName]int64
}

// Free counts, by node, how many more claims with the request could be allocated now. It follows the scheduler's rules: a device is
// allocated once unless it allows several allocations, uses the counters of its pool, and is left out when tainted. Equal
// placements are taken from the lowest on, which is the best order for equal sizes.
func (inv *Inventory) Free(r Request) map[string]int64 {
	left := inv.countersLeft()
	free := map[string]int64{}
	for _, d := range inv.Devices {
		if d.Driver != r.Driver || !d.is(r.Type) || (r.Profile != "" && d.Text("profile") != r.Profile) {
			continue
		}
		if _, known := free[d.Node]; !known {
			free[d.Node] = 0
		}
		if len(d.Troubles()) > 0 {
			continue
		}
		shared := d.multiple()
		counters := left[poolKey{d.Driver, d.Pool}]
		switch {
		case len(d.Claims) > 0 && !shared, len(d.Claims) == 0 && !counters.covers(d.ConsumesCounters):
			continue
		case shared:
			n := d.sharesLeft(d.filled(r.Capacity))
			if n > 0 && len(d.Claims) == 0 {
				counters.draw(d.ConsumesCounters)
			}
			free[d.Node] += n
		default:
			if len(d.Claims) == 0 {
				counters.draw(d.ConsumesCounters)
			}
			free[d.Node]++
		}
	}
	return free
}

// is reports whether a device can serve a request for a type. A GPU that several claims may have (its type is gpu) serves requests for
// shares too.
func (d *Device) is(kind string) bool {
	own := d.Text("type")
	return kind == "" || own == kind || kind == "shared" && own == "gpu" && d.multiple()
}

func (d *Device) multiple() bool {
	return d.AllowMultipleAllocations != nil && *d.AllowMultipleAllocations
}

// filled is the use of each capacity by a request: the requested amount, else the capacity's default, else all of it.
func (d *Device) filled(asked map[resourcev1.QualifiedName]int64) map[resourcev1.QualifiedName]int64 {
	size := maps.Clone(asked)
	if size == nil {
		size = map[resourcev1.QualifiedName]int64{}
	}
	for name, c := range d.Capacity {
		if _, named := size[name]; named {
			continue
		}
		size[name] = c.Value.Value()
		if c.RequestPolicy != nil && c.RequestPolicy.Default != nil {
			size[name] = c.RequestPolicy.Default.Value()
		}
	}
	return size
}

// sharesLeft counts how many more shares of a size the device has room for.
func (d *Device) sharesLeft(size map[resourcev1.QualifiedName]int64) int64 {
	n := int64(-1)
	for name, amount := range size {
		if amount <= 0 {
			continue
		}
		capacity, ok := d.Capacity[name]
		if !ok {
			return 0
		}
		rest := capacity.Value.Value()
		for _, c := range d.Claims {
			rest -= c.Consumed[name]
		}
		if fit := max(rest, 0) / amount; n < 0 || fit < n {
			n = fit
		}
	}
	return max(n, 0)
}

// counters are the free parts of a pool's counter sets: set, counter.
type counters map[string]map[string]int64

func (inv *Inventory) countersLeft() map[poolKey]counters {
	left := map[poolKey]counters{}
	for key, sets := range inv.pools {
		c := counters{}
		for _, set := range sets {
			if c[set.Name] == nil {
				c[set.Name] = map[string]int64{}
			}
			for name, counter := range set.Counters {
				c[set.Name][name] = counter.Value.Value()
			}
		}
		left[key] = c
	}
	for _, d := range inv.Devices {
		if len(d.Claims) > 0 { // once, however many shares there are
			left[poolKey{d.Driver, d.Pool}].draw(d.ConsumesCounters)
		}
	}
	return left
}

func (c counters) covers(draws []resourcev1.DeviceCounterConsumption) bool {
	for _, d := range draws {
		for name, counter := range d.Counters {
			if c[d.CounterSet][name] < counter.Value.Value() {
				return false
			}
		}
	}
	return true
}

func (c counters) draw(draws []resourcev1.DeviceCounterConsumption) {
	for _, d := range draws {
		for name, counter := range d.Counters {
			if c[d.CounterSet] != nil {
				c[d.CounterSet][name] -= counter.Value.Value()
			}
		}
	}
}
