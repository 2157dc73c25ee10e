package plugin

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	drahealth "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"

	"gpufabric.io/drivers/gpu/claims"
	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/health"
	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/node/claimstate"
)

// follow makes what follows the health of a node's GPUs; it does not run it yet.
func (p *plugin) follow(ctx context.Context, node *inventory.Node) error {
	standing := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "gpufabric_gpu_faults", Help: "Faults that stand on a GPU, by kind; fatal ones keep new claims away.",
	}, []string{"uuid", "kind", "fatal"})
	events := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "gpufabric_gpu_events_total", Help: "Error events of a GPU since the plugin's start, by kind.",
	}, []string{"uuid", "kind"})
	p.metrics.Registry.MustRegister(standing, events)
	p.health = &healthServer{plugin: p, watchers: map[chan struct{}]struct{}{}}
	count := func() {
		standing.Reset()
		for _, f := range p.monitor.Faults() {
			standing.WithLabelValues(f.GPU, string(f.Kind), yesNo(f.Fatal)).Inc()
		}
	}
	changed := func() {
		count()
		p.health.changed()
		p.changed()
	}
	var err error
	p.monitor, err = health.New(health.Options{
		NVML: p.nvml, Path: p.stateFile("faults.json"), Boot: p.options.BootID(), Now: time.Now,
		Writer: p.writer,
		Node: func() *inventory.Node {
			if p.kind == nil {
				return node // nothing follows the GPUs yet
			}
			return p.kind.Hardware().Node
		},
		Changed: changed, Checked: p.reread, Recheck: p.recheck, Settle: p.settle,
		Tell: func(f health.Fault, first bool) {
			events.WithLabelValues(f.GPU, string(f.Kind)).Inc()
			klog.FromContext(ctx).Info("GPU event", "gpu", f.GPU, "kind", f.Kind, "code", f.Code, "fatal", f.Fatal, "message", f.Message, "new",
				first)
			if first {
				p.tellHolders(ctx, f, corev1.EventTypeWarning, "GPUUnhealthy", f.String())
			}
		},
		Healed: func(f health.Fault) {
			klog.FromContext(ctx).Info("GPU is healthy again", "gpu", f.GPU, "kind", f.Kind, "code", f.Code)
			if f.Fatal {
				p.kind.LayOut() // what was lost, or broken, comes back as a reset leaves it: without MIG instances
				p.applyAgain()
			}
			p.tellHolders(ctx, f, corev1.EventTypeNormal, "GPUHealthy", "over: "+f.String())
		},
	})
	if p.monitor == nil {
		return err
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Kept faults not read")
		p.report("GPUFaultsUnreadable", err.Error())
	}
	p.metrics.Registry.MustRegister(p.monitor)
	count() // those that were kept
	return nil
}

func yesNo(b bool) string {
	if b {
		return "true"
	}
	return "false"
}

// maxTelling is how many events on GPUs may wait for their claims to be told of them: programs can make GPUs tell of their mistakes all
// day.
const maxTelling = 64

// tellHolders writes an Event on the node, on each claim that holds a device with the fault, and on its pods. The claims are read in the
// background, one fault's after another's: an API server that takes its time must not keep the next fault from being seen.
func (p *plugin) tellHolders(ctx context.Context, f health.Fault, kind, reason, message string) {
	message = message[:min(len(message), 1024)]
	p.recorder.Event(p.nodeReference(), kind, reason, message)
	pool := p.kind.Hardware().Pool
	holders := slices.DeleteFunc(p.dra.Records(), func(record claimstate.Record) bool {
		return !slices.ContainsFunc(record.Devices, func(held claimstate.Device) bool {
			d := pool.Device(held.Device)
			return d != nil && f.Touches(d)
		})
	})
	if len(holders) == 0 {
		return
	}
	if p.telling.Add(1) > maxTelling {
		p.telling.Add(-1)
		klog.FromContext(ctx).Info("Claims are not told of a GPU's event: the API server is behind with those before", "gpu", f.GPU)
		return
	}
	before, told := p.told, make(chan struct{})
	p.told = told
	p.waiters.Go(func() {
		defer p.telling.Add(-1)
		defer close(told)
		if before != nil {
			<-before
		}
		p.tellClaims(ctx, holders, kind, reason, message)
	})
}

