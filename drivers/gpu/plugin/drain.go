package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/gpu/claims"
	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/gpu/partition"
	"gpufabric.io/drivers/node/claimstate"
	"gpufabric.io/drivers/node/drain"
	"gpufabric.io/drivers/node/draplugin"
	"gpufabric.io/drivers/node/ledger"
	"gpufabric.io/drivers/node/metrics"
	"gpufabric.io/drivers/node/observed"
	"gpufabric.io/drivers/node/orders"
)

// awaitUndrain keeps the role from opening NVML while the GPUs are drained.
func (s *starter) awaitUndrain(ctx context.Context, p *plugin) error {
	if !s.drain.Wanted() {
		return nil
	}
	message := "the node's GPUs are drained: nothing of them is handed out, and NVML is not open, " + s.drain.Until()
	klog.FromContext(ctx).Info(message)
	p.events.Note("GPUsDrained", message)
	s.driver.set(troubleDrained, "GPUsDrained", message)
	stop := s.answerDrained(ctx, p)
	defer stop()
	return s.drain.AwaitUndrain(ctx)
}

// answerDrained serves the kubelet while the GPUs are drained. The drain may have cut off the answer to the call that released the
// last claim. The kubelet then repeats it, and without an answer the pod would stay until undrain. The slices, which the kubelet
// removes for an absent driver, keep their taint.
func (s *starter) answerDrained(ctx context.Context, p *plugin) (stop func()) {
	dra, err := draplugin.Start(ctx, draplugin.Config{
		Driver: devices.Driver, Node: s.options.Node, Client: s.client,
		Preparer: drainedPreparer{node: s.options.NodeName, drain: s.drain.Directory},
		Metrics:  metrics.New(devices.Driver), Recorder: p.events.recorder, Writer: s.tuning.writer,
	})
	if err != nil {
		klog.FromContext(ctx).Error(err, "Calls of the kubelet fail while the GPUs are drained: pods whose claims it prepares or unprepares stay")
		return func() {}
	}
	return dra.Stop
}

// drainedPreparer has no devices to prepare or unprepare.
type drainedPreparer struct {
	node  string
	drain drain.Directory
}

func (k drainedPreparer) Prepare(context.Context, *draplugin.Claim, draplugin.Progress) (*draplugin.Prepared, error) {
	return nil, k.refusal()
}

// Unprepare is called for claims that still exist: those of a node whose drain did not finish.
func (k drainedPreparer) Unprepare(context.Context, claimstate.Record) error { return k.refusal() }

func (k drainedPreparer) refusal() error {
	return draplugin.Refuse("GPUsDrained", "the GPUs of node %s are drained, and nothing touches them there %s", k.node, k.drain.Until())
}

// Started implements drain.Role.
func (s *starter) Started() error {
	if p := s.current.Load(); p.passing.Load() == nil && p.serving.Load() == nil && !s.waits.Load() {
		return errors.New("the role has not read the claims of the node's GPUs yet: try again")
	}
	return nil
}

// Quiesce implements drain.Role.
func (s *starter) Quiesce(ctx context.Context, report orders.Report) (resume func(), err error) {
	p := s.current.Load()
	if v := p.passing.Load(); v != nil {
		return v.quiesce(ctx, report)
	}
	if parts := p.serving.Load(); parts != nil {
		return parts.drainer.quiesce(ctx, s.drain.Directory, report)
	}
	return func() {}, nil // the role waits for a driver, and has given out nothing
}

// CloseNVML implements drain.Role.
func (s *starter) CloseNVML(report orders.Report) {
	if parts := s.current.Load().serving.Load(); parts != nil {
		for _, g := range parts.kind.Hardware().Node.GPUs {
			if running := partition.Processes(g); len(running) > 0 {
				report("on %s still runs, which no claim gave it: %s", g.UUID, strings.Join(running, ", "))
			}
		}
	}
	if interrupt := s.interrupt.Load(); interrupt != nil {
		(*interrupt)(drain.ErrDrained)
	}
}

