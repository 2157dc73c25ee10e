package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"gpufabric.io/build/repository"
	"gpufabric.io/tests/simcluster/bench"
	"gpufabric.io/tests/simcluster/controlplane"
)

func benchControllerCommand(dir *string) *cobra.Command {
	var sizes, out string
	var atOnce int
	cmd := &cobra.Command{
		Use:   "bench-controller",
		Short: "Measure the controller of compute domains alone, on nodes that are only objects, and write OUT/scale-controller.md",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			options := bench.ControllerOptions{Dir: *dir, AtOnce: atOnce}
			for _, word := range strings.Fields(sizes) {
				n, err := strconv.Atoi(word)
				if err != nil || n < 1 || n%bench.RackSize != 0 {
					return fmt.Errorf("--nodes %q: %q is not a number of nodes in whole racks of %d", sizes, word, bench.RackSize)
				}
				options.Nodes = append(options.Nodes, n)
			}
			if atOnce < 1 {
				return fmt.Errorf("--domains %d: at least one domain is formed", atOnce)
			}
			if info, err := os.Stat(out); err != nil || !info.IsDir() { // checked before it measures for minutes
				return fmt.Errorf("--out %q: no such directory", out)
			}
			root, err := repository.Root()
			if err != nil {
				return err
			}
			options.Program = filepath.Join(root, "bin/gpufabric")
			if _, err := os.Stat(options.Program); err != nil {
				return fmt.Errorf("the controller runs as a process, of what `make build` makes: %w", err)
			}
			if options.Binaries, err = controlplane.Binaries(cmd.Context()); err != nil {
				return err
			}
			machine, err := machineNow()
			if err != nil {
				return err
			}
			options.Progress = func(format string, args ...any) { fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", args...) }
			results, err := bench.RunController(cmd.Context(), options)
			// The results from before a failure are written too.
			if writeErr := writeController(cmd, out, machine, results, err); err == nil {
				err = writeErr
			}
			return err
		},
	}
	cmd.Flags().StringVar(&sizes, "nodes", "1008 10080", "numbers of nodes, in whole racks of 18")
	cmd.Flags().IntVar(&atOnce, "domains", 56, "domains of the first formation; the second has one for each rack")
	cmd.Flags().StringVar(&out, "out", ".", "directory of what is written")
	return cmd
}

// writeController writes the report; failed is the error that ended the measurement, or nil.
func writeController(cmd *cobra.Command, out, machine string, results []bench.ControllerResult, failed error) error {
	if len(results) == 0 {
		return nil
	}
	var table strings.Builder
	if err := bench.ReportController(&table, results); err != nil {
		return err
	}
	if failed != nil {
		fmt.Fprintf(&table, "\nNot measured: %v.\n", failed)
	}
	fmt.Fprint(cmd.OutOrStdout(), table.String())
	header := "# Scale, the controller alone\n\nWritten by `make bench-controller`; do not edit. The controller's own program in " +
		"clique mode (`computeDomains.imex: clique`), before\na real API server and etcd. The nodes are objects only: one process writes " +
		"what their plugins, kubelets and IMEX daemons would write\n(the daemons' pods and their readiness, a claim and a label for each " +
		"node of a domain), so that the times have that process's writes in\nthem. What follows a domain's last label is the controller's. " +
		"Events apart, a node plugin writes its node once for a domain, and once\nfor its end.\n\n" + machine + "\n\n"
	if err := os.WriteFile(filepath.Join(out, "scale-controller.md"), []byte(header+table.String()), 0o644); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}
