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

// NodePermissions are what a container may do with a device node: read, write, and mknod.
const NodePermissions = "rwm"

// DeviceNodes are the character devices of HCAs under /dev/infiniband.
type DeviceNodes struct {
	Dev   driver.Place // /dev
	Sysfs string       // /sys; for the number of rdma_cm, which belongs to no HCA
}

// ConnectionManager is rdma_cm, the character device that belongs to no HCA. Its number is 0 where the kernel does not show it.
func (d DeviceNodes) ConnectionManager() infiniband.CharDevice {
	return infiniband.NewFS(d.Sysfs).ConnectionManager()
}

// Stat returns the path of c on the host, and whether that file exists.
func (d DeviceNodes) Stat(c infiniband.CharDevice) (path string, err error) {
	_, err = os.Stat(d.Path(c))
	return d.HostPath(c), err
}

// Path is the path of c in this process.
func (d DeviceNodes) Path(c infiniband.CharDevice) string {
	return filepath.Join(d.Dev.Path, "infiniband", c.Name)
}

// HostPath is the path of c on the host.
func (d DeviceNodes) HostPath(c infiniband.CharDevice) string {
	return filepath.Join(d.Dev.Host, "infiniband", c.Name)
}

// ContainerPath is the path of c in a container.
func ContainerPath(c infiniband.CharDevice) string { return "/dev/infiniband/" + c.Name }

// NRI returns the character devices of an RDMA device in the form that NRI uses, wherever the device is.
func (d DeviceNodes) NRI(ctx context.Context, device string) ([]*api.LinuxDevice, error) {
	found, err := infiniband.NewFS(d.Sysfs).CharDevices(ctx, device)
	if err != nil {
		return nil, err
	}
	nodes := make([]*api.LinuxDevice, len(found))
	for i, c := range found {
		nodes[i] = &api.LinuxDevice{Path: ContainerPath(c), Type: "c", Major: int64(c.Major), Minor: int64(c.Minor)}
		if info, err := os.Stat(d.Path(c)); err == nil {
			nodes[i].FileMode = api.FileMode(info.Mode().Perm()) // everybody may use uverbs, as with udev's rules; umad is for root
		}
	}
	return nodes, nil
}

// CDI returns devices in the form of a CDI spec. Their type and number come from sysfs, so that a container gets the right device
// whatever the host has under that name: a machine without the hardware has plain files there. For a device without a number the
// container runtime uses the number of the host's node. Where that is a plain file too there is no such device, and the spec must
// not make the container fail.
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
