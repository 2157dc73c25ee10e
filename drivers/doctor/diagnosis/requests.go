package diagnosis

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"gpufabric.io/drivers/doctor/selector"
)

// want is a request of a claim, or of a container for an extended resource.
type want struct {
	object    string // the object of a finding: "claim ns/c"
	name      string // of the request
	class     string
	selectors []resourceapi.DeviceSelector
	tolerates []resourceapi.DeviceToleration
	capacity  *resourceapi.CapacityRequirements
	count     int
	all       bool
	holder    string // namespace/name of the claim itself
}

// wants are the requests of a claim; of alternatives, the first.
func wants(c *resourceapi.ResourceClaimSpec, object, holder string) []want {
	var out []want
	for _, r := range c.Devices.Requests {
		if x := r.Exactly; x != nil {
			if x.AdminAccess != nil && *x.AdminAccess {
				continue
			}
			out = append(out, want{object, r.Name, x.DeviceClassName, x.Selectors, x.Tolerations, x.Capacity, int(max(1, x.Count)),
				x.AllocationMode == resourceapi.DeviceAllocationModeAll, holder})
		} else if len(r.FirstAvailable) > 0 {
			s := r.FirstAvailable[0]
			out = append(out, want{object, r.Name + "/" + s.Name, s.DeviceClassName, s.Selectors, s.Tolerations, s.Capacity, int(max(1, s.Count)),
				s.AllocationMode == resourceapi.DeviceAllocationModeAll, holder})
		}
	}
	return out
}

// tally counts the devices that match a request, by the reason for which the pod cannot have them.
type tally struct {
	matched     int
	counting    int // matched, and consume counters
	ofDriver    int
	byClass     int
	failed      string // why a selector failed
	near        near
	unknown     string // the part of a selector that cannot be judged
	tainted     map[string][]taintedDevice
	nodes       map[string][]string // by code: node and reason
	held        []string            // claims
	heldDevices int
	withdrawn   int // of heldDevices, those that are not published while they are full
	tooSmall    int
	free        map[string]int // by node
	most        map[string]int // matched, by node
	excluded    map[string]int // matched, by node that the pod's own selector or affinity excludes
	// allowed are ofDriver and byClass on the nodes that the pod does not exclude.
	allowedOfDriver, allowedByClass int
}

type taintedDevice struct {
	taint                resourceapi.DeviceTaint
	driver, node, device string
}

// wanted leaves out the devices of nodes that the pod excludes, unless it excludes them all: a request for one node's devices waits for
// those, not for other nodes'.
func (t *tally) wanted() (matched int, most map[string]int) {
	matched, most = t.matched, maps.Clone(t.most)
	for node, n := range t.excluded {
		matched -= n
		delete(most, node)
	}
	if matched == t.tooSmall {
		return t.matched, t.most
	}
	return matched, most
}

// near is the device of a class that misses least of a request's own selectors.
type near struct {
	misses []string
	known  bool
}

// offer takes a device that is nearer. Of two that miss equally many parts the first stays: devices of one kind differ little.
func (n *near) offer(selectors []selector.Selector, driver string, d *resourceapi.Device) {
	var misses []string
	for _, s := range selectors {
		of, ok := s.Misses(driver, d)
		if !ok {
			return
		}
		misses = append(misses, of...)
	}
	if !n.known || len(misses) < len(n.misses) {
		n.misses, n.known = misses, true
	}
}

// String is the end of a sentence; empty: no device's misses are known.
func (n *near) String() string {
	if !n.known {
		return ""
	}
	return "; the nearest: " + strings.Join(n.misses, "; ")
}

// counted caches count for pods and claims with equal requests: 10,000 waiting pods mostly belong to a few jobs.
func (e *examination) counted(w want, p *corev1.Pod) tally {
	var where any
	if p != nil {
		where = []any{p.Spec.NodeSelector, p.Spec.Tolerations, p.Spec.Affinity}
	}
	key, err := json.Marshal([]any{w.class, w.selectors, w.tolerates, w.capacity, where})
	if err != nil { // fields of the API alone, which are JSON
		return e.count(w, p)
	}
	t, ok := e.tallies[string(key)]
	if !ok {
		t = e.count(w, p)
		e.tallies[string(key)] = t
	}
	return t
}

// count checks every device for a want of a pod; p is nil for a claim without a pod.
func (e *examination) count(w want, p *corev1.Pod) tally {
	t := tally{tainted: map[string][]taintedDevice{}, nodes: map[string][]string{}, free: map[string]int{}, most: map[string]int{},
		excluded: map[string]int{}}
	class := e.class[w.class]
	classSelectors, ownSelectors := read(class.Spec.Selectors), read(w.selectors)
	stock := e.devices()
	for _, driver := range slices.Sorted(maps.Keys(stock.byDriver)) {
		for _, pool := range stock.all(driver) {
			here := 1
			if node := e.nodes[pool.node]; node != nil && excludes(p, node) != "" {
				here = 0
			}
			for i := range pool.devices {
				d := &pool.devices[i]
				switch verdict, why := judge(classSelectors, driver, d); verdict {
				case selector.No:
					if mentions(class.Spec.Selectors, driver) {
						t.ofDriver++
						t.allowedOfDriver += here
					}
					continue
				case selector.Failed:
					t.failed = fmt.Sprintf("class %s on device %s of node %s: %s", w.class, d.Name, pool.node, why)
					continue
				case selector.Unknown:
					t.unknown = why
				}
				t.ofDriver++
				t.byClass++
				t.allowedOfDriver += here
				t.allowedByClass += here
				switch verdict, why := judge(ownSelectors, driver, d); verdict {
				case selector.No:
					t.near.offer(ownSelectors, driver, d)
					continue
				case selector.Failed:
					t.failed = fmt.Sprintf("request %s on device %s of node %s: %s", w.name, d.Name, pool.node, why)
					continue
				case selector.Unknown:
					t.unknown = why
				}
				e.file(&t, w, p, pool, d)
			}
			for _, name := range stock.withdrawn(pool, requestKey(w.class, w.selectors)) {
				before, full := t.heldDevices, w
				full.capacity = nil // the device's capacities are not published
				e.file(&t, full, p, pool, &resourceapi.Device{Name: name})
				t.withdrawn += t.heldDevices - before
			}
		}
	}
	return t
}

