// Package plugin is the DRA driver compute-domain.nvidia.com on one node: it labels the node with its NVLink clique, publishes
// a channel and a daemon, makes the node part of a compute domain when a claim for its channel is prepared, and lets the pod start
// once the domain's IMEX daemon is ready here.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
	"gpufabric.io/drivers/computedomain/hostimex"
	"gpufabric.io/drivers/hardware/imex"
	"gpufabric.io/drivers/hardware/pci"
	"gpufabric.io/drivers/node/drain"
	"gpufabric.io/drivers/node/draplugin"
	"gpufabric.io/drivers/node/host"
	"gpufabric.io/drivers/node/metrics"
	"gpufabric.io/drivers/node/observed"
	"gpufabric.io/drivers/node/options"
)

const role = "compute-domain-plugin"

// Command is `gpufabric-node compute-domain-plugin`.
func Command(h host.Host) *cobra.Command {
	var node options.Node
	var namespace, mode, socket string
	var fabricOnly bool
	command := &cobra.Command{
		Use:   role,
		Short: "Serve IMEX channels on this node (DRA driver " + computedomain.Driver + ")",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := node.Validate()
			if namespace == "" {
				err = errors.Join(err, errors.New("--namespace is empty: give the namespace in which the controller runs IMEX daemons, or set "+
					"POD_NAMESPACE"))
			}
			if !slices.Contains(v1beta1.IMEXModes(), v1beta1.IMEXMode(mode)) {
				err = errors.Join(err, fmt.Errorf("--imex %q: allowed are %v", mode, v1beta1.IMEXModes()))
			}
			if !filepath.IsAbs(socket) {
				err = errors.Join(err, fmt.Errorf("--host-imex-socket %q: must be an absolute path", socket))
			}
			if err != nil {
				return err
			}
			return run(cmd.Context(), h, node, namespace, v1beta1.IMEXMode(mode), socket, fabricOnly)
		},
	}
	node.Bind(command.Flags(), h.Env, role)
	node.BindClaims(command.Flags())
	command.Flags().StringVar(&namespace, "namespace", h.Env("POD_NAMESPACE"),
		"namespace in which the controller runs IMEX daemons (environment: POD_NAMESPACE)")
	command.Flags().StringVar(&mode, "imex", string(v1beta1.IMEXDomain),
		"whose IMEX daemons serve domains: Domain (each its own, so that the channel is for one claim at a time), Clique (those of the "+
			"clique, so that several claims and domains share the node's channels) or Host (as Clique, by the node's own service nvidia-imex)")
	command.Flags().StringVar(&socket, "host-imex-socket", DefaultHostSocket,
		"with --imex=Host: control socket of the node's nvidia-imex (its IMEX_CMD_UNIX_DOMAIN_PATH), at the same path here as on the node")
	command.Flags().BoolVar(&fabricOnly, "fabric-only", false,
		"publish no channel on a node without NVLink fabric, unless claims of compute domains are prepared there")
	return command
}

