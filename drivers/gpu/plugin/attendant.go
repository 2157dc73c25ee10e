package plugin

import (
	"context"
	"fmt"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/gpu/claims"
	"gpufabric.io/drivers/gpu/edits"
	"gpufabric.io/drivers/gpu/extendedresource"
	"gpufabric.io/drivers/gpu/health"
	"gpufabric.io/drivers/gpu/inventory"
)

// attendant reacts to changes of the health of the node's GPUs.
type attendant struct {
	kind     *claims.Preparer
	layouts  *layouts
	informer *informer
	reader   *reader
	events   nodeEvents
	counted  *prometheus.CounterVec
	// restart ends the run, so that it is started again.
	restart context.CancelCauseFunc
}

var _ health.Listener = (*attendant)(nil)

// newEventCounter counts the events of GPUs.
func newEventCounter(registry *prometheus.Registry) *prometheus.CounterVec {
	events := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "gpufabric_gpu_events_total", Help: "Error events of a GPU since the plugin's start, by kind.",
	}, []string{"uuid", "kind"})
	registry.MustRegister(events)
	return events
}

// Happened implements health.Listener.
func (a *attendant) Happened(ctx context.Context, f health.Fault, first bool) {
	a.counted.WithLabelValues(f.GPU, string(f.Kind)).Inc()
	klog.FromContext(ctx).Info("GPU event", "gpu", f.GPU, "kind", f.Kind, "code", f.Code, "fatal", f.Fatal, "message", f.Message, "new", first)
	if first {
		a.informer.inform(ctx, f, corev1.EventTypeWarning, "GPUUnhealthy", f.String())
	}
}

// Healed implements health.Listener.
func (a *attendant) Healed(ctx context.Context, f health.Fault) {
	klog.FromContext(ctx).Info("GPU is healthy again", "gpu", f.GPU, "kind", f.Kind, "code", f.Code)
	if f.Fatal {
		a.kind.LayOut() // a reset brings back a lost or broken GPU without MIG instances
		a.layouts.applyAgain()
	}
	a.informer.inform(ctx, f, corev1.EventTypeNormal, "GPUHealthy", "over: "+f.String())
}

// Checked implements health.Listener. It reads the hardware again where it has changed since the last reading: a GPU came back, or
// joined the NVLink fabric late. After a GPU was plugged in the role starts again.
func (a *attendant) Checked(ctx context.Context) {
	logger := klog.FromContext(ctx)
	a.reader.driver.look(a.reader.options.Driver(), a.reader.at)
	if came := a.reader.bus.came(); len(came) > 0 {
		message := fmt.Sprintf("GPUs were plugged in at %s: NVML is started again to find them", strings.Join(came, ", "))
		logger.Info(message)
		a.events.Note("GPUsPluggedIn", message)
		a.restart(errPluggedIn)
		return
	}
	known := a.kind.Hardware().Node
	if !(inventory.Reader{NVML: a.reader.lib}).Outdated(known) {
		if a.kind.ModesChanged() {
			a.kind.LayOut()
		}
		return
	}
	node, err := a.reader.inventory(ctx)
	if err == nil {
		node = known.Keeping(node)
		if wish := a.reader.options.DevicePlugin; len(extendedresource.Select(node, wish)) > len(extendedresource.Select(known, wish)) {
			a.events.Note("GPUsReadAgain", "a GPU of --device-plugin answers again: the driver starts again, and asks for it before DRA has it")
			a.restart(errPluggedIn)
			return
		}
		var found func(context.Context) (*edits.Set, error)
		if found, err = a.reader.find(ctx, node); err == nil {
			a.kind.SetNode(node, found)
			a.layouts.applyAgain()
			a.events.Note("GPUsReadAgain", fmt.Sprintf("the node's GPUs changed: %d are offered now, %d were before", len(node.GPUs),
				len(known.GPUs)))
			return
		}
	}
	logger.Error(err, "Could not read the changed hardware")
}
