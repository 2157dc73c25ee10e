// Package objects makes the API objects of nodes that do not exist, for programs that read the API alone (KWOK, Karpenter, Kueue, the
// Cluster Autoscaler): Nodes with labels and allocatable, and ResourceSlices. Each node is rendered from a fakefabric profile and read by
// the code that publishes on a real one, so the slices are those of the drivers. The package is here because fakes imports no driver, and
// no driver imports fakes.
package objects

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"gpufabric.io/drivers/computedomain"
	domains "gpufabric.io/drivers/computedomain/plugin"
	"gpufabric.io/drivers/gpu/devices"
	gpuinventory "gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/rdma/dra"
	"gpufabric.io/drivers/rdma/health"
	"gpufabric.io/drivers/rdma/inventory"
	"gpufabric.io/fakes/nvmlstate"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/tree"
)

// The drivers whose ResourceSlices can be made. Both publish devices of gpu.nvidia.com, so that a cluster has one of them.
const (
	GPUFabric = "gpufabric"
	NVIDIA    = "nvidia"
)

// Options define which objects to make.
type Options struct {
	Profile *profile.Profile
	// Nodes is how many, from node 0.
	Nodes int
	// Driver is GPUFabric, NVIDIA, or empty for no ResourceSlices.
	Driver string
	// Extended puts nvidia.com/gpu into the nodes' allocatable, as NVIDIA's device plugin does.
	Extended bool
	// KWOK marks the nodes as KWOK's, which then keeps them ready and runs pods on them.
	KWOK bool
}

// Check reports options that make no sense.
func (o Options) Check() error {
	switch {
	case o.Profile == nil:
		return errors.New("--profile: a name (see fakefabric profiles) or the path of a profile file is needed")
	case o.Nodes < 1 || o.Nodes > 10000:
		return fmt.Errorf("--nodes is %d; from 1 to 10000 are possible", o.Nodes)
	case o.Driver != GPUFabric && o.Driver != NVIDIA && o.Driver != "":
		return fmt.Errorf("--driver is %q; allowed are %s, %s, or nothing for no ResourceSlices", o.Driver, GPUFabric, NVIDIA)
	}
	return nil
}

// Make calls each with every object, node by node: first the Node, then its slices. It renders nodes into a temporary directory, one at a
// time, and removes it.
func Make(ctx context.Context, o Options, each func(runtime.Object) error) error {
	if err := o.Check(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "objects")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // it holds nothing that is needed
	for i := range o.Nodes {
		n := o.Profile.Node(i)
		if err := each(o.Node(n)); err != nil {
			return err
		}
		if o.Driver == "" {
			continue
		}
		root := filepath.Join(dir, "node")
		if err := tree.Render(ctx, tree.Options{Profile: o.Profile, Node: i, Nodes: o.Nodes, Root: root, PlainDevices: true}); err != nil {
			return err
		}
		all, err := o.Slices(ctx, n, root)
		if err != nil {
			return fmt.Errorf("node %s: %w", n.Hostname, err)
		}
		for _, slice := range all {
			if err := each(slice); err != nil {
				return err
			}
		}
		if err := os.RemoveAll(root); err != nil {
			return err
		}
	}
	return nil
}

// Slices are the ResourceSlices of a node that is rendered at root; none with an empty Driver.
func (o Options) Slices(ctx context.Context, n *profile.Node, root string) ([]*resourceapi.ResourceSlice, error) {
	var all []*resourceapi.ResourceSlice
	if o.Driver == "" {
		return nil, nil
	}
	if len(n.GPUs) > 0 {
		gpus, err := gpuSpecs(ctx, root)
		if err != nil {
			return nil, err
		}
		if o.Driver == NVIDIA {
			all = append(all, named(devices.Driver, n.Hostname, n.Hostname, []resourceapi.ResourceSliceSpec{{Devices: asNVIDIA(gpus)}})...)
		} else {
			all = append(all, named(devices.Driver, devices.PoolName(n.Hostname), n.Hostname, gpus)...)
			all = append(all, named(computedomain.Driver, computedomain.PoolName(n.Hostname), n.Hostname,
				[]resourceapi.ResourceSliceSpec{{Devices: domains.Healthy(clique(n))}})...)
		}
	}
	if o.Driver == GPUFabric && len(n.NICs) > 0 {
		ports, err := portSpecs(ctx, root)
		if err != nil {
			return nil, err
		}
		all = append(all, named(dra.Driver, n.Hostname+"-rdma", n.Hostname, ports)...)
	}
	return all, nil
}

