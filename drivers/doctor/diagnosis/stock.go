package diagnosis

import (
	"cmp"
	"maps"
	"slices"
	"strconv"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"gpufabric.io/drivers/api/resource/v1beta1"
)

// stock is the devices that nodes publish, with the claims that have them.
type stock struct {
	sorted   map[string][]*pool          // by driver; in order of node and name
	onNode   map[deviceKey][]*pool       // by driver, and the node instead of the pool
	byDriver map[string]map[string]*pool // by driver and pool name
	holders  map[deviceKey][]string      // claims, as namespace/name
	consumed map[deviceKey]map[resourceapi.QualifiedName]resource.Quantity
	// shares are the requests (as requestKey) by which claims have shares, by driver and pool, then by device.
	shares map[deviceKey]map[string][]string
}

type deviceKey struct{ driver, pool, device string }

// pool is the newest generation of a pool.
type pool struct {
	name, driver, node string
	generation         int64
	slices, expected   int
	devices            []resourceapi.Device
	// left are the free counters, by set and name.
	left map[string]map[string]resource.Quantity
}

// devices reads the ResourceSlices and the allocations once.
func (e *examination) devices() *stock {
	if e.stock != nil {
		return e.stock
	}
	s := &stock{byDriver: map[string]map[string]*pool{}, holders: map[deviceKey][]string{},
		consumed: map[deviceKey]map[resourceapi.QualifiedName]resource.Quantity{}, shares: map[deviceKey]map[string][]string{}}
	e.stock = s
	index(e.Slices, s.add)
	index(e.Claims, s.hold)
	s.sorted, s.onNode = map[string][]*pool{}, map[deviceKey][]*pool{}
	for driver, pools := range s.byDriver {
		s.sorted[driver] = slices.SortedFunc(maps.Values(pools), func(a, b *pool) int {
			return cmp.Or(cmp.Compare(a.node, b.node), cmp.Compare(a.name, b.name))
		})
		for _, p := range s.sorted[driver] {
			at := deviceKey{driver: driver, pool: p.node}
			s.onNode[at] = append(s.onNode[at], p)
		}
	}
	return s
}

func (s *stock) add(slice *resourceapi.ResourceSlice) {
	spec := &slice.Spec
	if s.byDriver[spec.Driver] == nil {
		s.byDriver[spec.Driver] = map[string]*pool{}
	}
	p := s.byDriver[spec.Driver][spec.Pool.Name]
	if p == nil || spec.Pool.Generation > p.generation {
		p = &pool{name: spec.Pool.Name, driver: spec.Driver, generation: spec.Pool.Generation, expected: int(spec.Pool.ResourceSliceCount),
			left: map[string]map[string]resource.Quantity{}}
		s.byDriver[spec.Driver][spec.Pool.Name] = p
	}
	if spec.Pool.Generation < p.generation {
		return
	}
	if spec.NodeName != nil {
		p.node = *spec.NodeName
	}
	p.slices++
	p.devices = append(p.devices, spec.Devices...)
	for _, set := range spec.SharedCounters {
		p.left[set.Name] = map[string]resource.Quantity{}
		for name, counter := range set.Counters {
			p.left[set.Name][name] = counter.Value.DeepCopy()
		}
	}
}

// hold records a claim's allocation.
func (s *stock) hold(c *resourceapi.ResourceClaim) {
	if c.Status.Allocation == nil {
		return
	}
	for _, r := range c.Status.Allocation.Devices.Results {
		if r.AdminAccess != nil && *r.AdminAccess {
			continue
		}
		key := deviceKey{r.Driver, r.Pool, r.Device}
		first := len(s.holders[key]) == 0
		s.holders[key] = append(s.holders[key], c.Namespace+"/"+c.Name)
		if r.ShareID != nil {
			of := deviceKey{driver: r.Driver, pool: r.Pool}
			if s.shares[of] == nil {
				s.shares[of] = map[string][]string{}
			}
			s.shares[of][r.Device] = append(s.shares[of][r.Device], requestOf(c, r.Request))
		}
		if s.consumed[key] == nil {
			s.consumed[key] = map[resourceapi.QualifiedName]resource.Quantity{}
		}
		for name, quantity := range r.ConsumedCapacity {
			sum := s.consumed[key][name]
			sum.Add(quantity)
			s.consumed[key][name] = sum
		}
		// Claims that share a device consume its counters once.
		if p := s.byDriver[r.Driver][r.Pool]; p != nil && first {
			p.consume(r.Device)
		}
	}
}

