package health

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/gpu/partition"
	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/store"
)

const (
	// waitMilliseconds bounds one wait for an event: NVML's wait cannot be interrupted, and the plugin must end on request.
	waitMilliseconds = 500
	// recheck is how often to query a GPU with a fault for its health, and every GPU for the state of its NVLinks: there is
	// no event for either. On a machine of 8 GPUs with 18 links each that is 144 short calls.
	recheck = 10 * time.Second
	// settle is the minimum age at which a fatal fault may heal: the driver determines the recovery action after it reported the
	// error.
	settle = 10 * time.Second
	// quiet is how long a warning remains after it was last seen.
	quiet = 10 * time.Minute
	// wholeGPU is NVML's instance number for events on the GPU as a whole.
	wholeGPU = 0xFFFFFFFF
)

// Options are the dependencies of a Monitor.
type Options struct {
	NVML nvml.Interface
	// Node is the current hardware.
	Node func() *inventory.Node
	// Path is the file that stores the faults.
	Path string
	// Writer writes it.
	Writer atomicfile.Writer
	// Boot names the current boot.
	Boot string
	Now  func() time.Time
	// Recheck is how often to check states without an event. Settle is the minimum duration of a fatal fault; 0: 10 seconds.
	Recheck, Settle time.Duration
}

// Listener receives the findings of a Monitor, in the goroutine of its Run.
type Listener interface {
	// Happened is called for every event on a GPU. first means that it is new. An application's own mistake is reported here, but is
	// not kept as a fault.
	Happened(ctx context.Context, f Fault, first bool)
	// Healed is called when a fault is gone.
	Healed(ctx context.Context, f Fault)
	// Checked is called every few seconds, for further checks without an event.
	Checked(ctx context.Context)
}

// Monitor keeps the faults of the node's GPUs, and looks for new ones while it runs. Make it with New.
type Monitor struct {
	options Options
	record  *store.File[kept]

	mu     sync.Mutex
	faults []Fault
	// changed is closed and replaced when the faults change.
	changed chan struct{}
	// unread is when faults on disk were found to be unreadable; zero: all could be read.
	unread time.Time
}

// follower is the state of a Monitor's Run; only its goroutine uses it.
type follower struct {
	*Monitor
	listener   Listener
	up         links           // were up once
	absent     links           // were down at the last check though most GPUs of the kind have them
	registered map[string]bool // by UUID: its events are registered
}

// New makes a Monitor with the stored faults. The error names unreadable faults. The Monitor, unless nil, can be used all the same: it
// counts every GPU as faulty until an administrator has checked them and deletes the file.
func New(o Options) (*Monitor, error) {
	if o.Recheck == 0 {
		o.Recheck = recheck
	}
	if o.Settle == 0 {
		o.Settle = settle
	}
	r, faults, err := open(o.Path, o.Writer)
	if r == nil {
		return nil, err
	}
	m := &Monitor{options: o, record: r, faults: faults, changed: make(chan struct{})}
	if r.Aside() {
		m.unread = o.Now()
	}
	return m, err
}

// Faults returns the present faults, oldest first. Where those on disk cannot be read, each GPU has a fault for that.
func (m *Monitor) Faults() []Fault {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append(m.unknown(), m.faults...)
}

// Watch returns Faults, and a channel that is closed when they change.
func (m *Monitor) Watch() ([]Fault, <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append(m.unknown(), m.faults...), m.changed
}

// announce wakes the goroutines that watch the faults.
func (m *Monitor) announce() {
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.changed)
	m.changed = make(chan struct{})
}

// unknown returns a fault for each GPU whose faults on disk cannot be read. mu must be held.
func (m *Monitor) unknown() []Fault {
	if m.unread.IsZero() {
		return nil
	}
	var out []Fault
	for _, g := range m.options.Node().GPUs {
		out = append(out, Fault{
			GPU: g.UUID, Kind: Record, Fatal: true, Since: m.unread, Last: m.unread, Boot: m.options.Boot,
			Message: "which faults the GPU had is not known, since their record cannot be read: it lies in " + m.record.AsideDirectory() +
				"; delete it when the GPUs were looked at",
		})
	}
	return out
}

