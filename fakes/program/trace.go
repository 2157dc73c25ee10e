package program

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/trace"
)

func traceCommand() *cobra.Command {
	var summary bool
	c := &cobra.Command{
		Use:   "trace [--summary] FILE",
		Short: "Tell which program called what in NVML, and which stub it hit (record with FAKEFABRIC_TRACE=FILE)",
		Args:  wants(false, "one file that FAKEFABRIC_TRACE named"),
		RunE: func(c *cobra.Command, args []string) error {
			f, err := os.Open(args[0])
			if err != nil {
				return err
			}
			defer func() { _ = f.Close() }() // only read from
			calls, damaged, err := trace.Read(f)
			if err != nil {
				return fmt.Errorf("read the trace %s: %w; give the file that FAKEFABRIC_TRACE named", args[0], err)
			}
			if len(calls) == 0 && damaged > 0 {
				return fmt.Errorf("%s is not a trace: none of its %d lines is an NVML call; give the file that FAKEFABRIC_TRACE named",
					args[0], damaged)
			}
			if summary {
				return trace.Write(c.OutOrStdout(), trace.Summarize(calls), damaged)
			}
			for _, x := range calls {
				if _, err := fmt.Fprintf(c.OutOrStdout(), "%.6f %d %s %s = %d\n", x.Seconds, x.PID, x.Program, x.Function, x.Result); err != nil {
					return err
				}
			}
			if damaged > 0 {
				fmt.Fprintf(c.ErrOrStderr(), "lines that could not be read: %d\n", damaged)
			}
			return nil
		},
	}
	c.Flags().BoolVar(&summary, "summary", false, "count calls per program and function, stubs first")
	return c
}

func schemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of profile files",
		Args:  flagsOnly,
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := profile.Schema()
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), string(s))
			return err
		},
	}
}