// Report implements drain.Role.
func (s *starter) Report(reason, message string) { s.current.Load().events.Report(reason, message) }

// drainOwner is the holder of the GPUs in the ledger while they are drained.
const drainOwner = "drain"

// drainer waits until no pod has a GPU. It does not take a GPU away.
type drainer struct {
	// draining keeps new claims off the GPUs.
	draining  observed.Value[bool]
	kind      *claims.Preparer
	dra       recorded
	ledger    *ledger.Ledger
	handovers *handovers
	taints    publishedTaints
}

// quiesce implements drain.Role for GPUs that pods use.
func (e *drainer) quiesce(ctx context.Context, roles drain.Directory, report orders.Report) (resume func(), err error) {
	e.draining.Set(true)
	resume = func() {
		e.ledger.Release(drainOwner)
		e.draining.Set(false)
	}
	// Without the taint a claim could be allocated a GPU of the node until the kubelet misses the driver, and its pod would wait for
	// undrain.
	switch err := e.taints.await(ctx, drain.Taint, func(*devices.Device) bool { return true }); {
	case ctx.Err() != nil:
		return resume, fmt.Errorf("given up: %w", err)
	case err != nil:
		report("taint %s is not published (%v): pods whose claims are allocated a GPU of this node now wait for gpufabric undrain",
			drain.Taint, err)
	default:
		report("taint %s is published: no new claim gets a GPU of this node", drain.Taint)
	}
	return resume, e.free(ctx, roles, report)
}

// free waits until no claim and no device plugin holds any part of a GPU, and then holds all of them. It does not wait for GPUs of
// a device plugin whose role takes part in drains: that role releases them itself.
func (e *drainer) free(ctx context.Context, roles drain.Directory, report orders.Report) error {
	owner := ledger.Owner{ID: drainOwner, Name: "gpufabric drain"}
	last := ""
	for patience := time.Duration(0); ; patience = drain.ReportInterval { // the first round reports at once the reason of the wait
		given := e.handovers.requests.Now()
		own := slices.DeleteFunc(slices.Clone(e.kind.Hardware().Node.GPUs), func(g *inventory.GPU) bool {
			owner, is := given[g.UUID]
			return is && roles.TakesPart(owner+"-plugin")
		})
		turn, cancel := context.WithTimeout(ctx, patience)
		err := e.ledger.Acquire(turn, owner, reservationsOf(own...)...)
		cancel()
		var held *ledger.ConflictError
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("given up while %s", strings.TrimSpace(err.Error()))
		case !errors.As(err, &held):
			return err
		}
		if message := e.users(roles); message != last {
			report("waiting: %s; %s", err.Error(), message)
			last = message
		}
	}
}

// users lists the claims and device plugins that have devices of the node.
func (e *drainer) users(roles drain.Directory) string {
	var out []string
	for _, record := range e.dra.Records() {
		var held []string
		for _, d := range record.Devices {
			held = append(held, d.Device)
		}
		out = append(out, fmt.Sprintf("claim %s/%s has %s", record.Namespace, record.Name, strings.Join(held, ", ")))
	}
	for uuid, plugin := range e.handovers.requests.Now() {
		if roles.TakesPart(plugin + "-plugin") {
			continue // that role reports the reason of the wait itself
		}
		out = append(out, fmt.Sprintf("the device plugin %s has %s: take the GPU from it first", plugin, uuid))
	}
	slices.Sort(out)
	return "delete their pods, or kubectl drain the node: " + strings.Join(out, "; ")
}

// addDrainTaints adds the taint of a node that is being drained to all devices.
func addDrainTaints(into map[string][]resourceapi.DeviceTaint, all []*devices.Device) {
	for _, d := range all {
		into[d.Name()] = append(into[d.Name()], resourceapi.DeviceTaint{Key: drain.Taint, Effect: resourceapi.DeviceTaintEffectNoSchedule})
	}
}
