package plugin

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
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
)

const (
	// controlSocket is where the role takes commands, in its state directory, which only root can enter.
	controlSocket = "control.sock"
	// DrainTaint keeps new claims off the GPUs of a node that is being drained.
	DrainTaint = "gpufabric.io/drained"
	// acceptPause is the time between two connections where the first failed.
	acceptPause = 200 * time.Millisecond
	// drainReportInterval is how often a waiting drain reports what it waits for.
	drainReportInterval = 5 * time.Second
)

// errDrained ends a run of the plugin whose GPUs are drained.
var errDrained = errors.New("the node's GPUs are drained")

// drains is the state of the drain of the node's GPUs.
type drains struct {
	// shared is the directory where the other roles read it.
	shared drain.Directory

	mu sync.Mutex
	// wanted: a drain was requested. idle: the role has closed NVML.
	wanted, idle bool
	// changed is closed and replaced at every change.
	changed chan struct{}
}

// newDrains reads the state of an earlier run. A drain that was waiting then is over: its requester has seen the role end. One for a label
// goes on: other roles have closed NVML for it, and the label, which is not known yet, decides.
func newDrains(shared drain.Directory) (*drains, error) {
	d := &drains{shared: shared, changed: make(chan struct{})}
	phase, err := shared.Phase()
	d.wanted = phase == drain.Drained
	if phase == drain.Draining && shared.By() == "" {
		err = shared.Set(drain.None)
	}
	return d, err
}

// set changes the state.
func (d *drains) set(change func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change()
	close(d.changed)
	d.changed = make(chan struct{})
}

// await waits until the state is as wanted.
func (d *drains) await(ctx context.Context, so func() bool) error {
	for {
		d.mu.Lock()
		ok, changed := so(), d.changed
		d.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (d *drains) isWanted() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.wanted
}

// hold keeps the role from opening NVML while the GPUs are drained.
func (s *starter) hold(ctx context.Context, p *plugin) error {
	d := s.drains
	if !d.isWanted() {
		return nil
	}
	message := "the node's GPUs are drained: nothing of them is handed out, and NVML is not open, " + d.shared.Until()
	klog.FromContext(ctx).Info(message)
	p.events.Note("GPUsDrained", message)
	s.driver.say(troubleDrained, "GPUsDrained", message)
	stop := s.answerDrained(ctx, p)
	defer stop()
	d.set(func() { d.idle = true })
	err := d.await(ctx, func() bool { return !d.wanted })
	d.set(func() { d.idle = false })
	return err
}

// answerDrained serves the kubelet while the GPUs are drained. The drain may have cut off the answer to the call that released the
// last claim. The kubelet then repeats it, and without an answer the pod would stay until undrain. The slices, which the kubelet
// removes for an absent driver, keep their taint.
func (s *starter) answerDrained(ctx context.Context, p *plugin) (stop func()) {
	dra, err := draplugin.Start(ctx, draplugin.Config{
		Driver: devices.Driver, Node: s.options.Node, Client: s.client,
		Preparer: drainedPreparer{node: s.options.NodeName, shared: s.drains.shared},
		Metrics:  metrics.New(devices.Driver), Recorder: p.events.recorder, Writer: s.tuning.writer,
	})
	if err != nil {
		klog.FromContext(ctx).Error(err, "The kubelet gets no answers while the GPUs are drained: pods whose claims it asks about stay")
		return func() {}
	}
	return dra.Stop
}

// drainedPreparer has no devices to prepare or unprepare.
type drainedPreparer struct {
	node   string
	shared drain.Directory
}

func (k drainedPreparer) Prepare(context.Context, *draplugin.Claim, draplugin.Progress) (*draplugin.Prepared, error) {
	return nil, k.refusal()
}

// Unprepare is called for claims that still exist: those of a node whose drain did not finish.
func (k drainedPreparer) Unprepare(context.Context, claimstate.Record) error { return k.refusal() }

func (k drainedPreparer) refusal() error {
	return draplugin.Refuse("GPUsDrained", "the GPUs of node %s are drained, and nothing touches them there %s", k.node, k.shared.Until())
}

// control takes commands from the role's socket until ctx ends.
func (s *starter) control(ctx context.Context) error {
	path := filepath.Join(s.options.StateDir, controlSocket)
	if err := os.MkdirAll(s.options.StateDir, 0o750); err != nil {
		return fmt.Errorf("make the state directory: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) { // one that a killed run left
		return fmt.Errorf("take an old control socket away: %w", err)
	}
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return fmt.Errorf("listen for gpufabric drain: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return errors.Join(fmt.Errorf("keep the control socket to root: %w", err), listener.Close())
	}
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	s.serveOrders(ctx, listener)
	return nil
}

// serveOrders takes orders from a listener until ctx ends. A connection that fails, for want of a file descriptor as a rule, is not the
// end.
func (s *starter) serveOrders(ctx context.Context, listener net.Listener) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for failed := false; ctx.Err() == nil; {
		conn, err := listener.Accept()
		if err == nil {
			failed = false
			wg.Go(func() { s.obey(ctx, conn) })
			continue
		}
		if !failed && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "gpufabric drain is not served at the moment", "tryingAgainEvery", acceptPause)
		}
		failed = true
		select {
		case <-time.After(acceptPause):
		case <-ctx.Done():
		}
	}
}