func run(ctx context.Context, h host.Host, node options.Node, namespace string, mode v1beta1.IMEXMode, socket string,
	fabricOnly bool) error {
	config, err := h.Kubernetes()
	if err != nil {
		return err
	}
	config = host.Tune(config, role)
	node.Files = h.Watcher()
	client, err := host.Client(config, role)
	if err != nil {
		return err
	}
	finder, err := computedomain.NewClient(config)
	if err != nil {
		return err
	}
	recorder, stopRecorder := host.Recorder(ctx, client, role, node.NodeName)
	defer stopRecorder()

	p := newPlugin(node, namespace, client, finder)
	p.mode, p.fabricOnly = mode, fabricOnly
	p.clique.wanted.Set(mode.Shared())
	reader := newFabricReader(h, node)
	if mode == v1beta1.IMEXHost {
		reader.hostServes = true
		p.hostIMEX.service = &hostimex.Service{Driver: node.Driver(), SysfsRoot: node.SysfsRoot, Socket: socket,
			Directory: filepath.Join(node.StateDir, "host-imex"), Execute: h.Executer()}
		p.hostIMEX.runs = reader.hostDaemon
	}
	collected := metrics.New(computedomain.Driver)
	collected.Registry.MustRegister(fabricMetric(&p.fabric))

	group, ctx := errgroup.WithContext(ctx)
	// Everything the kubelet's first call may need is under way before the kubelet can call.
	group.Go(func() error { p.node.follow(ctx); return nil })
	group.Go(func() error { p.daemons.follow(ctx); return nil })
	group.Go(func() error { p.node.labelClique(ctx, &p.fabric, p.sharing, &p.hostIMEX.state); return nil })
	group.Go(func() error { p.clique.follow(ctx, &p.fabric, finder, namespace); return nil })
	switch mode {
	case v1beta1.IMEXClique:
		group.Go(func() error { p.followDaemon(ctx); return nil })
	case v1beta1.IMEXHost:
		group.Go(func() error {
			p.followHost(ctx, func(finding hostimex.Finding) { reportHost(ctx, recorder, node.NodeName, finding) })
			return nil
		})
	}
	if p.hostIMEX.service == nil {
		p.hostIMEX.state.Set(hostState{known: true}) // removes the label of an earlier mode
	}
	// A driver that does not answer must not keep the plugin from serving claims that are prepared already.
	served := make(chan struct{})
	follow := &follower{
		reader: reader, fabric: &p.fabric, holdings: &p.holdings, served: served,
		changed: func(f fabric) { reportFabric(ctx, recorder, node.NodeName, f) },
	}
	group.Go(func() error { drain.AllRoles(node.Drain(), &p.node.pause).Run(ctx); return nil })
	group.Go(func() error {
		member := drain.Member{Directory: node.Drain(), Role: role}
		if phase, _ := member.Phase(); phase == drain.Drained { // the member reports one that cannot be read
			follow.rest()
		}
		return member.Run(ctx, follow.run)
	})
	var running atomic.Pointer[draplugin.Plugin]
	group.Go(func() error {
		alive, ready := answering(&running), started(&running) //nolint:contextcheck // a probe has the plugin's context
		return metrics.Guard(node.MetricsAuth, client).Serve(ctx, node.MetricsAddress, collected.Registry, alive, ready)
	})
	group.Go(func() error {
		plugin, err := draplugin.Start(ctx, draplugin.Config{
			Driver: computedomain.Driver, Pool: computedomain.PoolName(node.NodeName), Node: node, Client: client, Preparer: p, Metrics: collected,
			Recorder: recorder,
		})
		if err != nil {
			return err
		}
		defer plugin.Stop()
		running.Store(plugin)
		close(served)
		var background sync.WaitGroup
		defer background.Wait()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		background.Go(func() { renew(ctx, plugin, &p.fabric) })
		background.Go(func() { p.keepLabel(ctx) })
		background.Go(func() { p.keepMembers(ctx) })
		sessionEnds := &casualties{kind: p, client: client, recorder: recorder, records: plugin.Records, pause: casualtiesPause}
		background.Go(func() { sessionEnds.follow(ctx, node.Files) })
		return publish(ctx, plugin, node.NodeName, p)
	})
	return group.Wait()
}

// answering reports whether the plugin answers the kubelet, once it serves it.
func answering(running *atomic.Pointer[draplugin.Plugin]) func() error {
	return func() error {
		if plugin := running.Load(); plugin != nil {
			return plugin.Answers()
		}
		return nil
	}
}

// started reports whether the plugin serves the kubelet, and the kubelet has not refused it. It does so with a driver and without.
func started(running *atomic.Pointer[draplugin.Plugin]) func() error {
	return func() error {
		plugin := running.Load()
		if plugin == nil {
			return errors.New("the role has not begun to serve the kubelet: its log has the reason")
		}
		return plugin.Registered()
	}
}

