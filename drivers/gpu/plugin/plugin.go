// Package plugin is the role gpu-plugin: the one owner of a node's GPUs. It publishes every form of them in one pool of the driver
// gpu.nvidia.com, prepares claims, and taints unhealthy devices.
//
// # What a pod of this role needs
//
// Run it on every node with GPUs, as root (uid 0, so that it may reach the driver's device nodes and switch MIG modes), with
// privileged: true where MIG, time slicing or MPS is used (the driver wants CAP_SYS_ADMIN for each), no hostNetwork, no hostPID.
//
// Environment: NODE_NAME from spec.nodeName. Every flag that takes text can be given by an environment variable too (--driver-root:
// DRIVER_ROOT).
//
// Volumes, all hostPath at the same path inside as outside: --cdi-root (/var/run/cdi, DirectoryOrCreate), --kubelet-root's plugins and
// plugins_registry directories (and device-plugins with --device-plugin or, read only, beside vgpu-plugin), --handover-dir
// (/var/lib/gpufabric/handover), --mps-dir (/run/gpufabric/mps), --state-dir (/var/lib/gpufabric/gpu-plugin, DirectoryOrCreate),
// --drain-dir (/var/lib/gpufabric/drain), --dev-root (/dev), --driver-root (read only). Where the driver's root cannot be mounted at its
// own path, mount it elsewhere and give both paths: --driver-root=/host=/.
//
// RBAC (cluster-wide rules; a ValidatingAdmissionPolicy keeps each plugin to its own node's slices):
//   - resource.k8s.io resourceslices: get, list, watch, create, update, patch, delete
//   - resource.k8s.io resourceclaims: get
//   - resource.k8s.io resourceclaims/status: get, patch, update, and resourceclaims/driver: associated-node:patch, associated-node:update
//   - core nodes: get, list, watch, and nodes/status: patch (its own, and of its status the conditions GPUForms and GPUDriver alone)
//   - gpufabric.io miglayouts and vgpuprofiles: get, list, watch; miglayouts/status: patch
//   - core and events.k8s.io events: create, patch, update
package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/spf13/cobra"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/gpu/claims"
	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/edits"
	"gpufabric.io/drivers/gpu/fabricpartition"
	"gpufabric.io/drivers/gpu/health"
	"gpufabric.io/drivers/gpu/limiter/unlimited"
	"gpufabric.io/drivers/gpu/programs"
	"gpufabric.io/drivers/gpu/selection"
	"gpufabric.io/drivers/gpu/sharing"
	"gpufabric.io/drivers/hardware/pci"
	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/draplugin"
	"gpufabric.io/drivers/node/host"
	"gpufabric.io/drivers/node/ledger"
	"gpufabric.io/drivers/node/metrics"
)

// role is the subcommand's name.
const role = "gpu-plugin"

// Command is the subcommand gpu-plugin.
func Command(h host.Host) *cobra.Command {
	var o Options
	cmd := &cobra.Command{
		Use:   role,
		Short: "Offer a node's GPUs: whole, in MIG partitions and in shares",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, client, err := h.Connect(role, &o)
			if err != nil {
				return err
			}
			objects, err := dynamic.NewForConfig(host.Tune(config, role))
			if err != nil {
				return fmt.Errorf("make a client for MIGLayouts: %w", err)
			}
			o.Files = h.Watcher()
			return Run(cmd.Context(), o, h.Library(o.Driver()), client, objects)
		},
	}
	o.Bind(cmd.Flags(), h.Env, role)
	cmd.AddCommand(&cobra.Command{
		Use: driverProgram + " ENCLOSURE PROGRAM [ARG]...", Short: "Run a program of the driver in a root directory of its own", Hidden: true,
		Args: cobra.MinimumNArgs(2), DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error { return programs.Enter(args[0], args[1], args[2:]...) },
	})
	return cmd
}

// driverProgram is the subcommand with which the role starts itself to run a program of the driver.
const driverProgram = "driver-program"

// Run runs the role until ctx ends. Without objects it does not follow MIGLayouts.
func Run(ctx context.Context, o Options, lib nvml.Interface, client kubernetes.Interface, objects dynamic.Interface) error {
	return (&starter{options: o, lib: lib, client: client, objects: objects, enter: programs.Reexec(role, driverProgram)}).run(ctx)
}

// plugin is one run of the role, on an NVML that was started for it.
type plugin struct {
	options Options
	lib     nvml.Interface
	client  kubernetes.Interface
	objects dynamic.Interface
	metrics *metrics.Plugin
	events  nodeEvents
	tuning  tuning
	// These outlive the run.
	mps      sharing.Daemons
	programs programs.Runner
	driver   *driverState
	bus      *bus
	// standIn serves the kubelet until the parts do.
	standIn *standIn
	// serving are the parts, once they exist. The liveness probe may come before that.
	serving atomic.Pointer[parts]
	// passing offers the GPUs to virtual machines instead; nil: it does not.
	passing atomic.Pointer[passer]
}

