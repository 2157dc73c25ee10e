// Package explain is the command that shows, for each RDMA device of a node, the pool that has it or the selector that refused it. It
// reads the configuration, the RDMAPools and the hardware as the rdma-plugin does, and changes nothing.
package explain

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"gpufabric.io/drivers/hardware/driver"
	"gpufabric.io/drivers/node/host"
	"gpufabric.io/drivers/rdma/config"
	"gpufabric.io/drivers/rdma/exclusive"
	"gpufabric.io/drivers/rdma/health"
	"gpufabric.io/drivers/rdma/inventory"
	"gpufabric.io/drivers/rdma/pool"
)

// options are the command's flags.
type options struct {
	sysfs, dev, procDevices, config string
	kubeconfig, node                string
	manifest, labels                string
	rdmaPools, insist               bool // insist: rdmaPools was given, not only the default
	named                           bool // config was given, not only the default
	json                            bool
}

// Command is `gpufabric doctor rdma`.
func Command(h host.Host) *cobra.Command {
	var o options
	command := &cobra.Command{
		Use:   "rdma",
		Short: "Say for each RDMA device of this node which pool took it, or which selector refused it",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.insist = cmd.Flags().Changed("rdma-pools")
			o.named = cmd.Flags().Changed("config")
			return o.run(cmd.Context(), h, cmd.InOrStdin())
		},
	}
	env := func(name, fallback string) string {
		if value := h.Env(name); value != "" {
			return value
		}
		return fallback
	}
	command.Flags().StringVar(&o.sysfs, "sysfs-root", env("SYSFS_ROOT", "/sys"), "directory that stands for /sys")
	command.Flags().StringVar(&o.dev, "dev-root", env("DEV_ROOT", ""),
		"directory that stands for /dev, or PATH=HOST where the node has it at another path; empty: the node's /dev, or dev beside --sysfs-root")
	command.Flags().StringVar(&o.procDevices, "proc-devices", env("PROC_DEVICES", "/proc/devices"),
		"file that stands for /proc/devices; the rest of /proc is read beside it")
	command.Flags().StringVar(&o.config, "config", config.DefaultFile, "config.json of pools")
	command.Flags().BoolVar(&o.rdmaPools, "rdma-pools", true,
		"read the RDMAPools that select this node from the API server, where KUBECONFIG, --kubeconfig or a pod's service account leads to one")
	command.Flags().StringVar(&o.kubeconfig, "kubeconfig", "",
		"kubeconfig of the API server that has the RDMAPools; empty: KUBECONFIG, else the pod's service account")
	command.Flags().StringVar(&o.node, "node-name", env("NODE_NAME", ""),
		"name of this node's Node object, by whose labels RDMAPools select it")
	command.Flags().StringVar(&o.manifest, "manifest", "",
		"read RDMAPools (and Nodes) from this file instead of the API server; -: from standard input")
	command.Flags().StringVar(&o.labels, "node-labels", "",
		"labels of this node, as a=b,c=d, with --manifest; empty: those of its Node in the manifest")
	command.Flags().BoolVar(&o.json, "json", false, "write JSON")
	return command
}

// Answer is the result of the command.
type Answer struct {
	Devices []Device `json:"devices"`
	// Pools are the pools of the file, then the RDMAPools.
	Pools []Pool `json:"pools"`
}

// Pool is the result for one pool.
type Pool struct {
	Resource string   `json:"resource,omitempty"`
	Source   string   `json:"source"`            // where it is configured: config.json configList[0], RDMAPool rail-0
	Devices  []string `json:"devices,omitempty"` // mlx5_0
	// Conflicts are the devices that another pool has too, or has instead.
	Conflicts []string `json:"conflicts,omitempty"`
	// Unmatched are the values of the pool that select no device of this node: selectors.vendors[1] "15b4".
	Unmatched []string `json:"unmatched,omitempty"`
	// Closed describes the problem of a pod with its own network where the kernel's RDMA subsystem is in exclusive mode; empty: the
	// pod can open its devices.
	Closed string `json:"closed,omitempty"`
	// Empty is why the pool has no unit of its devices; empty: it has some.
	Empty string `json:"empty,omitempty"`
	// NotServed is why the plugin serves no such pool on this node; empty: it does.
	NotServed string `json:"notServed,omitempty"`
}