// requestKey identifies the devices that a request selects.
func requestKey(class string, selectors []resourceapi.DeviceSelector) string {
	key := class
	for _, s := range selectors {
		if s.CEL != nil {
			key += "\x00" + s.CEL.Expression
		}
	}
	return key
}

// requestOf is the requestKey of a claim's request, or of its alternative (request/alternative).
func requestOf(c *resourceapi.ResourceClaim, name string) string {
	for _, r := range c.Spec.Devices.Requests {
		if r.Exactly != nil && r.Name == name {
			return requestKey(r.Exactly.DeviceClassName, r.Exactly.Selectors)
		}
		for _, a := range r.FirstAvailable {
			if r.Name+"/"+a.Name == name {
				return requestKey(a.DeviceClassName, a.Selectors)
			}
		}
	}
	return ""
}

// withdrawn are the devices of a pool that a request selects and that are not published, because all of their capacity is in use
// (gpus.withdrawFullAfter). A claim with the same class and selectors has a share of each, so they are known to match.
func (s *stock) withdrawn(p *pool, request string) []string {
	var out []string
	for device, requests := range s.shares[deviceKey{driver: p.driver, pool: p.name}] {
		if slices.Contains(requests, request) &&
			!slices.ContainsFunc(p.devices, func(d resourceapi.Device) bool { return d.Name == device }) {
			out = append(out, device)
		}
	}
	slices.Sort(out)
	return out
}

func (p *pool) consume(device string) {
	for i := range p.devices {
		if p.devices[i].Name != device {
			continue
		}
		for _, consumption := range p.devices[i].ConsumesCounters {
			for name, counter := range consumption.Counters {
				left := p.left[consumption.CounterSet][name]
				left.Sub(counter.Value)
				if p.left[consumption.CounterSet] != nil {
					p.left[consumption.CounterSet][name] = left
				}
			}
		}
	}
}

// fits reports whether the counters that a device consumes are still free.
func (p *pool) fits(d *resourceapi.Device) bool {
	for _, consumption := range d.ConsumesCounters {
		for name, counter := range consumption.Counters {
			if left, ok := p.left[consumption.CounterSet][name]; ok && left.Cmp(counter.Value) < 0 {
				return false
			}
		}
	}
	return true
}

// pools are the pools of a driver on a node.
func (s *stock) pools(driver, node string) []*pool {
	return s.onNode[deviceKey{driver: driver, pool: node}]
}

// all are the devices of a driver, by node and name.
func (s *stock) all(driver string) []*pool { return s.sorted[driver] }

// attribute is the attribute of the first device that has it, as text.
func attribute(devices []resourceapi.Device, name resourceapi.QualifiedName) string {
	for i := range devices {
		if text := attributeOf(&devices[i], name); text != "" {
			return text
		}
	}
	return ""
}

func attributeOf(d *resourceapi.Device, name resourceapi.QualifiedName) string {
	switch a := d.Attributes[name]; {
	case a.StringValue != nil:
		return *a.StringValue
	case a.VersionValue != nil:
		return *a.VersionValue
	case a.IntValue != nil:
		return strconv.FormatInt(*a.IntValue, 10)
	case a.BoolValue != nil:
		return strconv.FormatBool(*a.BoolValue)
	}
	return ""
}

// clique is a node's NVLink clique; empty: none.
func (e *examination) clique(node string) string {
	if n := e.nodes[node]; n != nil && n.Labels[v1beta1.LabelClique] != "" {
		return n.Labels[v1beta1.LabelClique]
	}
	for _, p := range e.devices().pools("gpu.nvidia.com", node) {
		if c := attribute(p.devices, "cliqueID"); c != "" {
			return c
		}
	}
	return ""
}

// sharesClique reports whether a node is in a clique with one of the others.
func (e *examination) sharesClique(node string, others []string) bool {
	own := e.clique(node)
	return own != "" && slices.ContainsFunc(others, func(o string) bool { return e.clique(o) == own })
}