func newFabricReader(h host.Host, node options.Node) *fabricReader {
	return &fabricReader{
		library:    h.Library(node.Driver()),
		board:      func(ctx context.Context) (board, error) { return readBoard(ctx, pci.NewFS(node.SysfsRoot)) },
		last:       newLastFabric(node.StateDir),
		hostDaemon: func() bool { return hostimex.Running(node.SysfsRoot) },
		channels:   imex.FS{ProcDevices: node.ProcDevices}.ChannelCount,
	}
}

// newPlugin makes the device kind and its watches.
func newPlugin(at options.Node, namespace string, client kubernetes.Interface, finder domainFinder) *preparer {
	return &preparer{
		namespace: namespace, stateDir: at.StateDir,
		node:    &node{name: at.NodeName, client: client},
		daemons: &daemons{node: at.NodeName, namespace: namespace, client: client},
		domains: finder, imex: imex.FS{ProcDevices: at.ProcDevices}, driver: at.Driver(), bootID: at.BootID, settle: settleTime,
	}
}

// publish updates the node's ResourceSlice by the fabric until the plugin stops.
func publish(ctx context.Context, plugin *draplugin.Plugin, nodeName string, k *preparer) error {
	type offered struct {
		fabric  fabric
		shared  bool
		unready string
		held    string // the domains that use the channels, where no channel is free
		none    bool
	}
	var last offered // claims come and go far more often than the offer changes
	for {
		f, changed := k.fabric.Get()
		unready, lameChanged := k.unready.Get()
		shared, sharingChanged := k.sharing()
		table, tableChanged := k.clique.object.Get()
		held := holders(table, f.channelCount())
		if now := (offered{f, shared, unready, fmt.Sprint(held), k.offersNone(f)}); f.known && now != last {
			last = now
			pools := map[string]resourceslice.Pool{}
			if !now.none {
				pools[computedomain.PoolName(nodeName)] = resourceslice.Pool{
					Slices: []resourceslice.Slice{{Devices: devicesOf(f, shared, unready, held)}}}
			}
			err := plugin.Publish(resourceslice.DriverResources{Pools: pools})
			if ctx.Err() != nil {
				return nil // a write that was cut short by the end is no failure
			}
			if err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-lameChanged:
		case <-sharingChanged:
		case <-tableChanged:
		case <-plugin.Done():
			return plugin.Err()
		case <-ctx.Done():
			return nil
		}
	}
}

// renew prepares claims again whose devices differ since the node's place in the fabric has changed.
func renew(ctx context.Context, plugin *draplugin.Plugin, current *observed.Value[fabric]) {
	for {
		_, changed := current.Get()
		plugin.Renew(ctx)
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// reportFabric reports a change of the node's fabric: the log, and for a problem an Event on the node.
func reportFabric(ctx context.Context, recorder record.EventRecorder, nodeName string, f fabric) {
	klog.FromContext(ctx).Info("NVLink fabric of this node", "state", f.state, "clique", f.clique, "problem", f.problem)
	if f.problem != "" {
		// Node Events name the node in place of its UID, by which kubectl describe looks for them.
		recorder.Event(&corev1.ObjectReference{Kind: "Node", Name: nodeName, UID: types.UID(nodeName)}, corev1.EventTypeWarning, f.problemKind,
			f.problem)
	}
}

// fabricMetric is 1 for the state that the node's fabric is in.
func fabricMetric(current *observed.Value[fabric]) prometheus.Collector {
	return &fabricCollector{current: current, description: prometheus.NewDesc("gpufabric_nvlink_fabric",
		"1 for the state of this node's NVLink fabric: NoFabric, Joining or Joined, or why it cannot be used.", []string{"state", "clique"}, nil)}
}

type fabricCollector struct {
	current     *observed.Value[fabric]
	description *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *fabricCollector) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- c.description
}

// Collect implements prometheus.Collector.
func (c *fabricCollector) Collect(collected chan<- prometheus.Metric) {
	f := c.current.Now()
	if !f.known {
		return
	}
	state := string(f.state)
	if f.problem != "" {
		state = f.problemKind
	}
	collected <- prometheus.MustNewConstMetric(c.description, prometheus.GaugeValue, 1, state, f.clique)
}