// Device is the result for one device.
type Device struct {
	Name  string `json:"name"`
	PCI   string `json:"pci,omitempty"`
	Ports []Port `json:"ports,omitempty"`
	// Pools are the resources that have the device.
	Pools []string `json:"pools,omitempty"`
	// Refusals are the reasons of the pools that do not have it, by resource.
	Refusals map[string]string `json:"refusals,omitempty"`
	// Skipped is why no pool can have the device.
	Skipped string `json:"skipped,omitempty"`
}

// Port is the result for one port.
type Port struct {
	Number    int      `json:"number"`
	LinkLayer string   `json:"linkLayer"`
	RateGbps  float64  `json:"rateGbps"`
	Nets      []string `json:"interfaces,omitempty"`
	// Trouble is why the port cannot carry traffic; empty: it can.
	Trouble string `json:"trouble,omitempty"`
}

// run reads the node and writes the answer.
func (o *options) run(ctx context.Context, h host.Host, in io.Reader) error {
	file, err := o.file(h)
	if err != nil {
		return err
	}
	listing, err := o.listing(ctx, h, in)
	if err != nil {
		return err
	}
	found, err := inventory.Discover(ctx, inventory.Roots{Sysfs: o.sysfs, Proc: filepath.Dir(o.procDevices)})
	if err != nil {
		return err
	}
	devices, err := o.deviceNodes()
	if err != nil {
		return fmt.Errorf("--dev-root: %w", err)
	}
	exclusively, modeErr := exclusive.Netlink{}.Exclusive() // A kernel without RDMA has no mode.
	answer := Explain(file, listing, found, Node{Sysfs: o.sysfs, Exclusive: exclusively && modeErr == nil,
		Devices: devices})
	if o.json {
		encoder := json.NewEncoder(h.Out())
		encoder.SetIndent("", "  ")
		return encoder.Encode(answer)
	}
	return answer.Write(h.Out(), o.config)
}

// hostDev is where pods of the chart have the node's /dev.
const hostDev = "/host/dev"

// deviceNodes is where the node's device nodes are; nil: they are not beside the sysfs tree that was given.
func (o *options) deviceNodes() (*inventory.DeviceNodes, error) {
	place := driver.Here("/dev")
	if sibling := filepath.Join(filepath.Dir(o.sysfs), "dev"); o.dev != "" {
		var err error
		if place, err = driver.ParsePlace(o.dev); err != nil {
			return nil, err
		}
	} else if o.sysfs != "/sys" {
		if _, err := os.Stat(sibling); err != nil {
			return nil, nil //nolint:nilnil // a tree of sysfs alone
		}
		place = driver.Here(sibling)
	} else if _, err := os.Stat(hostDev); err == nil {
		place.Path = hostDev
	}
	return &inventory.DeviceNodes{Dev: place, Sysfs: o.sysfs}, nil
}

// Node is the part of the node's state on which the answer depends.
type Node struct {
	Sysfs     string // /sys: the health of ports is read there, once
	Exclusive bool   // the kernel's RDMA subsystem is in exclusive mode
	// Devices has the device nodes; nil: they are not looked at.
	Devices *inventory.DeviceNodes
}

// Explain returns the result for each device and each pool.
func Explain(file *config.Config, listing *pool.Listing, found *inventory.Inventory, node Node) Answer {
	definitions := pool.Definitions(file, listing.Pools)
	selection := pool.Select(definitions, found)
	answer := Answer{Devices: explainDevices(selection, found, node)}
	for _, d := range definitions {
		p := Pool{Resource: d.Resource(), Source: d.Source, NotServed: selection.Refused[d.Source]}
		if i := slices.IndexFunc(selection.Pools, func(selected pool.Pool) bool { return selected.Source == d.Source }); i >= 0 {
			p.Conflicts, p.Empty = selection.Pools[i].Conflicts, selection.Pools[i].Empty()
			for _, v := range selection.Pools[i].Unmatched {
				p.Unmatched = append(p.Unmatched, fmt.Sprintf("%s %q", v.Path, v.Text))
			}
			const devicePlugin = true // The plugin's default: its units are never moved.
			if node.Exclusive && selection.Pools[i].Closed(devicePlugin) {
				p.Closed = exclusive.NotOpened
			}
			for _, m := range selection.Pools[i].Members {
				p.Devices = append(p.Devices, m.HCA.Name)
			}
		}
		answer.Pools = append(answer.Pools, p)
	}
	for i := range listing.Pools {
		if p := &listing.Pools[i]; p.Mistake != nil {
			answer.Pools = append(answer.Pools, Pool{Resource: p.Config.Resource(), Source: p.Source(), NotServed: p.Mistake.Error()})
		}
	}
	for _, name := range listing.Others {
		answer.Pools = append(answer.Pools, Pool{Source: "RDMAPool " + name, NotServed: "its nodeSelector does not select this node"})
	}
	return answer
}

