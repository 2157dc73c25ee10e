package inventory

import (
	"context"
	"os"
	"path/filepath"

	"github.com/containerd/nri/pkg/api"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpufabric.io/drivers/hardware/driver"
	"gpufabric.io/drivers/hardware/infiniband"
)

// NodePermissions are what a container may do with a node: read, write, and make one of its own.
const NodePermissions = "rwm"

// DeviceNodes are the character devices of HCAs under /dev/infiniband.
type DeviceNodes struct {
	Dev   driver.Place // /dev
	Sysfs string       // /sys; for the number of rdma_cm, which belongs to no HCA
}

// ConnectionManager is rdma_cm, the character device that belongs to no HCA. Its number is 0 where the kernel does not tell it.
func (d DeviceNodes) ConnectionManager() infiniband.CharDevice {
	return infiniband.NewFS(d.Sysfs).ConnectionManager()
}

// Stat returns the path of c on the host, and whether something stands there.
func (d DeviceNodes) Stat(c infiniband.CharDevice) (path string, err error) {
	_, err = os.Stat(d.Path(c))
	return d.HostPath(c), err
}

// Path is where this process sees c.
func (d DeviceNodes) Path(c infiniband.CharDevice) string {
	return filepath.Join(d.Dev.Path, "infiniband", c.Name)
}

// HostPath is where the host has c.
func (d DeviceNodes) HostPath(c infiniband.CharDevice) string {
	return filepath.Join(d.Dev.Host, "infiniband", c.Name)
}

// ContainerPath is where a container finds c.
func ContainerPath(c infiniband.CharDevice) string { return "/dev/infiniband/" + c.Name }

// NRI returns the character devices of an RDMA device as a container runtime takes them from a plugin, wherever the device is.
func (d DeviceNodes) NRI(ctx context.Context, device string) ([]*api.LinuxDevice, error) {
	found, err := infiniband.NewFS(d.Sysfs).CharDevices(ctx, device)
	if err != nil {
		return nil, err
	}
	nodes := make([]*api.LinuxDevice, len(found))
	for i, c := range found {
		nodes[i] = &api.LinuxDevice{Path: ContainerPath(c), Type: "c", Major: int64(c.Major), Minor: int64(c.Minor)}
		if info, err := os.Stat(d.Path(c)); err == nil {
			nodes[i].FileMode = api.FileMode(info.Mode().Perm()) // uverbs is for everybody, as udev has it; umad is root's.
		}
	}
	return nodes, nil
}

// CDI are devices as a CDI spec has them. Their type and number are those that the kernel tells in sysfs, so that a container gets the
// right device whatever stands on the host under that name: a machine without the hardware has plain files there. A device without a number
// is left to the container runtime, which takes the number of the host's node; where that is a plain file too there is no such device, and
// the spec must not make the container fail.
func (d DeviceNodes) CDI(devices []infiniband.CharDevice) []*specs.DeviceNode {
	var nodes []*specs.DeviceNode
	for _, c := range devices {
		node := &specs.DeviceNode{Path: ContainerPath(c), HostPath: d.HostPath(c), Permissions: NodePermissions}
		if c.Major != 0 {
			node.Type, node.Major, node.Minor = "c", int64(c.Major), int64(c.Minor)
		} else if info, err := os.Stat(filepath.Join(d.Dev.Path, "infiniband", c.Name)); err == nil && info.Mode()&os.ModeCharDevice == 0 {
			continue
		}
		nodes = append(nodes, node)
	}
	return nodes
}
