package plugin

import (
	"context"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
	"gpufabric.io/drivers/computedomain/session"
	"gpufabric.io/drivers/hardware/driver"
	"gpufabric.io/drivers/hardware/imex"
	"gpufabric.io/drivers/hardware/nvml"
	"gpufabric.io/drivers/node/claimstate"
	"gpufabric.io/drivers/node/draplugin"
	"gpufabric.io/drivers/node/keylock"
	"gpufabric.io/drivers/node/observed"
)

// quiet is how long a wait may take before it is worth an Event.
const quiet = 2 * time.Second

// domainFinder finds a ComputeDomain by UID in one namespace (computedomain.Client).
type domainFinder interface {
	ByUID(ctx context.Context, namespace, hint string, uid types.UID) (*v1beta1.ComputeDomain, error)
}

// preparer is the plugin's devices: the channel, which makes its node part of a domain, and the daemon, which serves that domain on
// the node.
type preparer struct {
	// namespace is where the controller makes daemon claims; others' are refused.
	namespace string
	stateDir  string
	node      *node
	daemons   *daemons
	domains   domainFinder
	fabric    observed.Value[fabric]
	imex      imex.FS
	driver    driver.Search
	bootID    func() string
	holdings  holdings
	// settle is settleTime, except in tests.
	settle time.Duration
	// mode is the configured one. The node follows it once its claims allow (sharing).
	mode v1beta1.IMEXMode
	// fabricOnly leaves a node without NVLink fabric and without claims unpublished.
	fabricOnly bool
	clique     clique
	// unready is a taint's value while the daemon or service of shared channels has not been ready for unreadyAfter; else empty.
	unready observed.Value[string]
	// hostIMEX is the node's own nvidia-imex.
	hostIMEX hostIMEX
	// joining is held while a node joins or leaves a domain whose channel several claims of the node may have.
	joining keylock.Locks
}

var (
	_ draplugin.Preparer  = (*preparer)(nil)
	_ draplugin.Recoverer = (*preparer)(nil)
	_ draplugin.Renewer   = (*preparer)(nil)
)

// preparation is a claim that is being prepared.
type preparation struct {
	*draplugin.Claim
	draplugin.Progress
}

// Prepare implements draplugin.Preparer.
func (k *preparer) Prepare(ctx context.Context, allocated *draplugin.Claim, progress draplugin.Progress) (*draplugin.Prepared, error) {
	claim := preparation{allocated, progress}
	configs, err := configsOf(claim.Devices)
	if err != nil {
		return nil, err
	}
	prepared := &draplugin.Prepared{Edits: make([]specs.ContainerEdits, len(claim.Devices))}
	var data claimData
	for i, config := range configs {
		switch config := config.(type) {
		case *v1beta1.ComputeDomainChannelConfig:
			data.Channel = types.UID(config.DomainID)
			prepared.Edits[i], err = k.prepareChannel(ctx, claim, config, &data)
		case *v1beta1.ComputeDomainDaemonConfig:
			data.Daemon = types.UID(config.DomainID)
			prepared.Edits[i], err = k.prepareDaemon(ctx, claim, &data)
		}
		if err != nil {
			return nil, err
		}
	}
	if server := data.server(); server != "" {
		record, err := session.Read(k.domainDir(server))
		if err != nil {
			klog.FromContext(ctx).Error(err, "The claim's pods will not get an Event when the IMEX session ends", "claim", klog.KObj(claim))
		}
		data.Session = record.Session
		k.holdings.hold(claim.UID, claim.Namespace, data)
	}
	prepared.Data = data
	if data.Daemon == "" {
		prepared.Attributes = func(i int) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
			attributes := device(claim.Devices[i].Device, computedomain.TypeChannel, k.fabric.Now()).Attributes
			if data.Shared {
				delete(attributes, computedomain.AttributeID) // the channel's number is the domain's
			}
			return attributes
		}
	}
	return prepared, nil
}

// configsOf returns the configuration of each device. The channels of a claim are of one domain: its record, the node's labels and the
// domain's number are kept for one. A second one would lose its number while the claim's containers have its channel.
func configsOf(devices []draplugin.AllocatedDevice) ([]v1beta1.Config, error) {
	configs := make([]v1beta1.Config, len(devices))
	domain := ""
	for i, device := range devices {
		config, err := configOf(device)
		if err != nil {
			return nil, err
		}
		if channel, is := config.(*v1beta1.ComputeDomainChannelConfig); is {
			if domain != "" && channel.DomainID != domain {
				return nil, draplugin.Refuse("InvalidConfig", "request %s: domainID %s, where another request of the claim has %s: a claim has "+
					"channels of one ComputeDomain; make a claim from the ResourceClaimTemplate of each", device.Request, channel.DomainID, domain)
			}
			domain = channel.DomainID
		}
		configs[i] = config
	}
	return configs, nil
}

