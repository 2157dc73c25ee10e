package plugin

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/gpu/claims"
	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/passthrough"
	"gpufabric.io/drivers/gpu/programs"
	"gpufabric.io/drivers/gpu/selection"
	"gpufabric.io/drivers/hardware/pci"
	"gpufabric.io/drivers/node/claimstate"
	"gpufabric.io/drivers/node/drain"
	"gpufabric.io/drivers/node/draplugin"
	"gpufabric.io/drivers/node/observed"
	"gpufabric.io/drivers/node/orders"
)

// A node's GPUs are offered either to containers, by the parts of plugin, or in form vfio to virtual machines, by a passer. The two
// never run at once: plugin has NVML open, and NVIDIA's driver does not release a GPU that a process has open. A run of either ends with
// errForms when the forms change and claims have none of its devices any more.

// errForms ends such a run.
var errForms = errors.New("the node's GPUs are being switched between containers and virtual machines")

const (
	// rescan is how often a passer looks at the PCI bus: sysfs reports neither a module that was loaded nor a GPU that was plugged in.
	rescan = 10 * time.Second
	// returnPatience bounds one try to give back GPUs that belong to no claim.
	returnPatience = 5 * time.Second
	// askPatience is how long one question to the API server may take at the start, and askPause the time between two.
	askPatience, askPause = 5 * time.Second, 2 * time.Second
)

// leaver ends a run of the plugin when the forms are vfio and GPUs are no longer offered in other forms.
type leaver struct {
	kind      *claims.Preparer
	forms     *forms
	handovers *handovers
}

// Run returns errForms then, or nil when ctx ends. A nil leaver does nothing.
func (l *leaver) Run(ctx context.Context) error {
	if l == nil {
		return nil
	}
	for {
		h, hardware := l.kind.Watch()
		wish, wished := l.forms.wish.Get()
		given, requested := l.handovers.requests.Get()
		if wish.known && wish.trouble == "" && wish.answer.Mode == devices.ModeVFIO && h.Offer.Forms.Mode == devices.ModeVFIO &&
			len(h.Pool.Devices()) == 0 && l.kind.Idle() && len(given) == 0 {
			return errForms
		}
		select {
		case <-hardware:
		case <-wished:
		case <-requested:
		case <-ctx.Done():
			return nil
		}
	}
}

// passer offers a node's GPUs to virtual machines.
type passer struct {
	plugin   *plugin
	kind     *passthrough.Kind
	forms    *forms
	dra      *draplugin.Plugin
	draining observed.Value[bool]

	condition conditions
}

// passer makes a passer where the node's GPUs are for virtual machines: where one has a GPU, or the forms are vfio and no claim has
// one in another form. It is nil otherwise.
func (s *starter) passer(ctx context.Context, p *plugin) (*passer, error) {
	journal, err := passthrough.OpenJournal(p.stateFile("passthrough.json"), s.tuning.writer)
	if err != nil {
		p.events.Report("StateUnreadable", err.Error())
	}
	if journal == nil {
		return nil, fmt.Errorf("%w: %w", errNotYet, err)
	}
	passed, others, err := s.records()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNotYet, err)
	}
	partitions, err := s.partitions(p)
	if err != nil {
		return nil, err
	}
	o := p.options
	places := passthrough.Places{Sysfs: o.SysfsRoot, Dev: o.Dev().Path, Proc: o.ProcRoot(), HostProc: o.HostProc,
		Partitions: partitions != nil}
	switcher := &passthrough.Switcher{Places: places, Journal: journal, Write: s.tuning.writeSysfs, Persistence: p.persistence}
	kind := &passthrough.Kind{Switcher: switcher, Dev: o.Dev(), Report: p.events.Report, Partitions: partitions}
	if !passed && !kind.Left() {
		if others {
			return nil, nil
		}
		mode, err := s.mode(ctx, p)
		if err != nil || mode != devices.ModeVFIO {
			return nil, err
		}
	}
	return &passer{plugin: p, kind: kind, condition: conditions{client: s.client, node: o.NodeName}}, nil
}

// records reports whether claims have GPUs that are passed through, and whether claims have some in other forms.
func (s *starter) records() (passed, others bool, err error) {
	state, _, err := claimstate.Open(filepath.Join(s.options.StateDir, "claims"), s.tuning.writer)
	if err != nil {
		return false, false, err
	}
	for _, r := range state.List() {
		for _, d := range r.Devices {
			is := passthrough.IsName(d.Device)
			passed, others = passed || is, others || !is && !d.AdminAccess
		}
	}
	return passed, others, nil
}