// Describe and Collect implement prometheus.Collector: whether faults on disk cannot be read.
func (m *Monitor) Describe(descriptions chan<- *prometheus.Desc) {
	m.record.Describe(descriptions)
}

// Collect implements prometheus.Collector.
func (m *Monitor) Collect(collected chan<- prometheus.Metric) { m.record.Collect(collected) }

// readAgain checks whether the unreadable file was deleted.
func (m *follower) readAgain(ctx context.Context) {
	m.mu.Lock()
	var gone []Fault
	if !m.unread.IsZero() && !m.record.Aside() {
		gone = m.unknown()
		m.unread = time.Time{}
	}
	m.mu.Unlock()
	if len(gone) == 0 {
		return
	}
	for _, f := range gone {
		m.listener.Healed(ctx, f)
	}
	m.announce()
}

// Run follows events until ctx ends, and reports its findings to l.
func (m *Monitor) Run(ctx context.Context, l Listener) error { return m.follow(l).run(ctx) }

func (m *Monitor) follow(l Listener) *follower {
	return &follower{Monitor: m, listener: l, up: links{}, registered: map[string]bool{}}
}

func (m *follower) run(ctx context.Context) error {
	m.heal(ctx)
	set, ret := m.options.NVML.EventSetCreate()
	if ret != nvml.SUCCESS {
		return fmt.Errorf("query NVML for events: %w", ret)
	}
	defer func() { _ = set.Free() }()
	m.register(ctx, set)
	m.checkLinks(ctx)
	checked, failed := m.options.Now(), nvml.SUCCESS
	for ctx.Err() == nil {
		event, ret := set.Wait(waitMilliseconds)
		if ret == nvml.SUCCESS || ret == nvml.ERROR_TIMEOUT {
			failed = nvml.SUCCESS
		}
		switch ret {
		case nvml.SUCCESS:
			m.event(ctx, event)
		case nvml.ERROR_TIMEOUT:
		case nvml.ERROR_GPU_IS_LOST:
			m.probe(ctx)
			m.pause(ctx)
		default:
			if ret != failed { // it may fail for days, twice a second
				klog.FromContext(ctx).Error(ret, "Waiting for GPU events failed; it is tried again until it succeeds")
			}
			failed = ret
			m.pause(ctx)
		}
		if now := m.options.Now(); now.Sub(checked) >= m.options.Recheck {
			checked = now
			m.check(ctx, set)
		}
	}
	return nil
}

// check looks for faults that no event reports.
func (m *follower) check(ctx context.Context, set nvml.EventSet) {
	m.checkLinks(ctx)
	m.heal(ctx)
	m.readAgain(ctx)
	m.listener.Checked(ctx)
	m.register(ctx, set) // GPUs that were absent or lost at the last check
}

// pause keeps a broken event source from causing a busy loop.
func (m *follower) pause(ctx context.Context) {
	select {
	case <-time.After(waitMilliseconds * time.Millisecond):
	case <-ctx.Done():
	}
}

// register registers for the events of each GPU that is not registered yet.
func (m *follower) register(ctx context.Context, set nvml.EventSet) {
	const wanted = nvml.EventTypeXidCriticalError | nvml.EventTypeDoubleBitEccError | nvml.EventTypeSingleBitEccErrorStorm |
		nvml.EventTypeFatalPoisonError | nvml.EventTypeGpuUnavailableError | nvml.EventTypeGpuRecoveryAction
	for _, g := range m.options.Node().GPUs {
		if m.registered[g.UUID] {
			continue
		}
		supported, ret := g.Handle.GetSupportedEventTypes()
		if ret == nvml.SUCCESS {
			ret = g.Handle.RegisterEvents(supported&wanted, set)
		}
		switch ret {
		case nvml.SUCCESS, nvml.ERROR_NOT_SUPPORTED:
			m.registered[g.UUID] = true
		case nvml.ERROR_GPU_IS_LOST:
			if !m.isLost(g) {
				m.lost(ctx, g)
			}
		default:
			m.registered[g.UUID] = true // reported once
			klog.FromContext(ctx).Error(ret, "Could not register for a GPU's events; its health is not followed", "gpu", g.UUID)
		}
	}
}