// configOf returns a device's strongest configuration, which must be of the device's kind.
func configOf(device draplugin.AllocatedDevice) (v1beta1.Config, error) {
	const reason = "InvalidConfig"
	want := "ComputeDomainChannelConfig"
	if device.Device == computedomain.DaemonDevice {
		want = "ComputeDomainDaemonConfig"
	}
	if len(device.Configs) == 0 {
		return nil, draplugin.Refuse(reason, "request %s has no configuration: a claim for %s is made from the ResourceClaimTemplate of a "+
			"ComputeDomain, which brings a %s", device.Request, device.Device, want)
	}
	strongest := device.Configs[len(device.Configs)-1]
	config, err := v1beta1.Decode(strongest.Raw)
	if err != nil {
		return nil, draplugin.Refuse(reason, "%s: %w", strongest.Path, err)
	}
	_, isChannel := config.(*v1beta1.ComputeDomainChannelConfig)
	_, isDaemon := config.(*v1beta1.ComputeDomainDaemonConfig)
	if isDaemon != (device.Device == computedomain.DaemonDevice) || !isChannel && !isDaemon {
		return nil, draplugin.Refuse(reason, "%s: the device %s takes a %s only", strongest.Path, device.Device, want)
	}
	return config, nil
}

// prepareChannel makes the node part of the claim's domain and waits for the daemon here that serves it.
func (k *preparer) prepareChannel(ctx context.Context, claim preparation, config *v1beta1.ComputeDomainChannelConfig,
	data *claimData) (specs.ContainerEdits, error) {
	domain, err := k.findDomain(ctx, claim, data.Channel)
	if err != nil {
		return specs.ContainerEdits{}, err
	}
	if config.AllocationMode == v1beta1.AllocationModeAll && domain.Spec.Channel.AllocationMode != v1beta1.AllocationModeAll {
		return specs.ContainerEdits{}, draplugin.Refuse("InvalidConfig", "allocationMode is All, but ComputeDomain %s/%s has allocationMode %s",
			domain.Namespace, domain.Name, domain.Spec.Channel.AllocationMode)
	}
	if domain, err = k.awaitMode(ctx, claim, domain); err != nil {
		return specs.ContainerEdits{}, err
	}
	if domain.Status.IMEX.Shared() {
		return k.prepareShared(ctx, claim, config, domain, data)
	}
	before, err := k.awaitFabric(ctx, claim)
	if err != nil {
		return specs.ContainerEdits{}, err
	}
	if err := k.refuseWhileHostDaemonRuns(); err != nil {
		return specs.ContainerEdits{}, err
	}
	if err := k.enter(ctx, claim, *data, domain, before, k.node.join); err != nil {
		return specs.ContainerEdits{}, err
	}
	if domain, err = k.confirmMode(ctx, claim, domain); err != nil {
		return specs.ContainerEdits{}, err
	}
	if domain.Status.IMEX.Shared() {
		// The controller has gone to a mode that this node has not yet. The label would keep the clique's daemon away.
		if err := k.node.leave(ctx, data.Channel); err != nil {
			return specs.ContainerEdits{}, err
		}
		return k.prepareShared(ctx, claim, config, domain, data)
	}
	if err := k.awaitDaemon(ctx, claim, domain, domain.UID); err != nil {
		return specs.ContainerEdits{}, err
	}
	// Checked last: a node may have left its fabric, or joined one, during the wait.
	current, err := k.awaitFabric(ctx, claim)
	if err != nil {
		return specs.ContainerEdits{}, err
	}
	if current.state != nvml.Joined {
		return specs.ContainerEdits{}, nil
	}
	count := 1
	if config.AllocationMode == v1beta1.AllocationModeAll {
		count = current.channelCount()
	}
	channels, err := k.imex.ChannelRange(0, count)
	if err != nil {
		return specs.ContainerEdits{}, draplugin.Refuse("NoIMEXChannels",
			"the node's GPUs are in NVLink clique %s, but it has no IMEX channels: %w", current.clique, err)
	}
	env, err := k.environment(ctx, domain, current.clique, 0, &server{domain.Namespace, domain.Name, domain.UID})
	if err != nil {
		return specs.ContainerEdits{}, err
	}
	return specs.ContainerEdits{Env: env, DeviceNodes: deviceNodes(channels)}, nil
}

// intend records the domain of a claim, on disk and in memory. A daemon's claim that is prepared again is recorded already, and
// stays so if that fails.
func (k *preparer) intend(claim preparation, data claimData) error {
	if k.holdings.daemonOf(claim.UID) == data.Daemon && data.Daemon != "" {
		return nil
	}
	if err := claim.Intend(data); err != nil {
		return err
	}
	k.holdings.hold(claim.UID, claim.Namespace, data)
	return nil
}

