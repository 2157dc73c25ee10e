package plugin

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
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

// kind is the plugin's devices: the channel, which makes its node part of a domain, and the daemon, which serves that domain on
// the node.
type kind struct {
	// namespace is where the controller makes daemon claims; nobody else's are served.
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
	// shared says that the node's channels are shared by domains from now on.
	shared bool
	clique clique
	// lame is a taint's value for as long as what serves shared channels here has not been ready for lameAfter, and empty otherwise.
	lame observed.Value[string]
	// host is the node's own nvidia-imex, where that serves; nil elsewhere. hostState is what the plugin makes known of it, and hostRuns says
	// whether it runs.
	host      hostService
	hostState observed.Value[hostState]
	hostRuns  func() bool
	// joining is held while a node joins or leaves a domain whose channel several claims of the node may have.
	joining keylock.Locks
}

var (
	_ draplugin.Kind      = (*kind)(nil)
	_ draplugin.Recoverer = (*kind)(nil)
	_ draplugin.Renewer   = (*kind)(nil)
)

// held is what a claim's record says beside its devices.
type held struct {
	// Channel is the domain that a channel of the claim made the node part of, Daemon the domain whose daemon the claim is for.
	Channel types.UID `json:"channel,omitempty"`
	Daemon  types.UID `json:"daemon,omitempty"`
	// Fabric is the clique that the node was in when a daemon's claim was prepared; empty: none.
	Fabric string `json:"fabric,omitempty"`
	// Shared says that the channel is one of the clique's, whose daemons serve several domains. Other claims of the node may be for the same
	// domain.
	Shared bool `json:"shared,omitempty"`
	// Server is, of a shared channel, the ComputeDomain of the clique whose daemon serves it. That daemon's directory outlives its claim for
	// as long as this one stands: what nvidia-imex keeps there the next daemon has to know.
	Server types.UID `json:"server,omitempty"`
	// Session is the IMEX session of the node in which the channel was handed out (package session); 0: it is not known.
	Session int64 `json:"session,omitempty"`
}

// server is the domain whose daemon serves the claim's channel; empty: the claim is for none.
func (d held) server() types.UID {
	if d.Shared {
		return d.Server
	}
	return d.Channel
}

