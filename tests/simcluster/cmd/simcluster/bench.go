package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"gpufabric.io/tests/simcluster/bench"
	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/fabric"
)

// system is the namespace whose service accounts' requests are counted.
const system = "gpufabric-system"

func benchCommand(dir *string) *cobra.Command {
	var sizes, out string
	var roles, cliques, brief bool
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure the drivers at several sizes and write OUT/scale.md, scale.json and scale.svg, scale-cliques.md or scale-roles.md",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var nodes []int
			for _, word := range strings.Fields(sizes) {
				n, err := strconv.Atoi(word)
				if err != nil || n < 1 || n%bench.RackSize != 0 {
					return fmt.Errorf("--nodes %q: %q is not a number of nodes in whole racks of %d", sizes, word, bench.RackSize)
				}
				nodes = append(nodes, n)
			}
			if info, err := os.Stat(out); err != nil || !info.IsDir() { // checked before it measures for minutes
				return fmt.Errorf("--out %q: no such directory", out)
			}
			machine, err := machineNow()
			if err != nil {
				return err
			}
			options := bench.Options{
				Nodes: nodes, Dir: *dir, Brief: brief, Cliques: cliques,
				Up: func(ctx context.Context, n int) error {
					flags := upFlags{nodes: n, audit: []string{system},
						machines: cluster.Machines{Profile: "gb200-nvl72", Mode: string(fabric.Sampled)}}
					return up(ctx, *dir, flags, func(string, ...any) {})
				},
				Down:     func() error { _, err := cluster.Remove(*dir); return err },
				Progress: func(format string, args ...any) { fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", args...) },
			}
			if roles {
				results, err := bench.RunRoles(cmd.Context(), options)
				if writeErr := writeRoles(cmd, out, machine, results, err); err == nil {
					err = writeErr
				}
				return err
			}
			results, err := bench.Run(cmd.Context(), options)
			// The results from before a failure are written too.
			if writeErr := writeBench(cmd, out, machine, cliques, results, err); err == nil {
				err = writeErr
			}
			return err
		},
	}
	cmd.Flags().StringVar(&sizes, "nodes", "18 72 288 1008", "numbers of nodes, in whole racks of 18")
	cmd.Flags().BoolVar(&roles, "roles", false, "measure all roles on every node instead of compute domains, and write OUT/scale-roles.md")
	cmd.Flags().BoolVar(&cliques, "cliques", false,
		"form the domains by channels of the cliques' IMEX daemons (computeDomains.imex: clique), and write OUT/scale-cliques.md")
	cmd.MarkFlagsMutuallyExclusive("roles", "cliques")
	cmd.Flags().BoolVar(&brief, "brief", false,
		"with --roles: leave out the roll of all plugins node by node, and wait seconds where it else waits a minute")
	cmd.Flags().StringVar(&out, "out", ".", "directory of what is written")
	return cmd
}

// machineNow describes the machine, the time and the machine's load.
func machineNow() (string, error) {
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "", fmt.Errorf("describe the machine: %w", err)
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return "", fmt.Errorf("describe the machine: %w", err)
	}
	const gib = 1 << 30
	return fmt.Sprintf("Taken on %s with %d CPUs and %.0f GiB; the load average was %s before it began (anything above 0.5 is other work "+
		"on the same machine).",
		time.Now().UTC().Format(time.DateOnly), runtime.NumCPU(), float64(info.Totalram)*float64(info.Unit)/gib,
		strings.Join(strings.Fields(string(load))[:3], ", ")), nil
}

// writeBench writes the report; failed is the error that ended the measurement, or nil.
func writeBench(cmd *cobra.Command, out, machine string, cliques bool, results []bench.Result, failed error) error {
	if len(results) == 0 {
		return nil
	}
	var table strings.Builder
	if err := bench.Report(&table, results); err != nil {
		return err
	}
	if failed != nil {
		fmt.Fprintf(&table, "\nNot measured: %v.\n", failed)
	}
	fmt.Fprint(cmd.OutOrStdout(), table.String())
	if cliques {
		header := "# Scale, clique mode\n\nWritten by `make bench-scale`; do not edit. As [in the default mode](scale.md), but a node has one " +
			"IMEX daemon\nthat stays (`computeDomains.imex: clique`), and a domain is a channel. " +
			"No pod is started to form one.\nGET nodes are the simulated kubelets' looks at their own nodes with each heartbeat: they grow " +
			"with the time that a round takes.\n\n" + machine + "\n\n"
		if err := os.WriteFile(filepath.Join(out, "scale-cliques.md"), []byte(header+table.String()), 0o644); err != nil {
			return fmt.Errorf("write the report: %w", err)
		}
		return nil
	}
	header := "# Scale\n\nWritten by `make bench-scale`; do not edit. Each size is a simulated cluster of GB200 racks of 18 nodes on one " +
		"machine: a real\n" +
		"control plane, the kubelet's own managers, and the drivers as goroutines, but the controller and the first node's as processes. All " +
		"racks'\n" +
		"domains are formed at once. Growth is the exponent e of the least-squares fit of nodes^e.\n\n" + machine +
		"\n\n![Seconds by nodes](scale.svg)\n\n"
	if err := os.WriteFile(filepath.Join(out, "scale.md"), []byte(header+table.String()), 0o644); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	raw, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the results: %w", err)
	}
	if err := os.WriteFile(filepath.Join(out, "scale.json"), append(raw, '\n'), 0o644); err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	return bench.Plot(filepath.Join(out, "scale.svg"), results)
}

// writeRoles writes the report of all roles; failed is the error that ended the measurement, or nil.
func writeRoles(cmd *cobra.Command, out, machine string, results []bench.RolesResult, failed error) error {
	if len(results) == 0 {
		return nil
	}
	var table strings.Builder
	if err := bench.ReportRoles(&table, results); err != nil {
		return err
	}
	if failed != nil {
		fmt.Fprintf(&table, "\nNot measured: %v.\n", failed)
	}
	fmt.Fprint(cmd.OutOrStdout(), table.String())
	header := "# Scale, all roles\n\nWritten by `make bench-scale`; do not edit. compute-domain-plugin, gpu-plugin, rdma-plugin and " +
		"vgpu-plugin on every node of a\n" +
		"simulated cluster of GB200 racks (4 GPUs and 4 NICs a node, all GPUs handed to vgpu-plugin) on one machine: the drivers as " +
		"goroutines, but\n" +
		"the controller and the first node's as processes, which is where the memory is read.\n\n" + machine + "\n\n"
	if err := os.WriteFile(filepath.Join(out, "scale-roles.md"), []byte(header+table.String()), 0o644); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}