// event converts an event into a fault.
func (m *follower) event(ctx context.Context, e nvml.EventData) {
	g := m.gpu(e.Device)
	if g == nil {
		klog.FromContext(ctx).Info("Event on a GPU that is not on this node, or does not answer", "type", e.EventType, "data", e.EventData)
		m.probe(ctx)
		return
	}
	f := Fault{GPU: g.UUID, Placement: m.placement(g, e.GpuInstanceId)}
	level := fatal
	switch e.EventType {
	case nvml.EventTypeXidCriticalError:
		var words string
		f.Kind, level, words = classify(e.EventData)
		f.Code, f.Message = e.EventData, fmt.Sprintf("XID %d: %s", e.EventData, words)
	case nvml.EventTypeDoubleBitEccError:
		f.Kind, f.Message = ECC, "uncorrected memory error"
	case nvml.EventTypeSingleBitEccErrorStorm:
		f.Kind, f.Message, level = ECC, "storm of corrected memory errors", warning
	case nvml.EventTypeFatalPoisonError:
		f.Kind, f.Message = ECC, "poisoned memory was used"
	case nvml.EventTypeGpuUnavailableError:
		f.Kind, f.Message = Lost, "the GPU is not available"
	case nvml.EventTypeGpuRecoveryAction:
		m.heal(ctx)
		return
	default:
		return
	}
	f.Fatal = level == fatal
	m.add(ctx, f, level != application)
}

// gpu finds the GPU of an event, by its handle first: a lost GPU does not return its UUID.
func (m *follower) gpu(d nvml.Device) *inventory.GPU {
	n := m.options.Node()
	for _, g := range n.GPUs {
		if g.Handle == d {
			return g
		}
	}
	uuid, ret := d.GetUUID()
	if ret != nvml.SUCCESS {
		return nil
	}
	return n.ByUUID(uuid)
}

// placement is the place of a MIG instance; nil for the whole GPU, and for an instance that is gone.
func (m *follower) placement(g *inventory.GPU, instance uint32) *inventory.Placement {
	if instance == wholeGPU {
		return nil
	}
	standing, err := partition.List(g)
	if err != nil {
		return nil
	}
	for _, i := range standing {
		if i.ID == int(instance) {
			return &inventory.Placement{Start: i.Start, Size: i.Size}
		}
	}
	return nil
}

// probe checks every GPU for an answer.
func (m *follower) probe(ctx context.Context) {
	for _, g := range m.options.Node().GPUs {
		if !g.Answers() {
			m.lost(ctx, g)
		}
	}
}

func (m *follower) lost(ctx context.Context, g *inventory.GPU) {
	m.add(ctx, Fault{GPU: g.UUID, Kind: Lost, Fatal: true, Message: "the GPU does not answer NVML"}, true)
}

// isLost reports whether a GPU's loss is recorded.
func (m *follower) isLost(g *inventory.GPU) bool {
	return slices.ContainsFunc(m.Faults(), func(f Fault) bool { return f.GPU == g.UUID && f.Kind == Lost })
}

// add records a fault, or that a recorded fault was seen again.
func (m *follower) add(ctx context.Context, f Fault, stands bool) {
	f.Since, f.Last, f.Boot = m.options.Now(), m.options.Now(), m.options.Boot
	if g := m.options.Node().ByUUID(f.GPU); g != nil {
		f.Bus = g.Place.BusID
	}
	if !stands {
		m.listener.Happened(ctx, f, true)
		return
	}
	m.mu.Lock()
	at := slices.IndexFunc(m.faults, f.same)
	if at < 0 {
		m.faults = append(m.faults, f)
	} else {
		m.faults[at].Last = f.Last
		f = m.faults[at]
	}
	m.keep(ctx)
	m.mu.Unlock()
	// The kubelet and the scheduler come first: the listener may call an API server that does not answer.
	if at < 0 {
		m.announce()
	}
	m.listener.Happened(ctx, f, at < 0)
}