// tellClaims writes an Event on claims and on their pods.
func (p *plugin) tellClaims(ctx context.Context, holders []claimstate.Record, kind, reason, message string) {
	for _, record := range holders {
		claim, err := p.client.ResourceV1().ResourceClaims(record.Namespace).Get(ctx, record.Name, metav1.GetOptions{})
		if err != nil || claim.UID != record.UID {
			klog.FromContext(ctx).Info("No Event on a claim that is not to be had", "claim", record.Namespace+"/"+record.Name, "err", err)
			continue
		}
		p.recorder.Event(&corev1.ObjectReference{
			APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
		}, kind, reason, message)
		for _, consumer := range claim.Status.ReservedFor {
			if consumer.APIGroup == "" && consumer.Resource == "pods" {
				p.recorder.Event(&corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: claim.Namespace, Name: consumer.Name,
					UID: consumer.UID}, kind, reason, message)
			}
		}
	}
}

// servedKind is the device kind together with its health, which the kubelet asks for as a service of its own.
type servedKind struct {
	*claims.Kind
	*healthServer
}

const (
	// healthPeriod is how often health is told where nothing changes, healthTimeout when the kubelet shall take it for unknown.
	healthPeriod  = 20 * time.Second
	healthTimeout = 60 * time.Second
)

// healthServer tells the kubelet the health of every device.
type healthServer struct {
	drahealth.UnimplementedDRAResourceHealthServer
	plugin *plugin

	mu       sync.Mutex
	watchers map[chan struct{}]struct{}
}

// onChange calls f in a goroutine of its own whenever some device's health changed, until stop is called.
func (s *healthServer) onChange(f func()) (stop func()) {
	w, end, ended := make(chan struct{}, 1), make(chan struct{}), make(chan struct{})
	s.watch(w)
	go func() { // Ends when stop closes end.
		defer close(ended)
		for {
			select {
			case <-w:
				f()
			case <-end:
				return
			}
		}
	}()
	return func() {
		s.unwatch(w)
		close(end)
		<-ended
	}
}

func (s *healthServer) watch(w chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watchers[w] = struct{}{}
}

func (s *healthServer) unwatch(w chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.watchers, w)
}

func (s *healthServer) changed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watchers {
		select {
		case w <- struct{}{}:
		default:
		}
	}
}

// NodeWatchResources sends the health of all devices at once, on every change, and often enough for the kubelet to believe it.
func (s *healthServer) NodeWatchResources(_ *drahealth.NodeWatchResourcesRequest,
	stream drahealth.DRAResourceHealth_NodeWatchResourcesServer) error {
	w := make(chan struct{}, 1)
	s.watch(w)
	defer s.unwatch(w)
	ticker := time.NewTicker(healthPeriod)
	defer ticker.Stop()
	for {
		if err := stream.Send(s.all()); err != nil {
			return err
		}
		select {
		case <-w:
		case <-ticker.C:
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (s *healthServer) all() *drahealth.NodeWatchResourcesResponse {
	faults := s.plugin.monitor.Faults()
	now := time.Now().Unix()
	response := &drahealth.NodeWatchResourcesResponse{}
	for _, d := range s.plugin.kind.Hardware().Pool.Devices() {
		h := &drahealth.DeviceHealth{
			Device:          &drahealth.DeviceIdentifier{PoolName: devices.PoolName(s.plugin.options.NodeName), DeviceName: d.Name()},
			Health:          drahealth.HealthStatus_HEALTHY,
			LastUpdatedTime: now, HealthCheckTimeoutSeconds: int64(healthTimeout / time.Second),
		}
		for _, f := range faults {
			if f.Touches(d) {
				h.Message = f.Message
				if f.Fatal {
					h.Health = drahealth.HealthStatus_UNHEALTHY
					break
				}
			}
		}
		response.Devices = append(response.Devices, h)
	}
	return response
}
