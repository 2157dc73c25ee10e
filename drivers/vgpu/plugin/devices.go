package plugin

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/klog/v2"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpufabric.io/drivers/gpu/edits"
	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/cdi"
	"gpufabric.io/drivers/vgpu/annotation"
	"gpufabric.io/drivers/vgpu/hook"
	"gpufabric.io/drivers/vgpu/instances"
)

// nodesLook is how often to check device nodes and the driver's files: a device's numbers in /proc/devices change without an event.
// Files that appear or disappear in the devices' directory are noticed at once.
const nodesLook = 10 * time.Second

// deviceFiles is the CDI spec through which containers get the shared GPUs' device nodes and the driver's files, kept up to date
// with the node.
type deviceFiles struct {
	options   *Options
	nvml      nvml.Interface
	table     *table
	nodes     edits.Capabilities
	hook      string
	directory *cdi.Dir
	// set is the last result; only one goroutine at a time uses it.
	set *edits.Set
}

func openDevices(o *Options, lib nvml.Interface, t *table) (*deviceFiles, error) {
	at := o.Driver().Locate()
	program, err := edits.Hook{Wish: o.CDIHook, Own: o.CDIHookProgram, Directory: filepath.Join(o.StateDir, "bin")}.Install()
	if err != nil {
		return nil, err
	}
	directory, err := cdi.Open(o.CDIRoot, driver, atomicfile.Writer{})
	if err != nil {
		return nil, err
	}
	return &deviceFiles{
		options: o, nvml: lib, table: t, hook: program, directory: directory,
		nodes: edits.Capabilities{ProcRoot: o.ProcRoot(), DevRoot: at.Dev.Path, HostDevRoot: at.Dev.Host},
	}, nil
}

// capabilities are the device nodes of a MIG instance.
func (f *deviceFiles) capabilities(g *inventory.GPU, i instances.Instance) ([]*specs.DeviceNode, error) {
	return f.nodes.Nodes(g.Minor, i.ID, i.Compute)
}

// find searches for the files of containers, writes the spec, and marks GPUs as unhealthy whose containers would lack a device node.
func (f *deviceFiles) find(ctx context.Context) error {
	at := f.options.Driver().Locate()
	found, err := edits.Find(f.table.node, edits.Options{
		NVML: f.nvml, DriverRoot: at.Root.Path, HostDriverRoot: at.Root.Host, DevRoot: at.Dev.Path, HostDevRoot: at.Dev.Host,
		ProcDevices: f.options.ProcDevices, HookPath: f.hook,
		Log: klog.FromContext(ctx),
	})
	if err != nil {
		return err
	}
	devices := []cdi.Device{{Name: hook.Unshared, Edits: hook.UnsharedEdits(f.options.StateDir)}}
	lacking := map[string]string{}
	for _, card := range f.table.SharedGPUs().Cards {
		own := found.GPU(card.GPU)
		if card.Mode == annotation.ModeMIG {
			own = found.Partition(card.GPU) // the instance's own nodes come when it is made
		}
		devices = append(devices, cdi.Device{Name: card.GPU.UUID, Edits: deviceEdits(found.Common(), own)})
		if err := found.Lacking(card.GPU); err != nil {
			lacking[card.GPU.UUID] = err.Error()
		}
	}
	if err := f.directory.Write(spec, devices); err != nil {
		return err
	}
	f.set = found
	f.table.lacks(ctx, lacking)
	return nil
}

// follow searches again when device nodes or the driver's files appear or disappear, or the spec is gone, until ctx ends.
func (f *deviceFiles) follow(ctx context.Context) error {
	changes := f.options.Files.Entries(ctx, f.options.Driver().Locate().Dev.Path)
	tick := time.NewTicker(nodesLook)
	defer tick.Stop()
	for {
		select {
		case <-changes:
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		if !f.set.Outdated() && f.directory.Has(spec) {
			continue
		}
		if err := f.find(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Containers get the device nodes and files that were found last")
		}
	}
}

// deviceEdits are a GPU's edits with those for every container. They omit NVIDIA_VISIBLE_DEVICES: the limiter reads the container's
// own value.
func deviceEdits(common, gpu specs.ContainerEdits) specs.ContainerEdits {
	return specs.ContainerEdits{
		Env: slices.DeleteFunc(slices.Concat(common.Env, gpu.Env), func(variable string) bool {
			return strings.HasPrefix(variable, "NVIDIA_VISIBLE_DEVICES=")
		}),
		DeviceNodes: slices.Concat(common.DeviceNodes, gpu.DeviceNodes),
		Hooks:       slices.Concat(common.Hooks, gpu.Hooks),
		Mounts:      slices.Concat(common.Mounts, gpu.Mounts),
	}
}
