package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gpufabric.io/tests/simcluster/scheduling"
)

func benchSchedulingCommand(dir *string) *cobra.Command {
	var sizes, fills, rows, out string
	o := scheduling.Options{}
	cmd := &cobra.Command{
		Use:   "bench-scheduling",
		Short: "Measure the scheduler by what nodes publish, and write OUT/scheduling-table.md, OUT/scheduling.json and OUT/scheduling.svg",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, word := range strings.Fields(sizes) {
				n, err := strconv.Atoi(word)
				if err != nil || n < 1 {
					return fmt.Errorf("--nodes %q: %q is not a number of nodes", sizes, word)
				}
				o.Nodes = append(o.Nodes, n)
			}
			for _, word := range strings.Fields(fills) {
				f, err := strconv.Atoi(word)
				if err != nil || f < 0 || f > 99 {
					return fmt.Errorf("--fills %q: %q is not a percentage from 0 to 99", fills, word)
				}
				o.Fills = append(o.Fills, float64(f)/100)
			}
			if info, err := os.Stat(out); err != nil || !info.IsDir() { // known before it measures for minutes
				return fmt.Errorf("--out %q: no such directory", out)
			}
			machine, err := machineNow()
			if err != nil {
				return err
			}
			o.Dir, o.Rows = *dir, strings.Fields(rows)
			o.Progress = func(format string, args ...any) { fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", args...) }
			// Results are written after each size, and also before a row failed.
			o.Measured = func(found []scheduling.Result) error { return writeScheduling(cmd, out, machine, found) }
			_, err = scheduling.Run(cmd.Context(), o)
			return err
		},
	}
	cmd.Flags().StringVar(&sizes, "nodes", "64 256 1008", "numbers of nodes")
	cmd.Flags().StringVar(&fills, "fills", "0 50 95", "percentages of the devices that are given away before")
	cmd.Flags().StringVar(&rows, "rows", "", "names of rows; empty: all")
	cmd.Flags().StringVar(&out, "out", ".", "directory of what is written")
	cmd.Flags().StringVar(&o.Profile, "profile", "h100-hgx", "fake machine that every node is")
	cmd.Flags().IntVar(&o.Pods, "pods", 300, "pods that are bound in a measurement, at once as far as devices are free")
	cmd.Flags().IntVar(&o.Rounds, "rounds", 3, "how often everything is measured; the median counts")
	cmd.Flags().DurationVar(&o.Limit, "limit", 30*time.Second, "time that a measurement goes on")
	cmd.Flags().IntVar(&o.Batch, "batch", 0, "most pods that are made at once, to compare rows with few and with many free devices "+
		"(0: no bound)")
	cmd.Flags().IntVar(&o.CountersNodes, "counters-nodes", 64, "largest cluster for rows that publish counters on every node (0: any)")
	cmd.Flags().StringVar(&o.CPUProfiles, "cpu-profiles", "", "directory for a CPU profile of the scheduler for each measurement")
	return cmd
}

// writeScheduling writes the table and the plot. It keeps the cells of OUT that were not measured this time.
func writeScheduling(cmd *cobra.Command, out, machine string, found []scheduling.Result) error {
	if len(found) == 0 {
		return nil
	}
	file := filepath.Join(out, "scheduling.json")
	var before []scheduling.Result
	raw, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(raw, &before)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("read the results of before: %w", err)
	}
	results := scheduling.Merge(before, found)
	fmt.Fprint(cmd.OutOrStdout(), scheduling.Report(found))
	header := "# Scheduling by what nodes publish: the table\n\nWritten by `make bench-scheduling`; do not edit. " +
		"[scheduling.md](scheduling.md) says what it means.\n\n" +
		machine + "\n\n![Pods a second by nodes](scheduling.svg)\n\n"
	if err := os.WriteFile(filepath.Join(out, "scheduling-table.md"), []byte(header+scheduling.Report(results)), 0o644); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	if raw, err = json.MarshalIndent(results, "", "  "); err != nil {
		return fmt.Errorf("encode the results: %w", err)
	}
	if err := os.WriteFile(file, append(raw, '\n'), 0o644); err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	return scheduling.Plot(filepath.Join(out, "scheduling.svg"), results)
}
