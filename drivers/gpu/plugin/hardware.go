package plugin

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/klog/v2"

	"gpufabric.io/drivers/gpu/claims"
	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/edits"
	"gpufabric.io/drivers/gpu/extendedresource"
	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/gpu/partition"
)

// read looks at the node's hardware. What containers need is looked for in the background: the first claim waits for it, publishing does
// not.
func (p *plugin) read(ctx context.Context) (*claims.Hardware, error) {
	offer, err := p.options.offer()
	if err != nil {
		return nil, err
	}
	offer.Forms = p.options.formsConfig.Default
	if last, ok := p.lastForms(); ok {
		offer.Forms = last
		p.wish.set(devices.Chosen{Forms: last, Reason: "LastRun", By: "the role's last run"})
	}
	node, err := p.inventory(ctx)
	if err != nil {
		return nil, err
	}
	found, err := p.find(ctx, node)
	if err != nil {
		return nil, err
	}
	return &claims.Hardware{Node: node, Offer: offer, Pool: devices.NewPool(node, offer), Edits: found}, nil
}

// inventory reads the node's GPUs and tells of those that it could not read.
func (p *plugin) inventory(ctx context.Context) (*inventory.Node, error) {
	logger := klog.FromContext(ctx)
	locate, err := inventory.Locator(ctx, p.options.SysfsRoot)
	if err != nil {
		return nil, err
	}
	node, err := inventory.Reader{NVML: p.nvml, Locate: locate}.Read()
	if err != nil {
		return nil, err
	}
	for _, problem := range node.Problems {
		logger.Error(problem, "Hardware not read whole")
		p.report("GPUNotReadWhole", problem.Error())
	}
	for _, g := range node.GPUs {
		if g.MIG != nil && g.MIG.ModeIsPending() {
			message := pendingMode(g)
			logger.Info(message)
			p.note("MIGModePending", message)
		}
	}
	logger.Info("Read the node's GPUs", "gpus", len(node.GPUs), "driverVersion", node.DriverVersion)
	return node, nil
}

// pendingMode says what a GPU is offered as until its reset, and how it is reset.
func pendingMode(g *inventory.GPU) string {
	modes := map[bool]string{true: "on", false: "off"}
	return fmt.Sprintf("%s: its MIG mode is %s, and pending to be %s by the next reset; until then it is offered as it is. %s", g.UUID,
		modes[g.MIG.Enabled], modes[g.MIG.Pending],
		partition.HowToReset(g))
}

// find starts to look for what containers need of the node's GPUs.
func (p *plugin) find(ctx context.Context, node *inventory.Node) (func(context.Context) (*edits.Set, error), error) {
	logger := klog.FromContext(ctx)
	extra, err := edits.ReadExtra(p.options.ContainerEdits)
	if err != nil {
		return nil, err
	}
	return newSearch(&p.waiters, func() (*edits.Set, error) {
		hook, err := edits.Hook{Wish: p.options.CDIHook, Own: p.options.CDIHookProgram, Directory: p.stateFile("bin"), Writer: p.writer}.Install()
		if err != nil {
			return nil, err
		}
		set, err := edits.Find(node, edits.Options{
			NVML: p.nvml, DriverRoot: p.at.Root.Path, HostDriverRoot: p.at.Root.Host, DevRoot: p.at.Dev.Path, HostDevRoot: p.at.Dev.Host,
			ProcDevices: p.options.ProcDevices, HookPath: hook, Extra: extra, Log: logger,
		})
		if err != nil {
			p.tellLacking(logger, []error{err})
			p.driver.found(nil, nil, err.Error())
			return nil, err
		}
		p.tellLacking(logger, set.Problems)
		problems := ""
		if err := errors.Join(set.Problems...); err != nil {
			problems = err.Error()
		}
		p.driver.found(set, set.Lacking(node.GPUs...), problems)
		return set, nil
	}).get, nil
}

// reread looks at the hardware again where it is not as it was read: a GPU came back, or joined the NVLink fabric late. For one that was
// plugged in the role starts again.
func (p *plugin) reread(ctx context.Context) {
	logger := klog.FromContext(ctx)
	p.driver.look(p.options.Driver(), p.at)
	if came := p.bus.came(); len(came) > 0 {
		message := fmt.Sprintf("GPUs were plugged in at %s: NVML is started again to find them", strings.Join(came, ", "))
		logger.Info(message)
		p.note("GPUsPluggedIn", message)
		p.restart(errPluggedIn)
		return
	}
	known := p.kind.Hardware().Node
	if !(inventory.Reader{NVML: p.nvml}).Outdated(known) {
		if p.kind.ModesChanged() {
			p.kind.LayOut()
			p.changed()
		}
		return
	}
	node, err := p.inventory(ctx)
	if err == nil {
		node = known.Keeping(node)
		if wish := p.options.DevicePlugin; len(extendedresource.Select(node, wish)) > len(extendedresource.Select(known, wish)) {
			p.note("GPUsReadAgain", "a GPU of --device-plugin answers again: the driver starts again, and asks for it before DRA has it")
			p.restart(errPluggedIn)
			return
		}
		var found func(context.Context) (*edits.Set, error)
		if found, err = p.find(ctx, node); err == nil {
			p.kind.SetNode(node, found)
			p.applyAgain()
			p.note("GPUsReadAgain", fmt.Sprintf("the node's GPUs changed: %d are offered now, %d were before", len(node.GPUs), len(known.GPUs)))
			p.health.changed()
			p.changed()
			return
		}
	}
	logger.Error(err, "Changed hardware not read")
}
