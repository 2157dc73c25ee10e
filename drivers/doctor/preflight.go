package doctor

import (
	"context"
	"fmt"
	"os"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"gpufabric.io/drivers/doctor/findings"
	"gpufabric.io/drivers/doctor/preflight"
	"gpufabric.io/drivers/doctor/snapshot"
	"gpufabric.io/drivers/node/host"
)

// preflightCommand is `gpufabric doctor preflight`.
func (o *options) preflightCommand(h host.Host) *cobra.Command {
	var values, output string
	command := &cobra.Command{
		Use:   "preflight",
		Short: "Say before an install what would not work on this cluster",
		Long: "Say before an install what would not work on this cluster: versions, APIs, other drivers, PodSecurity, quota, placement.\n" +
			"What stands on the nodes alone (the driver, the configuration of the container runtime) is not seen from outside.\n\n" +
			"Exit status: 0 nothing fails; 1 the command could not run; 12 a check fails.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains([]string{"text", "json"}, output) {
				return fmt.Errorf("--output is text or json, not %q", output)
			}
			var text []byte
			var err error
			if values != "" {
				if text, err = os.ReadFile(values); err != nil {
					return fmt.Errorf("read the chart's values: %w", err)
				}
			}
			v, err := preflight.Read(text)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), o.total)
			defer cancel()
			config, _, err := o.reach(h)
			if err != nil {
				return err
			}
			scope := snapshot.Scope{System: o.system, Timeout: o.timeout}
			reader, err := snapshot.NewReader(config, scope)
			if err != nil {
				return err
			}
			taken, err := reader.Read(ctx, scope)
			if err != nil {
				return err
			}
			return table(h, preflight.Run(taken, v, o.system), output)
		},
	}
	command.Flags().StringVarP(&values, "values", "f", "", "values of the chart, as for helm install")
	command.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return command
}

// table writes the checks; one that fails is the exit status.
func table(h host.Host, checks []preflight.Check, output string) error {
	var err error
	if output == "json" {
		err = writeJSON(h.Out(), checks)
	} else {
		rows := tabwriter.NewWriter(host.Visible(h.Out()), 0, 0, 2, ' ', 0)
		_, _ = fmt.Fprintln(rows, "CHECK\tRESULT\tDETAIL") // Flush returns the error
		for _, c := range checks {
			_, _ = fmt.Fprintf(rows, "%s\t%s\t%s\n", c.Name, c.Result, one(c.Detail))
		}
		err = rows.Flush()
	}
	if err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	if slices.ContainsFunc(checks, func(c preflight.Check) bool { return c.Result == preflight.Fails }) {
		return &StatusError{Status: findings.Install.ExitStatus()}
	}
	return nil
}