// obey executes one command and answers in lines, the last of which begins with "done" or "failed: ". It stops when the requester
// is gone.
func (s *starter) obey(ctx context.Context, conn net.Conn) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	lines := bufio.NewScanner(conn)
	if !lines.Scan() {
		return
	}
	order := lines.Text()
	go func() { // Ends with the connection.
		lines.Scan()
		cancel()
	}()
	say := func(format string, args ...any) {
		_, _ = fmt.Fprintf(conn, strings.ReplaceAll(format, "\n", " ")+"\n", args...)
	}
	var err error
	switch order {
	case "drain":
		if err = s.operator.TakeOver(ctx); err == nil {
			err = s.drain(ctx, say)
		}
	case "undrain":
		err = errors.Join(s.undrain(), s.operator.Disown(ctx))
	default:
		err = fmt.Errorf("order %q is not known: drain and undrain are", order)
	}
	if err != nil {
		say("failed: %s", strings.ReplaceAll(err.Error(), "\n", "; "))
		return
	}
	say("done")
}

// drain keeps new claims off the GPUs, waits until the present ones have ended, and makes all roles of the node close NVML.
func (s *starter) drain(ctx context.Context, say func(format string, args ...any)) error {
	d := s.drains
	if !d.isWanted() {
		if err := s.empty(ctx, say); err != nil {
			return err
		}
	}
	if err := d.shared.Set(drain.Drained); err != nil {
		return err
	}
	d.set(func() { d.wanted = true })
	if interrupt := s.interrupt.Load(); interrupt != nil {
		(*interrupt)(errDrained)
	}
	if err := d.await(ctx, func() bool { return d.idle }); err != nil {
		return fmt.Errorf("waiting for every role to close NVML: %w", err)
	}
	if err := d.awaitOthers(ctx, say); err != nil { // roles of a node that was drained already may have come back
		return err
	}
	say("every role of this driver has closed NVML, and leaves the GPUs alone until gpufabric undrain, also when it is started again")
	return nil
}

// drainFor is a drain for a label of NVIDIA's GPU operator.
func (s *starter) drainFor(ctx context.Context, by string) error {
	if s.current.Load().serving.Load() == nil && !s.waits.Load() && !s.drains.isWanted() {
		return errors.New("the role has not read yet which claims have the node's GPUs")
	}
	return s.drain(ctx, func(format string, args ...any) {
		message := fmt.Sprintf(format, args...)
		klog.FromContext(ctx).Info(message, "label", by)
		if strings.HasPrefix(message, "waiting") {
			s.current.Load().events.Report("DriverUpgradeWaits", "label "+by+" asks clients of the driver to leave this node: "+message)
		}
	})
}

// empty waits until no pod has a GPU of the node through this driver. If it fails, the GPUs are offered as before.
func (s *starter) empty(ctx context.Context, say func(format string, args ...any)) (err error) {
	d, p := s.drains, s.current.Load().serving.Load()
	if err := d.shared.Set(drain.Draining); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%w: the GPUs are offered again", err), d.shared.Set(drain.None))
		}
	}()
	if v := s.current.Load().passing.Load(); v != nil {
		v.draining.Set(true)
		defer func() {
			if err != nil {
				v.draining.Set(false)
			}
		}()
		if err := v.empty(ctx, say); err != nil {
			return err
		}
	}
	if p == nil {
		return d.awaitOthers(ctx, say) // the role waits for a driver, and has given out nothing
	}
	e := p.drainer
	e.draining.Set(true)
	defer func() {
		if err != nil {
			e.ledger.Release(drainOwner)
			e.draining.Set(false)
		}
	}()
	// Without the taint a claim could be allocated a GPU of the node until the kubelet misses the driver, and its pod would wait for
	// undrain.
	switch err := e.taints.await(ctx, DrainTaint, func(*devices.Device) bool { return true }); {
	case ctx.Err() != nil:
		return fmt.Errorf("given up: %w", err)
	case err != nil:
		say("taint %s is not published (%v): pods whose claims are allocated a GPU of this node now wait for gpufabric undrain", DrainTaint, err)
	default:
		say("taint %s is published: no new claim gets a GPU of this node", DrainTaint)
	}
	if err := e.free(ctx, d.shared, say); err != nil {
		return err
	}
	if err := d.awaitOthers(ctx, say); err != nil {
		return err
	}
	for _, g := range p.kind.Hardware().Node.GPUs {
		if running := partition.Processes(g); len(running) > 0 {
			say("on %s still runs, which no claim gave it: %s", g.UUID, strings.Join(running, ", "))
		}
	}
	return nil
}