// Prepare implements draplugin.Kind.
func (k *kind) Prepare(ctx context.Context, claim *draplugin.Claim) (*draplugin.Prepared, error) {
	prepared := &draplugin.Prepared{Edits: make([]specs.ContainerEdits, len(claim.Devices))}
	var data held
	for i, device := range claim.Devices {
		config, err := configOf(device)
		if err != nil {
			return nil, err
		}
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
			klog.FromContext(ctx).Error(err, "The claim's pods will get no Event when the IMEX session ends", "claim", klog.KObj(claim))
		}
		data.Session = record.Session
		k.holdings.hold(claim.UID, claim.Namespace, data)
	}
	prepared.Data = data
	return prepared, nil
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
func (k *kind) prepareChannel(ctx context.Context, claim *draplugin.Claim, config *v1beta1.ComputeDomainChannelConfig,
	data *held) (specs.ContainerEdits, error) {
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
	if err := k.refuseBesideHost(); err != nil {
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
	// Asked last: a node may have left its fabric, or joined one, during the wait.
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

// intend records what a claim is for, on disk and here. A daemon's claim that is prepared again is recorded already, and stays so if that
// fails.
func (k *kind) intend(claim *draplugin.Claim, data held) error {
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
func (k *kind) findDomain(ctx context.Context, claim *draplugin.Claim, uid types.UID) (*v1beta1.ComputeDomain, error) {
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
	return domain, nil
}

// readDomain reads a domain, or returns nil where there is none. It asks again while the API server has trouble, since a failed prepare
// costs the pod a minute.
func (k *kind) readDomain(ctx context.Context, namespace, name string, uid types.UID) (*v1beta1.ComputeDomain, error) {
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

// awaitFabric waits while the node's driver is on its way, or its GPUs are joining their fabric.
func (k *kind) awaitFabric(ctx context.Context, claim *draplugin.Claim) (fabric, error) {
	ready := func(f fabric) bool { return !f.passing() }
	if now := k.fabric.Now(); !ready(now) {
		claim.Waiting(waitingFor(now, k.node.name))
	}
	current, ok := k.fabric.Await(ctx, ready)
	if !ok {
		reason, message := waitingFor(current, k.node.name)
		return fabric{}, draplugin.Refuse(reason, "%s", message)
	}
	if current.problem != "" {
		return fabric{}, draplugin.Refuse(current.problemKind, "the NVLink fabric of node %s cannot be used: %s", k.node.name, current.problem)
	}
	return current, nil
}

// waitingFor says what a claim on the node waits for.
func waitingFor(f fabric, node string) (reason, message string) {
	if f.problemKind == problemNoDriver {
		return "WaitingForDriver", fmt.Sprintf("waiting for the NVIDIA driver of node %s: %s", node, f.problem)
	}
	return "WaitingForFabric", "waiting for the GPUs of node " + node + " to join their NVLink fabric"
}

// awaitDaemon waits for the daemon on this node that serves the domain, and says what is missing once that takes long. of is whose daemon
// it is: the domain's own, or that which stands for the node's clique.
func (k *kind) awaitDaemon(ctx context.Context, claim *draplugin.Claim, domain *v1beta1.ComputeDomain, of types.UID) error {
	return k.awaitQuietly(ctx, claim, "WaitingForIMEXDaemon", domain, func(ctx context.Context, waiting func(string)) error {
		return k.daemons.await(ctx, of, waiting)
	})
}

// awaitQuietly waits by await. It passes on what await reports as missing, but only once the wait has taken longer than quiet.
func (k *kind) awaitQuietly(ctx context.Context, claim *draplugin.Claim, reason string, domain *v1beta1.ComputeDomain,
	await func(ctx context.Context, waiting func(string)) error) error {
	// await reports to tell, which passes it on once the quiet time is over.
	var mu sync.Mutex
	var latest string
	loud := false
	tell := func() {
		if loud && latest != "" {
			claim.Waiting(reason, fmt.Sprintf("ComputeDomain %s on node %s: %s", domain.Name, k.node.name, latest))
		}
	}
	timer := time.AfterFunc(quiet, func() { mu.Lock(); defer mu.Unlock(); loud = true; tell() })
	defer timer.Stop()
	err := await(ctx, func(message string) { mu.Lock(); defer mu.Unlock(); latest = message; tell() })
	if err != nil {
		return draplugin.Refuse(reason, "ComputeDomain %s on node %s: %w", domain.Name, k.node.name, err)
	}
	mu.Lock()
	defer mu.Unlock()
	latest = ""
	return nil
}

// prepareDaemon gives a domain's daemon what it needs on this node.
func (k *kind) prepareDaemon(ctx context.Context, claim *draplugin.Claim, data *held) (specs.ContainerEdits, error) {
	if claim.Namespace != k.namespace {
		return specs.ContainerEdits{}, draplugin.Refuse("NotADaemon",
			"namespace %s: only the controller's claims in namespace %s get the device %s", claim.Namespace, k.namespace, computedomain.DaemonDevice)
	}
	name, namespace := claim.Annotations[computedomain.AnnotationName], claim.Annotations[computedomain.AnnotationNamespace]
	if name == "" || namespace == "" {
		return specs.ContainerEdits{}, draplugin.Refuse("InvalidConfig",
			"the claim lacks the annotations %s and %s, with which the controller says whose daemon it is", computedomain.AnnotationName,
			computedomain.AnnotationNamespace)
	}
	current, err := k.awaitFabric(ctx, claim)
	if err != nil {
		return specs.ContainerEdits{}, err
	}
	if err := k.refuseBesideHost(); err != nil {
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

// Outdated implements draplugin.Renewer. A daemon's claim that was prepared before the node was in its fabric, or in another clique,
// lacks what the daemon needs. The daemon's container gets that when it starts again, and it ends by itself while it lacks it
// (imexd.Supervisor.Run).
func (k *kind) Outdated(record claimstate.Record) bool {
	data, err := decode(record)
	current := k.fabric.Now()
	return err == nil && data.Daemon != "" && !current.passing() && current.state == nvml.Joined && current.problem == "" &&
		data.Fabric != current.clique
}

// Unprepare implements draplugin.Kind.
func (k *kind) Unprepare(ctx context.Context, record claimstate.Record) error {
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

// removeDir removes the directory of a domain that no claim of this node is for any more.
func (k *kind) removeDir(domain types.UID) error {
	if err := os.RemoveAll(k.domainDir(domain)); err != nil {
		return fmt.Errorf("remove the domain's directory: %w", err)
	}
	return nil
}

// dataVersion is raised when a field of held changes its meaning.
const dataVersion = 0

// decode reads what a claim's record says beside its devices.
func decode(record claimstate.Record) (held, error) {
	return claimstate.Decode[held](record, dataVersion)
}

// Recover implements draplugin.Recoverer: directories of domains that no claim is for are removed. Where a record cannot be read none is:
// any may be that of a daemon that runs, which could not start nvidia-imex again without.
func (k *kind) Recover(ctx context.Context, records []claimstate.Record, aside []types.UID) error {
	wanted, sure := map[string]bool{}, len(aside) == 0
	for _, record := range records {
		data, err := decode(record)
		if err != nil {
			klog.FromContext(ctx).Error(err, "It is not known what a claim is for")
			sure = false
			continue
		}
		k.holdings.hold(record.UID, record.Namespace, data)
		for _, domain := range data.domains() {
			wanted[string(domain)] = true
		}
	}
	if !sure {
		k.holdings.doubt()
		klog.FromContext(ctx).Info("No domain's directory is removed while records of claims cannot be read", "aside", aside)
		return nil
	}
	entries, err := os.ReadDir(k.domainsDir())
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list the domains' directories: %w", err)
	}
	for _, entry := range entries {
		if wanted[entry.Name()] {
			continue
		}
		if err := os.RemoveAll(filepath.Join(k.domainsDir(), entry.Name())); err != nil {
			return fmt.Errorf("remove the directory of a domain that is gone: %w", err)
		}
	}
	return nil
}

func (k *kind) domainsDir() string { return filepath.Join(k.stateDir, "domains") }

func (k *kind) domainDir(domain types.UID) string {
	return filepath.Join(k.domainsDir(), filepath.Base(string(domain)))
}

// deviceNodes gives numbers rather than host paths, so that no device file need exist on the host.
func deviceNodes(devices []imex.Device) []*specs.DeviceNode {
	mode := os.FileMode(0o666)
	nodes := make([]*specs.DeviceNode, 0, len(devices))
	for _, device := range devices {
		nodes = append(nodes, &specs.DeviceNode{Path: device.Path, Type: "c", Major: device.Major, Minor: device.Minor, FileMode: &mode,
			Permissions: "rw"})
	}
	return nodes
}

// devicesOf are the devices of a node with this fabric. A shared channel stands for all channels that the node has: any number of claims
// may have it, and each gets the number that its domain holds. lame is the value of a taint where the daemon that serves the channel is
// not ready. holders are the domains that hold all of the channels; none: some are free.
func devicesOf(f fabric, shared bool, lame string, holders []types.UID) []resourceapi.Device {
	channel := device(computedomain.ChannelDevice, computedomain.TypeChannel, f)
	if shared {
		count := int64(f.channelCount())
		channel.AllowMultipleAllocations = &shared
		channel.Attributes[computedomain.AttributeChannels] = resourceapi.DeviceAttribute{IntValue: &count}
		if len(holders) > 0 {
			channel.Attributes[computedomain.AttributeAllHeld] = resourceapi.DeviceAttribute{BoolValue: ptr.To(true)}
		}
		for _, domain := range holders {
			channel.Attributes[computedomain.HeldBy(domain)] = resourceapi.DeviceAttribute{BoolValue: ptr.To(true)}
		}
	}
	value := f.taint()
	if value == "" && shared && f.state == nvml.Joined {
		value = lame
	}
	if value != "" {
		channel.Taints = []resourceapi.DeviceTaint{{Key: computedomain.TaintFabric, Value: value,
			Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	}
	return []resourceapi.Device{channel, device(computedomain.DaemonDevice, computedomain.TypeDaemon, f)}
}

func device(name, kind string, f fabric) resourceapi.Device {
	id := int64(0)
	attributes := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		computedomain.AttributeType: {StringValue: &kind},
		computedomain.AttributeID:   {IntValue: &id},
	}
	if f.clique != "" {
		clique := strings.Clone(f.clique)
		attributes[computedomain.AttributeClique] = resourceapi.DeviceAttribute{StringValue: &clique}
	}
	return resourceapi.Device{Name: name, Attributes: attributes}
}