func explainDevices(selection *pool.Selection, found *inventory.Inventory, node Node) []Device {
	var devices []Device
	for i, v := range selection.Verdicts {
		d := Device{Name: v.Device, PCI: v.PCI, Pools: v.Pools, Refusals: v.Refusals, Skipped: v.Skipped}
		if v.Skipped == "" {
			h := &found.HCAs[i]
			watch := health.Ports(&h.Device)
			if node.Devices != nil {
				watch = health.PortsOf(h, *node.Devices)
			}
			for n, watched := range watch {
				p := h.Ports[n]
				port := Port{Number: p.Number, LinkLayer: string(p.LinkLayer), RateGbps: p.Rate, Trouble: health.Read(node.Sysfs, watched)}
				for _, net := range p.Nets {
					port.Nets = append(port.Nets, net.Name)
				}
				d.Ports = append(d.Ports, port)
			}
		}
		devices = append(devices, d)
	}
	return devices
}

// Write writes a table with a line for each device and each pool's answer. Problems of the pools themselves follow below.
func (a *Answer) Write(out io.Writer, file string) error {
	served := slices.DeleteFunc(slices.Clone(a.Pools), func(p Pool) bool { return p.NotServed != "" })
	if len(served) == 0 {
		fmt.Fprintf(out, "No pool of %s and no RDMAPool is served here; the devices are listed without them.\n\n", file)
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "DEVICE\tPCI\tPORTS\tPOOL\tANSWER")
	for _, d := range a.Devices {
		lead := fmt.Sprintf("%s\t%s\t%s", d.Name, d.PCI, ports(d.Ports))
		line := func(pool, answer string) {
			fmt.Fprintf(table, "%s\t%s\t%s\n", lead, pool, answer)
			lead = "\t\t"
		}
		switch {
		case d.Skipped != "":
			line("-", "skipped: "+d.Skipped)
			continue
		case len(served) == 0:
			line("-", "-")
		}
		for _, p := range served {
			if slices.Contains(d.Pools, p.Resource) {
				line(p.Resource, "taken")
			} else {
				line(p.Resource, refusal(d.Refusals[p.Resource]))
			}
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	var remarks []string
	for _, p := range a.Pools {
		if p.NotServed != "" {
			remarks = append(remarks, fmt.Sprintf("%s is not served: %s", p.Source, p.NotServed))
		}
		if p.Closed != "" {
			remarks = append(remarks, fmt.Sprintf("%s (%s): %s", p.Source, p.Resource, p.Closed))
		}
		if p.Empty != "" {
			remarks = append(remarks, fmt.Sprintf("%s (%s): %s", p.Source, p.Resource, p.Empty))
		}
		if len(p.Unmatched) > 0 {
			remarks = append(remarks, fmt.Sprintf("%s (%s): no device of this node has %s", p.Source, p.Resource, strings.Join(p.Unmatched, ", ")))
		}
		for _, conflict := range p.Conflicts {
			remarks = append(remarks, fmt.Sprintf("%s (%s): %s", p.Source, p.Resource, conflict))
		}
	}
	if len(remarks) == 0 {
		return nil
	}
	_, err := fmt.Fprintf(out, "\n%s\n", strings.Join(remarks, "\n"))
	return err
}

// refusal describes the refusal of a device, by a selector or because of another pool.
func refusal(reason string) string {
	if strings.HasPrefix(reason, "selectors.") || strings.HasPrefix(reason, "devices:") {
		return "refused by " + reason
	}
	return "refused: " + reason
}

func ports(list []Port) string {
	text := ""
	for i, p := range list {
		if i > 0 {
			text += ", "
		}
		text += fmt.Sprintf("%d: %s %g Gb/s", p.Number, p.LinkLayer, p.RateGbps)
		if len(p.Nets) > 0 {
			text += fmt.Sprintf(" %v", p.Nets)
		}
		if p.Trouble != "" {
			text += " (" + p.Trouble + ")"
		}
	}
	if text == "" {
		return "-"
	}
	return text
}
