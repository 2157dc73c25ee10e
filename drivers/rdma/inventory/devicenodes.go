package inventory

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/nri/pkg/api"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpufabric.io/drivers/hardware/driver"
	"gpufabric.io/drivers/hardware/infiniband"
)

// NodePermissions are a container's permissions on a device node: read, write, and mknod.
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

// Opened returns the device nodes that a program needs to use the ports of an HCA, or all of its ports where none is named. The error
// names a node that is missing, and the kernel module that makes it. Health and the containers of both APIs come from this function.
//
// Every HCA needs its uverbs. A umad device that the kernel has needs its node. EFA and iWARP have none, and issm is for subnet managers
// alone. InfiniBand, RoCE and iWARP connect by rdma_cm; see Common.
func (d DeviceNodes) Opened(h *HCA, ports ...int) ([]infiniband.CharDevice, error) {
	path, err := d.Stat(h.Verbs)
	if err != nil {
		return nil, fmt.Errorf("%s cannot be opened without its device node %s (the kernel has the device, and udev or devtmpfs makes the "+
			"node): %w", h.Name, path, err)
	}
	nodes := []infiniband.CharDevice{h.Verbs}
	add := func(c infiniband.CharDevice, required bool) error {
		if c.Name == "" {
			return nil
		}
		path, err := d.Stat(c)
		switch {
		case err == nil:
			nodes = append(nodes, c)
		case required && errors.Is(err, os.ErrNotExist):
			return fmt.Errorf("%s lacks the device node %s (the kernel has the device, and udev or devtmpfs makes the node): %w", h.Name, path, err)
		case !errors.Is(err, os.ErrNotExist):
			return fmt.Errorf("device node of %s: %w", h.Name, err)
		}
		return nil
	}
	connects := false
	for _, port := range h.Ports {
		if len(ports) > 0 && !slices.Contains(ports, port.Number) {
			continue
		}
		connects = connects || port.LinkLayer == infiniband.InfiniBand || port.LinkLayer == infiniband.Ethernet
		if port.LinkLayer == infiniband.InfiniBand && port.UMAD.Name == "" && !d.loaded("infiniband_mad") {
			return nil, fmt.Errorf("%s has no umad device, since the module ib_umad is not loaded: run modprobe ib_umad", h.Name)
		}
		if err := errors.Join(add(port.UMAD, true), add(port.ISSM, false)); err != nil {
			return nil, err
		}
	}
	for _, c := range h.Management {
		if err := add(c, true); err != nil {
			return nil, err
		}
	}
	if connects {
		return nodes, d.connection(h)
	}
	return nodes, nil
}

// Missing reports why a program cannot use a port of an HCA, from its device nodes; empty: it can.
func (d DeviceNodes) Missing(h *HCA, port int) string {
	if _, err := d.Opened(h, port); err != nil {
		return err.Error()
	}
	return ""
}

// connection returns an error if rdma_cm is missing.
func (d DeviceNodes) connection(h *HCA) error {
	c := infiniband.CharDevice{Name: "rdma_cm"}
	path, err := d.Stat(c)
	switch {
	case err == nil:
		return nil
	case d.ConnectionManager().Major == 0:
		return fmt.Errorf("%s cannot be connected without %s, since the module rdma_ucm is not loaded: run modprobe rdma_ucm", h.Name, path)
	}
	return fmt.Errorf("%s cannot be connected without the device node %s (the module rdma_ucm is loaded, and udev or devtmpfs makes the "+
		"node): %w", h.Name, path, err)
}

// loaded reports whether the kernel has a class of devices, which a module registers.
func (d DeviceNodes) loaded(class string) bool {
	_, err := os.Stat(filepath.Join(d.Sysfs, "class", class))
	return err == nil
}

// Common are the existing device nodes that belong to no HCA: rdma_cm.
func (d DeviceNodes) Common() []infiniband.CharDevice {
	c := d.ConnectionManager()
	if _, err := d.Stat(c); err != nil {
		return nil
	}
	return []infiniband.CharDevice{c}
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
