// Package extendedresource offers whole GPUs as the extended resource nvidia.com/gpu through the kubelet's device plugin API, for
// clusters that count GPUs per node. It offers a GPU only once that GPU is tainted in DRA.
package extendedresource

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpufabric.io/drivers/gpu/edits"
	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/gpu/partition"
	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/deviceplugin"
)

// Resource is the extended resource.
const Resource = "nvidia.com/gpu"

// Owner is the name under which this plugin requests GPUs in the handover.
const Owner = "nvidia-com-gpu"

// kind is the CDI kind of the GPUs; a device's name is its UUID.
const kind = "k8s.gpu.nvidia.com/gpu"

// Plugin holds the GPUs that it offers.
type Plugin struct {
	gpus []*inventory.GPU
	spec string
	find func(context.Context) (*edits.Set, error)
	lock func(ctx context.Context, uuids ...string) (unlock func(), err error)

	mu      sync.Mutex
	written *edits.Set // by which the spec was written last
}

var (
	_ deviceplugin.Backend   = (*Plugin)(nil)
	_ deviceplugin.Preferrer = (*Plugin)(nil)
	_ deviceplugin.Keeper    = (*Plugin)(nil)
	_ deviceplugin.Exclusive = (*Plugin)(nil)
)

// Select finds the requested GPUs: "all", or UUIDs. It omits a GPU in a MIG mode that only a reset ends. Every node of a cluster
// gets the same list, so UUIDs of other nodes' GPUs are no error.
func Select(n *inventory.Node, wish []string) []*inventory.GPU {
	var out []*inventory.GPU
	for _, g := range n.GPUs {
		if g.CanBeWhole() && (slices.Contains(wish, "all") || slices.Contains(wish, g.UUID)) {
			out = append(out, g)
		}
	}
	return out
}

// New writes the CDI spec of the GPUs and makes the plugin. find returns the containers' files and devices as the node has them now. lock
// keeps claims off the GPU while its mode is changed.
func New(ctx context.Context, gpus []*inventory.GPU, find func(context.Context) (*edits.Set, error), cdiRoot string,
	lock func(ctx context.Context, uuids ...string) (func(), error)) (*Plugin, error) {
	p := &Plugin{gpus: gpus, find: find, spec: filepath.Join(cdiRoot, "k8s.gpu.nvidia.com-gpu.json"), lock: lock}
	return p, p.KeepSpec(ctx)
}

// KeepSpec writes the CDI spec where it is missing, and where the driver's files or the numbers of its devices have changed. While a device
// node is missing, as during an upgrade of the driver, the earlier spec stays.
func (p *Plugin) KeepSpec(ctx context.Context) error {
	set, err := p.find(ctx)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	_, err = os.Stat(p.spec)
	there := !errors.Is(err, fs.ErrNotExist)
	if there && p.written != nil && (set == p.written || set.Lacking(p.gpus...) != nil) {
		return nil
	}
	raw, err := content(p.gpus, set)
	if err != nil {
		return fmt.Errorf("CDI spec of the GPUs of %s: %w", Resource, err)
	}
	if err := os.MkdirAll(filepath.Dir(p.spec), 0o755); err != nil {
		return fmt.Errorf("CDI spec of the GPUs of %s: %w", Resource, err)
	}
	if err := (atomicfile.Writer{}).Write(p.spec, raw, 0o644); err != nil {
		return err
	}
	p.written = set
	return nil
}

// content is the CDI spec of GPUs.
func content(gpus []*inventory.GPU, set *edits.Set) ([]byte, error) {
	spec := specs.Spec{Kind: kind, ContainerEdits: set.Common()}
	for _, g := range gpus {
		spec.Devices = append(spec.Devices, specs.Device{Name: g.UUID, ContainerEdits: set.GPU(g)})
	}
	version, err := specs.MinimumRequiredVersion(&spec)
	if err != nil {
		return nil, err
	}
	spec.Version = version
	return json.Marshal(spec)
}

// Exclusive implements deviceplugin.Exclusive: a GPU is for one pod.
func (p *Plugin) Exclusive() bool { return true }

// Spec is the file of the CDI spec.
func (p *Plugin) Spec() string { return p.spec }

// Devices returns the GPUs as the kubelet gets them. healthy reports whether new pods may get one.
func (p *Plugin) Devices(healthy func(*inventory.GPU) bool) []deviceplugin.Device {
	var out []deviceplugin.Device
	for _, g := range p.gpus {
		d := deviceplugin.Device{ID: g.UUID, Healthy: healthy(g)}
		if g.Place.NUMANode >= 0 {
			d.NUMANodes = []int{g.Place.NUMANode}
		}
		out = append(out, d)
	}
	return out
}

// Allocate returns the CDI devices of GPUs. It switches a GPU in MIG mode without instances out of that mode.
func (p *Plugin) Allocate(ctx context.Context, ids []string) (*pluginapi.ContainerAllocateResponse, error) {
	unlock, err := p.lock(ctx, ids...)
	if err != nil {
		return nil, err
	}
	defer unlock()
	response := &pluginapi.ContainerAllocateResponse{}
	for _, id := range ids {
		at := slices.IndexFunc(p.gpus, func(g *inventory.GPU) bool { return g.UUID == id })
		if at < 0 {
			return nil, fmt.Errorf("%s is not among the GPUs of %s", id, Resource)
		}
		if err := whole(p.gpus[at]); err != nil {
			return nil, err
		}
		response.CdiDevices = append(response.CdiDevices, &pluginapi.CDIDevice{Name: kind + "=" + id})
	}
	return response, nil
}

func whole(g *inventory.GPU) error {
	if g.MIG == nil {
		return nil
	}
	standing, err := partition.List(g)
	if err != nil {
		return err
	}
	if len(standing) > 0 {
		return fmt.Errorf("%s is cut into %d MIG instances: remove them (nvidia-smi mig -dci; nvidia-smi mig -dgi), or leave the GPU to DRA",
			g.UUID, len(standing))
	}
	return partition.Require(g, false)
}

// Prefer chooses GPUs that share an NVLink domain and a NUMA node with the required ones, else with most of the others.
func (p *Plugin) Prefer(available, required []string, size int) []string {
	chosen := slices.Clone(required)
	rest := slices.DeleteFunc(slices.Clone(available), func(id string) bool { return slices.Contains(required, id) })
	for len(chosen) < size && len(rest) > 0 {
		best, score := 0, -1
		for i, id := range rest {
			if s := p.nearness(id, chosen, rest); s > score {
				best, score = i, s
			}
		}
		chosen = append(chosen, rest[best])
		rest = slices.Delete(rest, best, best+1)
	}
	return chosen
}

// nearness reports how close a GPU is to those chosen; for the first one, to those that could be chosen with it.
func (p *Plugin) nearness(id string, chosen, rest []string) int {
	others := chosen
	if len(others) == 0 {
		others = rest
	}
	a := p.gpu(id)
	sum := 0
	for _, other := range others {
		b := p.gpu(other)
		if a == nil || b == nil || a == b {
			continue
		}
		if a.NVLinkDomain != "" && a.NVLinkDomain == b.NVLinkDomain {
			sum += 4
		}
		if a.Place.Switch != "" && a.Place.Switch == b.Place.Switch {
			sum += 2
		}
		if a.Place.NUMANode >= 0 && a.Place.NUMANode == b.Place.NUMANode {
			sum++
		}
	}
	return sum
}

func (p *Plugin) gpu(id string) *inventory.GPU {
	for _, g := range p.gpus {
		if g.UUID == id {
			return g
		}
	}
	return nil
}