// tuning has the values that tests change. Use the zero value elsewhere.
type tuning struct {
	writer atomicfile.Writer
	// writeSysfs writes to attributes of sysfs; nil: the kernel's.
	writeSysfs func(path, text string) error
	// fabric replaces the fabric manager, and modules nvidia-smi, which reads the module IDs of GPUs.
	fabric  fabricpartition.Manager
	modules func(context.Context) (map[pci.Address]int, error)
	// recheck is how often to check states without an event. settle is the minimum duration of a fatal fault; 0: the default of package
	// health.
	recheck, settle time.Duration
	// start takes the place of startPatience, labels that of formsSettle; 0: it does not.
	start, labels time.Duration
}

// parts are the parts of the role once it has read the node's hardware. Each runs by itself. They read one another's data as
// snapshots: the hardware (claims.Preparer.Watch), the faults (health.Monitor.Watch), the forms, the requests of device plugins, and
// drains.
type parts struct {
	self      cache.SharedIndexInformer // the node's object
	kind      *claims.Preparer          // prepares claims, and has the offered devices
	dra       *draplugin.Plugin         // serves the kubelet
	monitor   *health.Monitor           // finds faults
	attendant *attendant                // acts on them
	informer  *informer                 // writes them on claims and pods
	forms     *forms                    // whole, in partitions or in shares
	layouts   *layouts                  // MIGLayouts
	profiles  *profiles                 // VGPUProfiles
	handovers *handovers                // GPUs of device plugins
	counted   *countedGPUs              // GPUs of the role's own device plugin
	drainer   *drainer                  // drains
	publisher *publisher
	full      *fullGPUs        // shared GPUs that are full
	unlimited *unlimited.Watch // finds containers that use a share without the library
	leaver    *leaver          // ends the run for form vfio; nil: it is never chosen
}

// alive returns the error that has stopped the role from serving the kubelet.
func (p *plugin) alive() error {
	if v := p.passing.Load(); v != nil {
		return v.dra.Answers()
	}
	s := p.serving.Load()
	if s == nil {
		return nil
	}
	return errors.Join(s.dra.Answers(), s.counted.answers())
}

func (p *plugin) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	limits, err := p.options.limits(p.tuning.writer)
	if err != nil {
		return fmt.Errorf("%w: %w", errNotYet, err)
	}
	r, err := newReader(p, limits.By())
	if err != nil {
		return err
	}
	defer r.searches.Wait()
	defer cancel(nil)
	hardware, err := r.read(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", errNotYet, err)
	}
	p.standIn.end()
	s, err := p.assemble(ctx, r, hardware, limits, cancel)
	if err != nil {
		return err
	}
	defer s.dra.Stop()
	// The first publication already has the taints of handed-over GPUs: there is never a moment without.
	if err := s.handovers.begin(ctx); err != nil {
		return err
	}
	p.serving.Store(s)
	return s.run(ctx, cancel)
}

