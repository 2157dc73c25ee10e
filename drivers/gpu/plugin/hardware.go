package plugin

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/gpu/claims"
	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/edits"
	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/gpu/partition"
	"gpufabric.io/drivers/hardware/driver"
	"gpufabric.io/drivers/node/atomicfile"
)

// reader reads the node's hardware.
type reader struct {
	options Options
	// at is where the driver was found when the plugin was started.
	at     driver.Location
	lib    nvml.Interface
	offer  devices.Options
	forms  keptForms
	demand keptByDemand
	events nodeEvents
	writer atomicfile.Writer
	// driver is the state of the node's driver. bus follows GPUs that are plugged in.
	driver *driverState
	bus    *bus
	// searches are those that still run. lacking is the last report of missing files.
	searches sync.WaitGroup
	lacking  atomic.Pointer[string]
}

// newReader makes a reader. limits returns the mechanism that limits the containers of shares.
func newReader(p *plugin, limits string) (*reader, error) {
	offer, err := p.options.offer()
	if err != nil {
		return nil, err
	}
	offer.Limits = limits
	forms, err := openForms(p.stateFile("forms.json"))
	if err != nil {
		p.events.Report("GPUFormsUnreadable", err.Error())
	}
	if forms.file != nil {
		p.metrics.Registry.MustRegister(forms.file)
	}
	demand, err := openByDemand(p.stateFile("mig-by-demand.json"), p.tuning.writer)
	if err != nil {
		p.events.Report("StateUnreadable", err.Error())
	}
	if demand.file != nil {
		p.metrics.Registry.MustRegister(demand.file)
	}
	offer.ByDemand = demand.get()
	return &reader{options: p.options, at: p.options.Driver().Locate(), lib: p.lib, offer: offer,
		forms: forms, demand: demand, events: p.events, writer: p.tuning.writer, driver: p.driver, bus: p.bus}, nil
}

// read reads the node's hardware. It starts a background search for the files of containers: the first claim waits for it, publishing
// does not.
func (r *reader) read(ctx context.Context) (*claims.Hardware, error) {
	offer := r.offer
	offer.Forms = r.options.formsConfig.Default
	if last := r.forms.last(); last != nil {
		offer.Forms = last.Forms
	}
	node, err := r.inventory(ctx)
	if err != nil {
		return nil, err
	}
	found, err := r.find(ctx, node)
	if err != nil {
		return nil, err
	}
	return &claims.Hardware{Node: node, Offer: offer, Pool: devices.NewPool(node, offer), Edits: found}, nil
}

// inventory reads the node's GPUs and reports those that it could not read.
func (r *reader) inventory(ctx context.Context) (*inventory.Node, error) {
	logger := klog.FromContext(ctx)
	locate, err := inventory.Locator(ctx, r.options.SysfsRoot)
	if err != nil {
		return nil, err
	}
	node, err := inventory.Reader{NVML: r.lib, Locate: locate}.Read()
	if err != nil {
		return nil, err
	}
	for _, problem := range node.Problems {
		logger.Error(problem, "Could not read all of the hardware")
		r.events.Report("GPUNotReadWhole", problem.Error())
	}
	for _, g := range node.GPUs {
		if g.MIG != nil && g.MIG.ModeIsPending() {
			message := pendingMode(g)
			logger.Info(message)
			r.events.Note("MIGModePending", message)
		}
	}
	logger.Info("Read the node's GPUs", "gpus", len(node.GPUs), "driverVersion", node.DriverVersion)
	return node, nil
}

// pendingMode reports how a GPU is offered until its reset, and how to reset it.
func pendingMode(g *inventory.GPU) string {
	modes := map[bool]string{true: "on", false: "off"}
	return fmt.Sprintf("%s: its MIG mode is %s, and pending to be %s by the next reset; until then it is offered as it is. %s", g.UUID,
		modes[g.MIG.Enabled], modes[g.MIG.Pending],
		partition.HowToReset(g))
}

// find starts the search for the files and devices of containers with the node's GPUs.
func (r *reader) find(ctx context.Context, node *inventory.Node) (func(context.Context) (*edits.Set, error), error) {
	logger := klog.FromContext(ctx)
	extra, err := edits.ReadExtra(r.options.ContainerEdits)
	if err != nil {
		return nil, err
	}
	return newSearch(&r.searches, func() (*edits.Set, error) {
		hook, err := edits.Hook{
			Wish: r.options.CDIHook, Own: r.options.CDIHookProgram, Directory: filepath.Join(r.options.StateDir, "bin"), Writer: r.writer,
		}.Install()
		if err != nil {
			r.driver.found(nil, nil, err.Error())
			return nil, err
		}
		set, err := edits.Find(node, edits.Options{
			NVML: r.lib, DriverRoot: r.at.Root.Path, HostDriverRoot: r.at.Root.Host, DevRoot: r.at.Dev.Path, HostDevRoot: r.at.Dev.Host,
			ProcDevices: r.options.ProcDevices, HookPath: hook, Extra: extra, Log: logger,
		})
		if err != nil {
			r.reportLacking(logger, []error{err})
			r.driver.found(nil, nil, err.Error())
			return nil, err
		}
		r.reportLacking(logger, set.Problems)
		problems := ""
		if err := errors.Join(set.Problems...); err != nil {
			problems = err.Error()
		}
		r.driver.found(set, set.Lacking(node.GPUs...), problems)
		return set, nil
	}).get, nil
}