// mode is the form of the node's GPUs. Without an answer of the API server it is that of the last run; without one, mode waits.
func (s *starter) mode(ctx context.Context, p *plugin) (devices.Mode, error) {
	kept, _ := openForms(p.stateFile("forms.json")) // a run reports devices that cannot be read
	s.waits.Store(true)
	defer s.waits.Store(false)
	for {
		asking, cancel := context.WithTimeout(ctx, askPatience)
		node, err := s.client.CoreV1().Nodes().Get(asking, p.options.NodeName, metav1.GetOptions{})
		cancel()
		if err == nil {
			if chosen, err := p.options.formsConfig.Resolve(labels.Set(node.Labels)); err == nil {
				return chosen.Mode, nil
			}
		}
		if last := kept.last(); last != nil {
			return last.Mode, nil
		}
		if err == nil {
			return devices.ModeWhole, nil // the forms contradict each other, which a run reports
		}
		klog.FromContext(ctx).Info("Waiting for the node's labels: they decide whether its GPUs are passed through", "reason", err.Error())
		select {
		case <-time.After(askPause):
		case <-ctx.Done():
			return "", ended(ctx)
		}
	}
}

// pass runs a passer until ctx ends or the forms change.
func (s *starter) pass(ctx context.Context, v *passer, err error) error {
	if err != nil {
		if errors.Is(err, errNotYet) {
			return s.pause(ctx, s.current.Load(), err)
		}
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	self := selection.Self(s.client, s.options.NodeName)
	view := selection.Node{Name: s.options.NodeName, Core: s.client, Dynamic: s.objects, Self: self}
	kept, err := openForms(v.plugin.stateFile("forms.json"))
	if err != nil {
		v.plugin.events.Report("GPUFormsUnreadable", err.Error())
	}
	v.forms = newForms(v.plugin.options.formsConfig, v, view, v.plugin.events, kept)
	v.forms.settle = cmp.Or(v.plugin.tuning.labels, formsSettle)
	v.forms.wish.Set(wish{}) // the last run's may be those that mode has decided against
	limits, err := v.plugin.options.limits(s.tuning.writer)
	if err != nil {
		return s.pause(ctx, v.plugin, fmt.Errorf("%w: %w", errNotYet, err))
	}
	if _, _, err := v.kind.Find(ctx); err != nil { // the kubelet may prepare a claim at once
		return s.pause(ctx, v.plugin, fmt.Errorf("%w: %w", errNotYet, err))
	}
	others := claims.Driverless{Options: v.plugin.claimOptions(limits), Why: func() string { return "the node's GPUs are passed through" }}
	v.plugin.standIn.end()
	v.dra, err = draplugin.Start(ctx, draplugin.Config{
		Driver: devices.Driver, Pool: devices.PoolName(s.options.NodeName), Node: s.options.Node, Client: s.client,
		Preparer: passedKind{v.kind, others}, Metrics: v.plugin.metrics, Recorder: v.plugin.events.recorder, Writer: s.tuning.writer,
	})
	if err != nil {
		return err
	}
	defer v.dra.Stop()
	v.plugin.passing.Store(v)
	defer v.plugin.passing.Store(nil)
	defer v.plugin.bus.settle() // its GPUs left NVIDIA's driver and came back
	wg.Go(func() { self.RunWithContext(ctx) })
	wg.Go(func() {
		if err := v.forms.Run(ctx); err != nil {
			cancel(err)
		}
	})
	wg.Go(func() {
		if err := v.run(ctx); err != nil {
			cancel(err)
		}
	})
	select {
	case <-v.dra.Done():
		return v.dra.Err()
	case <-ctx.Done():
		return ended(ctx)
	}
}

// passedKind releases claims of containers as while there is no driver: one with admin access may be left.
type passedKind struct {
	*passthrough.Kind
	others claims.Driverless
}

// Unprepare implements draplugin.Preparer.
func (k passedKind) Unprepare(ctx context.Context, record claimstate.Record) error {
	if slices.ContainsFunc(record.Devices, func(d claimstate.Device) bool { return passthrough.IsName(d.Device) }) {
		return k.Kind.Unprepare(ctx, record)
	}
	return k.others.Unprepare(ctx, record)
}

// Forms implements formed.
func (v *passer) Forms() devices.Forms { return devices.Forms{Mode: devices.ModeVFIO} }

// SetForms implements formed: run compares the wanted state.
func (v *passer) SetForms(devices.Forms) {}

// run publishes the GPUs until ctx ends, or until the forms are others and no virtual machine has a GPU. It returns errForms then.
func (v *passer) run(ctx context.Context) error {
	logger := klog.FromContext(ctx)
	if _, known := v.forms.wish.Await(ctx, func(w wish) bool { return w.known || w.trouble != "" }); !known {
		return nil
	}
	v.dra.Learn()
	tick := time.NewTicker(cmp.Or(v.plugin.tuning.recheck, rescan))
	defer tick.Stop()
	for reported := ""; ; {
		wish, wished := v.forms.wish.Get()
		held, heldChanged := v.kind.Held()
		draining, drainingChanged := v.draining.Get()
		leaving := wish.known && wish.trouble == "" && wish.answer.Mode != devices.ModeVFIO
		v.giveBack(ctx)
		if leaving && held == 0 && !v.kind.Left() {
			return errForms
		}
		cards, problems, err := v.kind.Find(ctx)
		if err != nil {
			problems = append(problems, err)
		}
		if text := fmt.Sprint(problems); len(problems) > 0 && text != reported {
			v.plugin.events.Report("GPUFormNotOffered", errors.Join(problems...).Error())
			reported = text
		}
		published := v.devices(cards, leaving, draining)
		if err := v.dra.Publish(resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{
			devices.PoolName(v.plugin.options.NodeName): {Slices: passthrough.Slices(published)}}}); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		if err := v.condition.write(ctx, v.words(wish, leaving, len(published), held, problems)); err != nil && ctx.Err() == nil {
			logger.Error(err, "Could not report the forms of the node's GPUs")
		}
		select {
		case <-wished:
		case <-heldChanged:
		case <-drainingChanged:
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// giveBack gives back the GPUs that belong to no claim. A GPU that a virtual machine still has must not delay the publication.
func (v *passer) giveBack(ctx context.Context) {
	within, cancel := context.WithTimeout(ctx, returnPatience)
	defer cancel()
	if err := v.kind.Return(within); err != nil && ctx.Err() == nil {
		v.plugin.events.Report("GPUNotReturned", err.Error())
	}
}

// devices are the devices to publish. When the node's forms exclude vfio, only devices of claims are left, and new claims cannot have them.
func (v *passer) devices(cards []*passthrough.Card, leaving, draining bool) []resourceapi.Device {
	taken := v.kind.Switcher.Journal.Entries()
	var out []resourceapi.Device
	for _, c := range cards {
		_, isTaken := taken[c.Name()]
		var taints []resourceapi.DeviceTaint
		switch {
		case leaving && !isTaken:
			continue
		case leaving:
			taints = []resourceapi.DeviceTaint{{Key: devices.TaintWithdrawn, Effect: resourceapi.DeviceTaintEffectNoSchedule}}
		case draining:
			taints = []resourceapi.DeviceTaint{{Key: drain.Taint, Effect: resourceapi.DeviceTaintEffectNoSchedule}}
		}
		out = append(out, v.kind.Device(c, taints...))
	}
	return out
}

// words is the node's condition GPUForms.
func (v *passer) words(wish wish, leaving bool, offered, held int, problems []error) corev1.NodeCondition {
	message := fmt.Sprintf("%d GPUs offer %s; asked for: %s", offered, devices.ModeVFIO, wish.answer.Forms)
	if wish.answer.By != "" {
		message += ", by " + wish.answer.By
	}
	c := corev1.NodeCondition{Type: FormsCondition, Status: corev1.ConditionTrue, Reason: wish.answer.Reason}
	if c.Reason == "" {
		c.Reason = "LastRun"
	}
	switch {
	case wish.trouble != "":
		c.Status, c.Reason = corev1.ConditionFalse, "FormsContradict"
		message = wish.trouble + "; until then " + message
	case leaving:
		c.Status, c.Reason = corev1.ConditionFalse, "FormsHeld"
		message = fmt.Sprintf("the GPUs keep form %s until the %d claims of virtual machines that hold some end; ", devices.ModeVFIO, held) +
			message
	case len(problems) > 0:
		c.Status, c.Reason = corev1.ConditionFalse, "FormNotOnGPU"
		message = errors.Join(problems...).Error() + "; " + message
	}
	c.Message = message
	return c
}

// quiesce implements drain.Role for GPUs that virtual machines use.
func (v *passer) quiesce(ctx context.Context, report orders.Report) (resume func(), err error) {
	v.draining.Set(true)
	resume = func() { v.draining.Set(false) }
	last := ""
	for {
		held, changed := v.kind.Held()
		if held == 0 {
			return resume, nil
		}
		var claims []string
		for _, r := range v.dra.Records() {
			claims = append(claims, fmt.Sprintf("claim %s/%s", r.Namespace, r.Name))
		}
		slices.Sort(claims)
		if now := strings.Join(claims, ", "); now != last {
			report("waiting: virtual machines have GPUs by %s", now)
			last = now
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return resume, fmt.Errorf("given up while virtual machines have GPUs by %s", last)
		}
	}
}

// persistence switches a GPU's persistence mode by nvidia-smi, which also reaches nvidia-persistenced.
func (p *plugin) persistence(ctx context.Context, gpu pci.Address, on bool) error {
	mode := map[bool]string{true: "1", false: "0"}[on]
	cmd, err := p.programs.Command(ctx, programs.Share{Mountpoint: p.stateFile("root")}, "nvidia-smi", "-i", string(gpu), "-pm", mode)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		line, _, _ := strings.Cut(strings.TrimSpace(out.String()), "\n")
		return fmt.Errorf("%w: %s", programs.Explain(err), line)
	}
	return nil
}