// awaitOthers waits until the node's other roles have closed NVML, and reports what each waits for.
func (d *drains) awaitOthers(ctx context.Context, say func(format string, args ...any)) error {
	watching, stop := context.WithCancel(ctx)
	defer stop()
	changes, err := d.shared.Changes(watching)
	if err != nil {
		return err
	}
	tick := time.NewTicker(drainReportInterval) // where directories cannot be watched, a killed role changes no file
	defer tick.Stop()
	for last := ""; ; {
		holders, err := d.shared.Holders()
		if err != nil {
			return err
		}
		if len(holders) == 0 {
			return nil
		}
		words := make([]string, len(holders))
		for i, h := range holders {
			words[i] = h.String()
		}
		now := strings.Join(words, "; ")
		if now != last {
			say("waiting: %s", now)
			last = now
		}
		select {
		case <-changes:
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("given up while waiting for %s", now)
		}
	}
}

// undrain offers the GPUs again.
func (s *starter) undrain() error {
	if err := s.drains.shared.Set(drain.None); err != nil {
		return err
	}
	s.drains.set(func() { s.drains.wanted = false })
	return nil
}

// drainOwner is the holder of the GPUs in the ledger while they are drained.
const drainOwner = "drain"

// drainer waits until no pod has a GPU. It takes no GPU away.
type drainer struct {
	// draining keeps new claims off the GPUs.
	draining  observed.Value[bool]
	kind      *claims.Preparer
	dra       recorded
	ledger    *ledger.Ledger
	handovers *handovers
	taints    publishedTaints
}

// free waits until no claim and no device plugin holds any part of a GPU, and then holds all of them. It does not wait for GPUs of
// a device plugin whose role takes part in drains: that role releases them itself.
func (e *drainer) free(ctx context.Context, shared drain.Directory, say func(format string, args ...any)) error {
	owner := ledger.Owner{ID: drainOwner, Name: "gpufabric drain"}
	last := ""
	for patience := time.Duration(0); ; patience = drainReportInterval { // the first round reports at once what it waits for
		given := e.handovers.requests.Now()
		own := slices.DeleteFunc(slices.Clone(e.kind.Hardware().Node.GPUs), func(g *inventory.GPU) bool {
			owner, is := given[g.UUID]
			return is && shared.TakesPart(owner+"-plugin")
		})
		turn, cancel := context.WithTimeout(ctx, patience)
		err := e.ledger.Acquire(turn, owner, holdsOf(own)...)
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
		if message := e.holders(shared); message != last {
			say("waiting: %s; %s", err.Error(), message)
			last = message
		}
	}
}

func holdsOf(gpus []*inventory.GPU) []ledger.Reservation {
	var holds []ledger.Reservation
	for _, g := range gpus {
		holds = append(holds, claims.HoldsOf(&devices.Device{Form: devices.Whole, GPU: g})...)
	}
	return holds
}

// holders returns the holders of devices of the node.
func (e *drainer) holders(shared drain.Directory) string {
	var out []string
	for _, record := range e.dra.Records() {
		var held []string
		for _, d := range record.Devices {
			held = append(held, d.Device)
		}
		out = append(out, fmt.Sprintf("claim %s/%s has %s", record.Namespace, record.Name, strings.Join(held, ", ")))
	}
	for uuid, plugin := range e.handovers.requests.Now() {
		if shared.TakesPart(plugin + "-plugin") {
			continue // that role reports itself what it waits for
		}
		out = append(out, fmt.Sprintf("the device plugin %s has %s: take the GPU from it first", plugin, uuid))
	}
	return "delete their pods, or kubectl drain the node: " + strings.Join(sortedWords(out), "; ")
}

// addDrainTaints adds the taint of a node that is being drained to all devices.
func addDrainTaints(into map[string][]resourceapi.DeviceTaint, all []*devices.Device) {
	for _, d := range all {
		into[d.Name()] = append(into[d.Name()], resourceapi.DeviceTaint{Key: DrainTaint, Effect: resourceapi.DeviceTaintEffectNoSchedule})
	}
}