// keep stores the faults. mu must be held.
func (m *Monitor) keep(ctx context.Context) {
	if err := m.record.Put(kept{Faults: m.faults}); err != nil {
		klog.FromContext(ctx).Error(err, "Could not store the faults on disk; a restart would lose them")
	}
}

// heal removes the faults of GPUs that are healthy again.
func (m *follower) heal(ctx context.Context) {
	var gone []Fault
	m.mu.Lock()
	for i, now := 0, m.options.Now(); i < len(m.faults); i++ {
		// The clock was set back, or was wrong when the machine started. A fault would otherwise stand until that time comes.
		if f := &m.faults[i]; f.Last.After(now) {
			f.Last = now
		}
	}
	standing := slices.Clone(m.faults)
	m.mu.Unlock()
	for _, f := range standing {
		if m.healed(f) {
			gone = append(gone, f)
		}
	}
	if len(gone) == 0 {
		return
	}
	m.mu.Lock()
	for _, f := range gone {
		// A fault that was seen again in between stays.
		m.faults = slices.DeleteFunc(m.faults, func(o Fault) bool { return f.same(o) && f.Last.Equal(o.Last) })
	}
	m.keep(ctx)
	m.mu.Unlock()
	for _, f := range gone {
		if f.Kind == Lost {
			delete(m.registered, f.GPU) // a GPU that came back does not send events to earlier registrations
		}
		m.listener.Healed(ctx, f)
	}
	m.announce()
}

// healed reports whether a fault is over. Where the driver reports recovery actions, a fault is over when it names none. Otherwise a
// fatal fault ends with the boot, since no other sign of a reset exists. A lost GPU is the exception: it answers again
// only after a reset.
func (m *follower) healed(f Fault) bool {
	now := m.options.Now()
	g := m.options.Node().ByUUID(f.GPU)
	if g == nil {
		return m.replaced(f)
	}
	if !g.Answers() {
		return false
	}
	if f.Link != nil {
		return linkUp(g, *f.Link) || inMIGMode(g)
	}
	rebooted := f.Boot != "" && m.options.Boot != "" && f.Boot != m.options.Boot
	if !f.Fatal {
		return rebooted || now.Sub(f.Last) >= quiet
	}
	action, err := recoveryAction(g)
	switch {
	case errors.Is(err, errNoAction):
		return rebooted || f.Kind == Lost && now.Sub(f.Last) >= m.options.Settle
	case err != nil:
		return false
	default:
		return action == uint32(nvml.GPU_RECOVERY_ACTION_NONE) && (rebooted || now.Sub(f.Last) >= m.options.Settle)
	}
}

// replaced reports whether another GPU is in the place of one that the node no longer has.
func (m *follower) replaced(f Fault) bool {
	return f.Bus != "" && slices.ContainsFunc(m.options.Node().GPUs, func(g *inventory.GPU) bool {
		return g.Place.BusID == f.Bus && g.Answers()
	})
}

var errNoAction = errors.New("the driver reports no recovery actions")

// recoveryAction reads the driver's recovery action for the GPU.
func recoveryAction(g *inventory.GPU) (uint32, error) {
	values := []nvml.FieldValue{{FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}}
	if ret := g.Handle.GetFieldValues(values); ret != nvml.SUCCESS {
		if ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.ERROR_FUNCTION_NOT_FOUND {
			return 0, errNoAction
		}
		return 0, ret
	}
	switch ret := nvml.Return(values[0].NvmlReturn); ret { //nolint:gosec // NVML's own numbers
	case nvml.SUCCESS:
		return binary.NativeEndian.Uint32(values[0].Value[:]), nil
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_INVALID_ARGUMENT:
		return 0, errNoAction
	default:
		return 0, ret
	}
}