// gpuSpecs are the devices that gpu-plugin publishes with its defaults.
func gpuSpecs(ctx context.Context, root string) ([]resourceapi.ResourceSliceSpec, error) {
	locate, err := gpuinventory.Locator(ctx, filepath.Join(root, "sys"))
	if err != nil {
		return nil, err
	}
	lib := nvmlstate.New(root)
	if r := lib.Init(); r != nvml.SUCCESS {
		return nil, fmt.Errorf("start NVML: %w", r)
	}
	defer func() { _ = lib.Shutdown() }() // the fake's state is read, and not kept
	node, err := gpuinventory.Reader{NVML: lib, Locate: locate}.Read()
	if err != nil {
		return nil, err
	}
	if err := errors.Join(node.Problems...); err != nil {
		return nil, err
	}
	var specs []resourceapi.ResourceSliceSpec
	for _, s := range devices.NewPool(node, devices.Options{}).Slices(nil) {
		specs = append(specs, resourceapi.ResourceSliceSpec{Devices: s.Devices, SharedCounters: s.SharedCounters})
	}
	return specs, nil
}

// portSpecs are the devices that rdma-plugin publishes on a node in no pool, whose ports are up.
func portSpecs(ctx context.Context, root string) ([]resourceapi.ResourceSliceSpec, error) {
	found, err := inventory.Discover(ctx, inventory.Roots{Sysfs: filepath.Join(root, "sys"), Proc: filepath.Join(root, "proc")})
	if err != nil {
		return nil, err
	}
	up := func(health.Key) health.State { return health.State{Phase: health.Up} }
	var specs []resourceapi.ResourceSliceSpec
	for _, list := range dra.Slices(dra.Ports(found, nil, dra.Options{}), found, up, dra.Options{}) {
		specs = append(specs, resourceapi.ResourceSliceSpec{Devices: list})
	}
	return specs, nil
}

// nvidiaAttributes are those of NVIDIA's DRA driver 0.5 (cmd/gpu-kubelet-plugin/deviceinfo.go), which gpu-plugin publishes under the same
// names beside its own.
func nvidiaAttributes() []resourceapi.QualifiedName {
	return []resourceapi.QualifiedName{"type", "uuid", "productName", "brand", "architecture", "cudaComputeCapability", "driverVersion",
		"cudaDriverVersion", "addressingMode", "resource.kubernetes.io/pciBusID", "resource.kubernetes.io/pcieRoot",
		"resource.kubernetes.io/numaNode"}
}

// asNVIDIA are whole GPUs with NVIDIA's attributes and their memory.
func asNVIDIA(specs []resourceapi.ResourceSliceSpec) []resourceapi.Device {
	var all []resourceapi.Device
	for _, s := range specs {
		for _, d := range s.Devices {
			out := resourceapi.Device{Name: d.Name, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{},
				Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{}}
			for _, name := range nvidiaAttributes() {
				if v, ok := d.Attributes[name]; ok {
					out.Attributes[name] = v
				}
			}
			if memory, ok := d.Capacity["memory"]; ok {
				out.Capacity["memory"] = resourceapi.DeviceCapacity{Value: memory.Value}
			}
			all = append(all, out)
		}
	}
	return all
}

// named makes a pool's slices, with the names that the resourceslice library gives but for its random end.
func named(driver, pool, node string, specs []resourceapi.ResourceSliceSpec) []*resourceapi.ResourceSlice {
	var all []*resourceapi.ResourceSlice
	for i, spec := range specs {
		spec.Driver, spec.NodeName = driver, &node
		spec.Pool = resourceapi.ResourcePool{Name: pool, Generation: 1, ResourceSliceCount: int64(len(specs))}
		all = append(all, &resourceapi.ResourceSlice{
			TypeMeta:   metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceSlice"},
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%05x-%s-%s", i, driver, strings.ReplaceAll(node, ".", "-"))}, Spec: spec})
	}
	return all
}
