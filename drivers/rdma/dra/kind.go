package dra

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/api/resource/validation"
	"gpufabric.io/drivers/node/claimstate"
	"gpufabric.io/drivers/node/draplugin"
	"gpufabric.io/drivers/rdma/exclusive"
	"gpufabric.io/drivers/rdma/health"
	"gpufabric.io/drivers/rdma/inventory"
)

// Preparer prepares claims of RDMA ports: a container gets the device nodes of its ports, and their names in its environment.
type Preparer struct {
	dev  inventory.DeviceNodes
	pods PodNetworks

	mu    sync.Mutex
	ports map[string]Port // by device name
	// direct is how the node's HCAs can access a GPU's memory.
	direct inventory.GPUDirect
	known  chan struct{} // closed at the first Set
}

var _ draplugin.Preparer = &Preparer{}

// NewKind makes a kind for a node with its device nodes in dev. pods moves devices into pods' networks.
func NewKind(dev inventory.DeviceNodes, pods PodNetworks) *Preparer {
	return &Preparer{dev: dev, pods: pods, known: make(chan struct{})}
}

// Set replaces the devices. direct is how the node's HCAs can access a GPU's memory.
func (k *Preparer) Set(ports []Port, direct inventory.GPUDirect) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.direct = direct
	if k.ports == nil {
		close(k.known)
	}
	k.ports = make(map[string]Port, len(ports))
	for _, p := range ports {
		k.ports[p.Name] = p
	}
}

// Prepare implements draplugin.Preparer. A claim that comes before the first discovery waits for it.
func (k *Preparer) Prepare(ctx context.Context, claim *draplugin.Claim, _ draplugin.Progress) (*draplugin.Prepared, error) {
	select {
	case <-k.known:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the node's RDMA devices to be found: %w", context.Cause(ctx))
	}
	prepared := &draplugin.Prepared{}
	ports := make([]Port, len(claim.Devices))
	prepared.Attributes = func(i int) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
		k.mu.Lock()
		defer k.mu.Unlock()
		return ports[i].attributes(k.direct)
	}
	names := make([]string, len(claim.Devices))
	environment := true
	var moved []exclusive.Device
	for i, d := range claim.Devices {
		config, err := readConfig(d.Configs)
		if err != nil {
			return nil, err
		}
		environment = environment && config.Environment != v1alpha1.RDMAEnvironmentNone
		port, err := k.port(d.Device)
		if err != nil {
			return nil, err
		}
		ports[i] = port
		edits, err := k.edits(port)
		if err != nil {
			return nil, err
		}
		switch {
		case config.Network != v1alpha1.RDMANetworkExclusive:
		case d.Admin():
			prepared.Warnings = append(prepared.Warnings, draplugin.Remark{Reason: "ConfigWithoutEffect", Message: fmt.Sprintf(
				"network: Exclusive has no effect on %s of request %s: a device with adminAccess is only observed, and stays where it is", d.Device,
				d.Request)})
		default:
			device, err := k.whole(d, port)
			if err != nil {
				return nil, err
			}
			moved = append(moved, device)
			// The device nodes change when the device moves into the pod. They are added to the container then.
			edits.DeviceNodes = slices.DeleteFunc(edits.DeviceNodes, func(n *specs.DeviceNode) bool {
				return n.Path != inventory.ContainerPath(k.dev.ConnectionManager())
			})
		}
		names[i] = port.names()
		prepared.Edits = append(prepared.Edits, edits)
	}
	if environment {
		// Every device of the pod sets the same value, since the last value counts of a variable that is set twice. NCCL passes over those
		// that a container cannot open. "=" makes NCCL compare whole names.
		list := append(slices.Clone(names), k.beside(claim)...)
		slices.Sort(list)
		for i := range prepared.Edits {
			prepared.Edits[i].Env = []string{"NCCL_IB_HCA==" + strings.Join(slices.Compact(list), ",")}
		}
	}
	if len(moved) < len(claim.Devices) && k.pods.Closed() {
		prepared.Warnings = append(prepared.Warnings, draplugin.Remark{Reason: exclusive.ReasonNotOpened, Message: exclusive.NotOpened})
	}
	if len(moved) > 0 {
		if err := k.grant(claim, moved, prepared); err != nil {
			return nil, err
		}
	}
	return prepared, nil
}

// beside are the ports that the claim's pods have by other claims, as NCCL names them.
func (k *Preparer) beside(claim *draplugin.Claim) []string {
	if claim.Beside == nil {
		return nil
	}
	var names []string
	for _, device := range claim.Beside() {
		if port, err := k.port(device); err == nil {
			names = append(names, port.names())
		}
	}
	return names
}

// names are the ports of a device, as NCCL names them.
func (p Port) names() string {
	var names []string
	for _, number := range p.Ports {
		names = append(names, fmt.Sprintf("%s:%d", p.HCA.Name, number))
	}
	return strings.Join(names, ",")
}

// Unprepare implements draplugin.Preparer. Only a device in the pod's network outlives the container. It is back when the pod's sandbox
// has stopped; if it is not, it is taken back here.
func (k *Preparer) Unprepare(ctx context.Context, record claimstate.Record) error {
	grant, ok := GrantOf(record)
	if !ok {
		return nil
	}
	return k.pods.TakeFrom(ctx, grant.Claim, grant.PodUID)
}

// Ports returns the ports of a device; nil: there is no such device.
func (k *Preparer) Ports(device string) []health.Key {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.ports[device]
	var keys []health.Key
	for _, number := range p.Ports {
		keys = append(keys, health.Key{Device: p.HCA.Name, Port: number})
	}
	return keys
}

func (k *Preparer) port(name string) (Port, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p, found := k.ports[name]
	if !found {
		return Port{}, draplugin.Refuse("DeviceGone",
			"the RDMA device %s is not on this node any more; delete the pod so that it is scheduled again", name)
	}
	return p, nil
}

// edits are the device nodes of a port: the HCA's uverbs, the port's umad and issm, and rdma_cm.
func (k *Preparer) edits(p Port) (specs.ContainerEdits, error) {
	found, err := k.dev.Opened(p.HCA, p.Ports...)
	if err != nil {
		return specs.ContainerEdits{}, err
	}
	return specs.ContainerEdits{DeviceNodes: k.dev.CDI(append(found, k.dev.Common()...))}, nil
}

// readConfig returns the strongest configuration, or the defaults where there is none.
func readConfig(configs []draplugin.OpaqueConfig) (*v1alpha1.RDMAConfig, error) {
	config := &v1alpha1.RDMAConfig{}
	config.Default()
	for _, c := range configs {
		decoded, err := validation.Decode(validation.RDMADriver, c.Raw)
		if err != nil {
			return nil, draplugin.Refuse("InvalidConfig", "%s: %v", c.Path, err)
		}
		config = decoded.(*v1alpha1.RDMAConfig) //nolint:forcetypeassert // the driver takes no other kind
	}
	return config, nil
}
