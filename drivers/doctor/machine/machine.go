// Package machine is `gpufabric doctor machine`: the facts of its node that a pod of the Jobs of `doctor preflight --print-jobs`
// reports. It does not open a device and changes nothing.
package machine

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"gpufabric.io/drivers/doctor/preflight"
	"gpufabric.io/drivers/hardware/driver"
	"gpufabric.io/drivers/hardware/imex"
	"gpufabric.io/drivers/hardware/infiniband"
	"gpufabric.io/drivers/hardware/pci"
	"gpufabric.io/drivers/node/host"
	"gpufabric.io/drivers/node/options"
)

// Numbers of PCI vendors.
const (
	nvidia   = 0x10de
	mellanox = 0x15b3
)

// display is PCI's base class of display controllers: a GPU is one with or without a screen (0300, 0302).
const display = 0x03

// Place is where the node's hardware is.
type Place struct {
	// Node has the places of the driver, of /sys, of /dev and of /proc.
	options.Node
	// Runtime is the container runtime as the kubelet reports it (containerd://2.1.0), and Configuration the directories of its
	// configuration, each PATH=HOST, separated by commas; empty: they are not read.
	Runtime, Configuration string
}

// Command is `gpufabric doctor machine`.
func Command(h host.Host) *cobra.Command {
	var p Place
	var report string
	command := &cobra.Command{
		Use:    "machine",
		Short:  "Say what this node's machine has; the Jobs of gpufabric doctor preflight --print-jobs run it",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := driver.ParsePlaces(p.DriverRoot); err != nil {
				return fmt.Errorf("--driver-root: %w", err)
			}
			if _, err := driver.ParsePlace(p.DevRoot); err != nil {
				return fmt.Errorf("--dev-root: %w", err)
			}
			text := Look(cmd.Context(), p).Encode()
			if report != "" {
				if err := os.WriteFile(report, text, 0o600); err != nil {
					return fmt.Errorf("write the findings about the machine, for the kubelet to take into the pod's status: %w", err)
				}
			}
			_, err := fmt.Fprintf(host.Visible(h.Out()), "%s\n", text)
			return err
		},
	}
	flags := command.Flags()
	flags.StringVar(&p.DriverRoot, "driver-root", "/", "directories that may hold the NVIDIA driver's files, as the plugins have them")
	flags.StringVar(&p.SysfsRoot, "sysfs-root", "/sys", "directory that stands for /sys")
	flags.StringVar(&p.DevRoot, "dev-root", "/dev", "directory that stands for /dev; PATH=HOST where the node has it at another path")
	flags.StringVar(&p.ProcDevices, "proc-devices", "/proc/devices", "file that stands for /proc/devices; the rest of /proc is read beside it")
	flags.StringVar(&p.Runtime, "runtime", "", "container runtime, such as containerd://2.1.0; empty: its configuration is not read")
	flags.StringVar(&p.Configuration, "runtime-configuration", "", "directories of its configuration, comma-separated, each PATH=HOST")
	flags.StringVar(&report, "report", "/dev/termination-log", "file to write to, which the kubelet takes into the pod's status; empty: none")
	return command
}

// Look reads the machine. The answer names the files that could not be read.
func Look(ctx context.Context, p Place) preflight.Facts {
	var f preflight.Facts
	unread := func(err error) {
		if err != nil {
			f.Unread = append(f.Unread, err.Error())
		}
	}
	unread(functions(ctx, &f, p.SysfsRoot))
	search := p.Driver()
	f.Driver = search.Loaded()
	if f.Trouble, f.Says = search.Trouble(); f.GPUs == 0 && f.Driver == "" {
		f.Trouble, f.Says = "", "" // a node without a GPU does not need a driver
	}
	if f.Driver != "" {
		channels, err := imex.FS{ProcDevices: p.ProcDevices}.ChannelCount()
		if err == nil {
			f.Channels = channels
		}
		unread(err)
	}
	nodes, err := filepath.Glob(filepath.Join(search.Locate().Dev.Path, "nvidia[0-9]*"))
	unread(err)
	f.Nodes = len(nodes)
	devices, err := infiniband.NewFS(p.SysfsRoot).Scan(ctx)
	unread(err)
	if devices != nil {
		f.RDMA = len(devices.Devices)
	}
	if p.Runtime != "" {
		places, err := driver.ParsePlaces(p.Configuration)
		if err == nil {
			err = runtimeOf(p.Runtime, places, &f)
		}
		unread(err)
	}
	return f
}

// functions counts GPUs and Mellanox's network functions on the PCI bus. Virtual functions belong to virtual machines.
func functions(ctx context.Context, f *preflight.Facts, sysfs string) error {
	bus, err := pci.NewFS(sysfs).Scan(ctx, func(c pci.Class) bool { return c>>16 == display || c.Network() })
	if err != nil {
		return fmt.Errorf("read the PCI bus: %w", err)
	}
	for _, one := range bus.Functions {
		switch {
		case one.Virtual():
		case one.Vendor == nvidia && one.Class>>16 == display:
			f.GPUs++
		case one.Vendor == mellanox && one.Class.Network():
			f.Mellanox++
		}
	}
	return nil
}