// mentions reports whether a class's selectors name a driver.
func mentions(all []resourceapi.DeviceSelector, driver string) bool {
	return slices.ContainsFunc(all, func(s resourceapi.DeviceSelector) bool {
		return s.CEL != nil && strings.Contains(s.CEL.Expression, driver)
	})
}

// file counts a matching device in the right group.
func (e *examination) file(t *tally, w want, p *corev1.Pod, pool *pool, d *resourceapi.Device) {
	t.matched++
	if len(d.ConsumesCounters) > 0 {
		t.counting++
	}
	t.most[pool.node]++
	if small(w.capacity, d) {
		t.tooSmall++
		return
	}
	if node := e.nodes[pool.node]; node != nil && p != nil {
		if code, why := keeps(p, node); code != "" {
			t.nodes[code] = append(t.nodes[code], pool.node+": "+why)
			if code == "NodesExcluded" {
				t.excluded[pool.node]++
			}
			return
		}
	}
	for _, taint := range d.Taints {
		if taint.Effect != resourceapi.DeviceTaintEffectNone && !slices.ContainsFunc(w.tolerates, func(o resourceapi.DeviceToleration) bool {
			return toleratesDevice(o, taint)
		}) {
			t.tainted[taint.Key] = append(t.tainted[taint.Key], taintedDevice{taint, pool.driver, pool.node, d.Name})
			return
		}
	}
	key := deviceKey{pool.driver, pool.name, d.Name}
	holders := e.devices().holders[key]
	shared := d.AllowMultipleAllocations != nil && *d.AllowMultipleAllocations
	switch {
	case len(holders) > 0 && !shared, len(holders) == 0 && !pool.fits(d), shared && e.full(key, w.capacity, d):
		t.heldDevices++
		if len(holders) == 0 {
			holders = e.neighbours(pool, d)
		}
		for _, h := range holders {
			if !slices.Contains(t.held, h) && h != w.holder {
				t.held = append(t.held, h)
			}
		}
		return
	}
	t.free[pool.node]++
}

// neighbours are the holders of devices that consume the same counters: other forms of one GPU.
func (e *examination) neighbours(pool *pool, d *resourceapi.Device) []string {
	sets := map[string]bool{}
	for _, c := range d.ConsumesCounters {
		sets[c.CounterSet] = true
	}
	var out []string
	for i := range pool.devices {
		other := &pool.devices[i]
		if slices.ContainsFunc(other.ConsumesCounters, func(c resourceapi.DeviceCounterConsumption) bool { return sets[c.CounterSet] }) {
			out = append(out, e.devices().holders[deviceKey{pool.driver, pool.name, other.Name}]...)
		}
	}
	return out
}

// small reports whether a device has less of a capacity than requested, even without any holder.
func small(asked *resourceapi.CapacityRequirements, d *resourceapi.Device) bool {
	if asked == nil {
		return false
	}
	for name, quantity := range asked.Requests {
		if has, ok := d.Capacity[name]; !ok || has.Value.Cmp(quantity) < 0 {
			return true
		}
	}
	return false
}

// full reports whether a shared device has less left than requested. An amount that the request omits takes the device's default.
func (e *examination) full(key deviceKey, asked *resourceapi.CapacityRequirements, d *resourceapi.Device) bool {
	for name, capacity := range d.Capacity {
		if capacity.RequestPolicy == nil {
			continue
		}
		left := capacity.Value.DeepCopy()
		left.Sub(e.devices().consumed[key][name])
		need := capacity.RequestPolicy.Default
		if asked != nil {
			if quantity, ok := asked.Requests[name]; ok {
				need = &quantity
			}
		}
		if need != nil && left.Cmp(*need) < 0 || left.Sign() <= 0 {
			return true
		}
	}
	return false
}

func toleratesDevice(o resourceapi.DeviceToleration, t resourceapi.DeviceTaint) bool {
	if o.Effect != "" && o.Effect != t.Effect || o.Key != "" && o.Key != t.Key {
		return false
	}
	return o.Operator == resourceapi.DeviceTolerationOpExists || o.Key != "" && o.Value == t.Value
}

func read(all []resourceapi.DeviceSelector) []selector.Selector {
	var out []selector.Selector
	for _, s := range all {
		if s.CEL != nil {
			out = append(out, selector.Read(s.CEL.Expression))
		}
	}
	return out
}

// judge is the verdict of all selectors: the first No decides, then a failure.
func judge(all []selector.Selector, driver string, d *resourceapi.Device) (selector.Verdict, string) {
	verdict, why := selector.Yes, ""
	for _, s := range all {
		switch v, words := s.Judge(driver, d); v {
		case selector.No:
			return v, ""
		case selector.Failed:
			return v, words
		case selector.Unknown:
			verdict, why = v, words
		}
	}
	return verdict, why
}