// assemble makes the parts. The last one registers with the kubelet.
func (p *plugin) assemble(ctx context.Context, r *reader, hardware *claims.Hardware, limits claims.Limits,
	restart context.CancelCauseFunc) (*parts, error) {
	var err error
	holders := &ledger.Ledger{}
	pool := devices.PoolName(p.options.NodeName)
	s := &parts{self: selection.Self(p.client, p.options.NodeName)}
	view := selection.Node{Name: p.options.NodeName, Core: p.client, Dynamic: p.objects, Self: s.self}
	options := p.claimOptions(limits)
	options.Capabilities = edits.Capabilities{ProcRoot: p.options.ProcRoot(), DevRoot: r.at.Dev.Path, HostDevRoot: r.at.Dev.Host}
	options.Ledger, options.Pool = holders, pool
	s.kind = claims.New(hardware, options)
	p.metrics.Registry.MustRegister(s.kind.Collectors()...)
	taints := publishedTaints{client: p.client, node: p.options.NodeName, kind: s.kind}
	if err := p.assembleHealth(ctx, s); err != nil {
		return nil, err
	}
	s.forms = newForms(p.options.formsConfig, s.kind, view, p.events, r.forms)
	s.forms.settle = cmp.Or(p.tuning.labels, formsSettle)
	s.layouts = newLayouts(s.kind, holders, view, r.demand)
	s.profiles = &profiles{kind: s.kind, view: view}
	s.full = &fullGPUs{kind: s.kind, after: p.options.FullAfter}
	s.handovers = newHandovers(p.options, s.kind, holders, taints, p.events)
	s.counted = &countedGPUs{options: p.options, kind: s.kind, monitor: s.monitor, registry: p.metrics.Registry, events: p.events,
		holders: s.handovers.holders}
	s.dra, err = draplugin.Start(ctx, draplugin.Config{
		Driver: devices.Driver, Pool: pool, Node: p.options.Node, Client: p.client,
		Preparer: servedPreparer{s.kind, &healthServer{kind: s.kind, monitor: s.monitor, pool: pool}},
		Metrics:  p.metrics, Recorder: p.events.recorder, Writer: p.tuning.writer, Ledger: holders,
		Missing: s.kind.SetMissing,
	})
	if err != nil {
		return nil, err
	}
	s.informer = newInformer(p.client, p.events, s.kind, s.dra)
	s.attendant = &attendant{kind: s.kind, layouts: s.layouts, informer: s.informer, reader: r, events: p.events,
		counted: newEventCounter(p.metrics.Registry), restart: restart}
	s.drainer = &drainer{kind: s.kind, dra: s.dra, ledger: holders, handovers: s.handovers, taints: taints}
	u := unlimitedShares{proc: p.options.HostProc, accounts: limits.Accounts, shares: limits.Shares, records: s.dra.Records, node: s.kind.Node,
		client: p.client, events: p.events.recorder, closed: p.options.LimiterClosed}
	s.unlimited = u.watch()
	p.metrics.Registry.MustRegister(unlimitedGauge(s.unlimited))
	if p.options.Passthrough {
		s.leaver = &leaver{kind: s.kind, forms: s.forms, handovers: s.handovers}
	}
	s.publisher = &publisher{kind: s.kind, monitor: s.monitor, forms: s.forms, handovers: s.handovers, draining: &s.drainer.draining,
		dra: s.dra, pool: pool, condition: conditions{client: p.client, node: p.options.NodeName}}
	return s, nil
}

// claimOptions are the options of the claims' kind that need no hardware.
func (p *plugin) claimOptions(limits claims.Limits) claims.Options {
	return claims.Options{
		TimeSlices:     sharing.TimeSlicer{Programs: p.programs, Mountpoint: p.stateFile("root")},
		MPS:            p.mps,
		MPSDir:         p.options.MPSDir,
		LeftFile:       p.stateFile("sharing-left.json"),
		PartitionsFile: p.stateFile("partitions-left.json"),
		ModesFile:      p.stateFile("mig-modes.json"),
		Writer:         p.tuning.writer,
		RemoveUnknown:  p.options.UnknownMIG == "remove",
		Events:         p.events,
		Limits:         limits,
	}
}

// assembleHealth makes the monitor, with the stored faults of an earlier run.
func (p *plugin) assembleHealth(ctx context.Context, s *parts) (err error) {
	s.monitor, err = health.New(health.Options{
		NVML: p.lib, Path: p.stateFile("faults.json"), Boot: p.options.BootID(), Now: time.Now, Writer: p.tuning.writer, Node: s.kind.Node,
		Recheck: p.tuning.recheck, Settle: p.tuning.settle,
	})
	if s.monitor == nil {
		return err
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "The stored faults could not be read")
		p.events.Report("GPUFaultsUnreadable", err.Error())
	}
	p.metrics.Registry.MustRegister(s.monitor, faultGauge{s.monitor})
	return nil
}

// run runs the parts until ctx ends, the kubelet's server fails or a part does.
func (s *parts) run(ctx context.Context, cancel context.CancelCauseFunc) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	wg.Go(func() { s.self.RunWithContext(ctx) })
	wg.Go(func() { s.informer.Run(ctx) })
	wg.Go(func() {
		if err := s.monitor.Run(ctx, s.attendant); err != nil {
			klog.FromContext(ctx).Error(err, "GPU health is not monitored")
			s.attendant.events.Report("GPUHealthNotFollowed", err.Error())
		}
	})
	wg.Go(func() { s.kind.ResumeMPS(ctx, s.dra.Records) })
	for _, part := range []interface{ Run(context.Context) error }{
		s.publisher, s.handovers, s.counted, s.forms, s.layouts, s.profiles, s.full, s.unlimited, s.leaver,
	} {
		wg.Go(func() {
			if err := part.Run(ctx); err != nil {
				cancel(err)
			}
		})
	}
	select {
	case <-s.dra.Done():
		return s.dra.Err()
	case <-ctx.Done():
		return ended(ctx)
	}
}

// stateFile is a file of the plugin's own beside its claims.
func (p *plugin) stateFile(name string) string { return filepath.Join(p.options.StateDir, name) }