// findDomain finds the claim's domain in the claim's own namespace: a tenant's claim may name any UID.
func (k *preparer) findDomain(ctx context.Context, claim preparation, uid types.UID) (*v1beta1.ComputeDomain, error) {
	domain, err := k.readDomain(ctx, claim.Namespace, claim.Annotations[computedomain.AnnotationName], uid)
	switch {
	case err != nil:
		return nil, err
	case domain == nil:
		return nil, draplugin.Refuse("NotInDomainNamespace",
			"namespace %s has no ComputeDomain with UID %s: a claim can only use a ComputeDomain of its own namespace, through the "+
				"ResourceClaimTemplate that this ComputeDomain names", claim.Namespace, uid)
	case domain.DeletionTimestamp != nil:
		return nil, draplugin.Refuse("DomainDeleted", "ComputeDomain %s/%s is being deleted", domain.Namespace, domain.Name)
	}
	computedomain.Recall(domain, k.namespace)
	return domain, nil
}

// readDomain reads a domain, or returns nil where there is none. It repeats the request while the API server has trouble, since a failed
// prepare costs the pod a minute.
func (k *preparer) readDomain(ctx context.Context, namespace, name string, uid types.UID) (*v1beta1.ComputeDomain, error) {
	var domain *v1beta1.ComputeDomain
	var lastErr error
	backoff := wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.1, Steps: 6, Cap: 5 * time.Second}
	err := backoff.DelayFunc().Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		domain, lastErr = k.domains.ByUID(ctx, namespace, name, uid)
		return lastErr == nil, nil
	})
	if err != nil && lastErr != nil {
		return nil, lastErr
	}
	return domain, err
}

// prepareDaemon gives a domain's daemon its devices, files and directories on this node.
func (k *preparer) prepareDaemon(ctx context.Context, claim preparation, data *claimData) (specs.ContainerEdits, error) {
	if claim.Namespace != k.namespace {
		return specs.ContainerEdits{}, draplugin.Refuse("NotADaemon",
			"namespace %s: only the controller's claims in namespace %s get the device %s", claim.Namespace, k.namespace, computedomain.DaemonDevice)
	}
	name, namespace := claim.Annotations[computedomain.AnnotationName], claim.Annotations[computedomain.AnnotationNamespace]
	if name == "" || namespace == "" {
		return specs.ContainerEdits{}, draplugin.Refuse("InvalidConfig",
			"the claim lacks the annotations %s and %s, by which the controller names the daemon's domain", computedomain.AnnotationName,
			computedomain.AnnotationNamespace)
	}
	current, err := k.awaitFabric(ctx, claim)
	if err != nil {
		return specs.ContainerEdits{}, err
	}
	if err := k.refuseWhileHostDaemonRuns(); err != nil {
		return specs.ContainerEdits{}, err
	}
	data.Fabric = current.clique
	if err := k.intend(claim, *data); err != nil {
		return specs.ContainerEdits{}, err
	}
	edits, err := k.domainEdits(data.Daemon)
	if err != nil {
		return specs.ContainerEdits{}, err
	}
	edits.Env = []string{
		computedomain.EnvClique + "=" + current.clique,
		computedomain.EnvUID + "=" + string(data.Daemon),
		computedomain.EnvName + "=" + name,
		computedomain.EnvNamespace + "=" + namespace,
	}
	if current.state != nvml.Joined {
		return edits, nil
	}
	ofDriver, problems, err := k.driverEdits(current.clique)
	if err != nil {
		return specs.ContainerEdits{}, err
	}
	for _, problem := range problems {
		klog.FromContext(ctx).Info("The IMEX daemon may miss a file of the driver", "problem", problem)
	}
	edits.Env = append(edits.Env, ofDriver.Env...)
	edits.Mounts = append(edits.Mounts, ofDriver.Mounts...)
	edits.DeviceNodes = ofDriver.DeviceNodes
	return edits, nil
}

// Outdated implements draplugin.Renewer. A daemon's claim that was prepared before the node was in its fabric, or in another
// clique, lacks files or devices of the daemon. The daemon's container gets that when it starts again, and it ends by itself while
// it lacks it (imexd.Supervisor.Run).
func (k *preparer) Outdated(record claimstate.Record) bool {
	data, err := decode(record)
	current := k.fabric.Now()
	return err == nil && data.Daemon != "" && !current.passing() && current.state == nvml.Joined && current.problem == "" &&
		data.Fabric != current.clique
}

// Unprepare implements draplugin.Preparer.
func (k *preparer) Unprepare(ctx context.Context, record claimstate.Record) error {
	data, err := decode(record)
	if err != nil {
		return err
	}
	if data.Shared {
		return k.leaveShared(ctx, record.UID, data)
	}
	if data.Channel != "" {
		return k.leaveOwn(ctx, record.UID, data)
	}
	return k.holdings.release(record.UID, data, k.removeDir)
}
