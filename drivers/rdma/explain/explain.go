// Package explain is the command that says, for each RDMA device of a node, which pool took it or which selector refused it. It reads the
// configuration and the hardware as the rdma-plugin does, and changes nothing.
package explain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"gpufabric.io/drivers/program/host"
	"gpufabric.io/drivers/rdma/config"
	"gpufabric.io/drivers/rdma/health"
	"gpufabric.io/drivers/rdma/inventory"
	"gpufabric.io/drivers/rdma/pool"
)

// options are the command's flags.
type options struct {
	sysfs, procDevices, config string
	json                       bool
}

// Command is `gpufabric explain rdma`.
func Command(h host.Host) *cobra.Command {
	var o options
	command := &cobra.Command{
		Use:       "explain rdma",
		Short:     "Say for each device of this node which pool took it, or which selector refused it",
		ValidArgs: []string{"rdma"},
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		RunE:      func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), h.Out()) },
	}
	env := func(name, fallback string) string {
		if value := h.Env(name); value != "" {
			return value
		}
		return fallback
	}
	command.Flags().StringVar(&o.sysfs, "sysfs-root", env("SYSFS_ROOT", "/sys"), "directory that stands for /sys")
	command.Flags().StringVar(&o.procDevices, "proc-devices", env("PROC_DEVICES", "/proc/devices"), "file that stands for /proc/devices; the rest of /proc is read beside it")
	command.Flags().StringVar(&o.config, "config", config.DefaultFile, "config.json of pools")
	command.Flags().BoolVar(&o.json, "json", false, "write JSON")
	return command
}

// Device is what the command says of one device.
type Device struct {
	Name  string `json:"name"`
	PCI   string `json:"pci,omitempty"`
	Ports []Port `json:"ports,omitempty"`
	// Pools are the resources that have the device.
	Pools []string `json:"pools,omitempty"`
	// Refusals are the reasons of those that do not, by resource.
	Refusals map[string]string `json:"refusals,omitempty"`
	// Skipped is why the device was offered to no pool.
	Skipped string `json:"skipped,omitempty"`
}

// Port is what the command says of one port.
type Port struct {
	Number    int      `json:"number"`
	LinkLayer string   `json:"linkLayer"`
	RateGbps  float64  `json:"rateGbps"`
	Nets      []string `json:"interfaces,omitempty"`
	// Trouble is why the port cannot carry traffic; empty: it can.
	Trouble string `json:"trouble,omitempty"`
}

// run reads the node and writes the answer.
func (o *options) run(ctx context.Context, out io.Writer) error {
	content, err := os.ReadFile(o.config)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("configuration: %w", err)
	}
	var definitions []pool.Definition
	if err == nil {
		parsed, err := config.Parse(content)
		if err != nil {
			return fmt.Errorf("%s cannot be used:\n%w", o.config, err)
		}
		for i, c := range parsed.Pools {
			definitions = append(definitions, pool.Definition{RDMAPoolConfig: c, Source: fmt.Sprintf("configList[%d]", i)})
		}
	}
	found, err := inventory.Discover(ctx, inventory.Roots{Sysfs: o.sysfs, Proc: filepath.Dir(o.procDevices)})
	if err != nil {
		return err
	}
	devices := Explain(definitions, found, o.sysfs)
	if o.json {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(devices)
	}
	return write(out, devices, definitions, o.config)
}

// Explain says what became of each device. The health of ports is read under sysfs, once.
func Explain(definitions []pool.Definition, found *inventory.Inventory, sysfs string) []Device {
	selection := pool.Select(definitions, found)
	var devices []Device
	for i, v := range selection.Verdicts {
		d := Device{Name: v.Device, PCI: v.PCI, Pools: v.Pools, Refusals: v.Refusals, Skipped: v.Skipped}
		if v.Skipped == "" {
			h := &found.HCAs[i]
			for _, p := range h.Ports {
				port := health.Port{Device: h.Name, Path: h.Path, Number: p.Number}
				for _, net := range p.Nets {
					port.Nets = append(port.Nets, net.Name)
				}
				d.Ports = append(d.Ports, Port{Number: p.Number, LinkLayer: string(p.LinkLayer), RateGbps: p.Rate, Nets: port.Nets, Trouble: health.Read(sysfs, port)})
			}
		}
		devices = append(devices, d)
	}
	return devices
}

// write writes a table: a line for each device and each pool's answer.
func write(out io.Writer, devices []Device, definitions []pool.Definition, file string) error {
	if len(definitions) == 0 {
		fmt.Fprintf(out, "%s has no pools; the devices are listed without them.\n\n", file)
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "DEVICE\tPCI\tPORTS\tPOOL\tANSWER")
	for _, d := range devices {
		lead := fmt.Sprintf("%s\t%s\t%s", d.Name, d.PCI, ports(d.Ports))
		line := func(pool, answer string) {
			fmt.Fprintf(table, "%s\t%s\t%s\n", lead, pool, answer)
			lead = "\t\t"
		}
		switch {
		case d.Skipped != "":
			line("-", "skipped: "+d.Skipped)
		case len(definitions) == 0:
			line("-", "-")
		}
		if d.Skipped != "" {
			continue
		}
		for i := range definitions {
			resource := definitions[i].Resource()
			if slices.Contains(d.Pools, resource) {
				line(resource, "taken")
			} else {
				line(resource, "refused by "+d.Refusals[resource])
			}
		}
	}
	return table.Flush()
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
